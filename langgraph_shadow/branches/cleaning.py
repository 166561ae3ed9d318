"""What may stand in a text for a person: characters, markup, links."""

from __future__ import annotations

import html
import re
import unicodedata

LINK = "[link]"
"""What a person sees where a link was."""

# Invisible, though Unicode does not class them as format characters: joiners, fillers, variation
# selectors. Text can be hidden in runs of them.
_INVISIBLE = frozenset(
    {0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0}.union(
        range(0x180B, 0x1810), range(0xFE00, 0xFE10), range(0xE0000, 0xE1000)
    )
)
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})
_MOST_MARKS = 4  # combining marks on one letter; more climb over the neighbouring lines


def visible(text: str) -> str:
    """Drop what a person cannot see; make every space a space and every line end a newline.

    Removes control, bidi, zero-width, tag and private characters, lone surrogates and variation
    selectors; collapses runs of spaces. Whatever follows, the result for `text` stays a prefix.
    """
    kept: list[str] = []
    marks = 0
    for char in text:
        if char in "\n\r\x0b\x0c\x85\u2028\u2029":
            if kept[-2:] != ["\n", "\n"]:
                kept.append("\n")
            continue
        category = unicodedata.category(char)
        if char == "\t" or category == "Zs":
            if kept and kept[-1] not in " \n":
                kept.append(" ")
            continue
        if category in _HIDDEN or ord(char) in _INVISIBLE:
            continue
        marks = marks + 1 if category[0] == "M" else 0
        if marks <= _MOST_MARKS:
            kept.append(char)
    return "".join(kept)


def one_line(text: str) -> str:
    """The visible characters of a text on one line, composed (NFC)."""
    return unicodedata.normalize("NFC", " ".join(visible(text).split()))


# Names that a reader's program turns into links even without a scheme. Endings that are common in
# code or file names (.py, .md, .run, .info, .name) count only with a path, a port or a query.
_BARE = (
    "com|org|net|edu|gov|mil|biz|io|ai|co|dev|app|xyz|online|shop|club|icu|vip|cfd|ru|su|cn|tk|ml|"
    "ga|cf|gq|uk|de|fr|nl|se|dk|fi|eu|br|jp|рф"
)
_TAIL = r"""(?:(?:[^\s<>"'`()]|\([^\s()]*\))*(?<![.,;:!?\[\]{}»”’…*]))?"""
_LABELS = r"(?:[^\W_](?:[\w-]*[^\W_])?\.)+"
_LINK = re.compile(
    rf"""
    (?<!\w)(?:https?|ftp|hxxps?|file|javascript|vbscript|data|blob|about|mailto|tel|sms):(?=\S){_TAIL}
    | [^\W\d_][\w+.-]*://{_TAIL}
    | (?<![\w/])//(?=\w){_TAIL}
    | \bwww\.{_TAIL}
    | [\w.+-]+@{_LABELS}[^\W_]+
    | \b{_LABELS}[^\W\d_]{{2,}}(?=[/?]\w|:\d){_TAIL}
    | \b{_LABELS}(?:{_BARE}|xn--[a-z0-9]+)(?![a-z0-9_])/?
    """,
    re.IGNORECASE | re.VERBOSE,
)
_WEB = re.compile(r"https?://", re.IGNORECASE)


def links_in(text: str) -> frozenset[str]:
    """The links in a text: with a scheme, `www.`, email addresses, and names such as `host.com`."""
    return frozenset(found.group() for found in _LINK.finditer(text))


def has_disguised_link(text: str) -> bool:
    """Whether look-alike characters (full-width letters, one-dot leaders) spell a link."""
    plain = unicodedata.normalize("NFKC", text)
    return any(link not in text for link in links_in(plain))


_ENTITY = re.compile(r"&(?:#\d{1,7}|#x[0-9a-f]{1,6}|\w{2,31});", re.IGNORECASE)
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_TAG = re.compile(r"</?[a-z][^<>]*>|<[!?][^<>]*>", re.IGNORECASE)
_OPEN_TAG = re.compile(r"<(?=[a-z/!?])", re.IGNORECASE)
_MARKDOWN_LINK = re.compile(r"!?\[([^\[\]]*)\](?:\([^()]*(?:\([^()]*\)[^()]*)*\)|\[[^\[\]]*\])")
_BOLD = re.compile(r"(?<!\w)\*\*(?=\S)(.+?)(?<=\S)\*\*(?!\w)")
_LEAD = re.compile(r"\A(?:(?:[#>*•–-]+|\d{1,3}[.)])\s+)+")
_QUOTES = {'"': '"', "“": "”", "'": "'", "«": "»", "„": "“", "「": "」", "*": "*", "_": "_"}

ACTIVE_HTML = re.compile(
    r"<\s*/?\s*(?:script|style|iframe|object|embed|svg|math|form|input|button|meta|link|base|video|"
    r"audio)\b",
    re.IGNORECASE,
)
"""HTML that acts; a sentence that holds it is no sentence for a person."""


def unescaped(text: str) -> str:
    """The text with HTML's character references (`&lt;`, `&#46;`) replaced by their characters."""
    return _ENTITY.sub(lambda found: html.unescape(found.group()), text)


def plain(sentence: str, *, allowed: frozenset[str] = frozenset(), web: bool = False) -> str:
    """One pass from a model's sentence to plain text: no HTML, Markdown links or links.

    Args:
        sentence: The sentence.
        allowed: Links that may stay, exactly as written.
        web: Whether every http(s) link may stay.
    """

    def keep(found: re.Match[str]) -> str:
        link = found.group()
        return link if link in allowed or (web and _WEB.match(link)) else LINK

    text = _TAG.sub("", _COMMENT.sub("", sentence.replace("`", "")))
    text = _MARKDOWN_LINK.sub(r"\1", _MARKDOWN_LINK.sub(r"\1", text))  # an image in a link
    text = text.replace("](", "] (")
    text = _LINK.sub(keep, text)
    text = _OPEN_TAG.sub("< ", text)
    text = _LEAD.sub("", one_line(_BOLD.sub(r"\1", text)))
    if len(text) > 1 and _QUOTES.get(text[0]) == text[-1] and text[0] not in text[1:-1]:
        text = text[1:-1].strip()
    return text


def shorten(text: str, limit: int) -> str:
    """Cut a text at a word to at most `limit` characters, with `…` where it was cut."""
    if len(text) <= limit:
        return text
    head = text[: limit - 1]
    whole = head if text[limit - 1].isspace() else head.rpartition(" ")[0]
    # A script without spaces is cut between characters.
    return (whole if len(whole) > limit // 2 else head).rstrip(" ,;:-–") + "…"
