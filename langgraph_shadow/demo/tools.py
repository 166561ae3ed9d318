"""The agent's two tools."""

from __future__ import annotations

from functools import lru_cache

from langchain_core.tools import BaseTool, tool

from langgraph_shadow.demo.index import DocsIndex

DOC_CHARACTERS = 1200
"""A longer docstring is cut at the last line break before this."""


@lru_cache(maxsize=1)
def docs() -> DocsIndex:
    """The index; built when a tool needs it for the first time."""
    return DocsIndex.open()


@tool
def search_docs(query: str) -> str:
    """Search the documentation of Python's standard library.

    Returns names, each with the first line of its documentation.
    """
    found = docs().search(query)
    if not found:
        return f"Nothing matches {query!r}. Try other words."
    return "\n".join(f"{entry.name}: {entry.summary}" for entry in found)


@tool
def read_doc(name: str) -> str:
    """Read the documentation of one name that search_docs found."""
    entry = docs().get(name)
    if entry is None:
        near = ", ".join(docs().near(name))
        return f"There is no entry {name!r}." + (f" Near it: {near}." if near else "")
    doc = entry.doc
    if len(doc) > DOC_CHARACTERS:
        doc = doc[:DOC_CHARACTERS].rpartition("\n")[0] + "\n…"
    return f"{entry.name}{entry.signature}\n\n{doc}"


TOOLS: list[BaseTool] = [search_docs, read_doc]
