"""The same promises in tokens, with a small tokenizer that merges across seams."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from langgraph_shadow.alignment import carriers
from langgraph_shadow.alignment.answer import Opening
from langgraph_shadow.alignment.ladder import Ladder
from langgraph_shadow.alignment.render import Items, Prompt, Rendering
from langgraph_shadow.alignment.render_local import LocalRenderer
from langgraph_shadow.alignment.survey import Scenario, trunk
from langgraph_shadow.errors import AlignmentError

pytest.importorskip("transformers", reason="the `templates` extra is not installed")

ZOO = Path(__file__).parent / "template_zoo"
ASK = "Is there something new to tell the user? One sentence.\nIf not, answer SKIP."
CORPUS = [
    "First I weigh what the passages say about it.\n\nThen I search.\n",
    'The result.\n</tool_call>\n{"name": "search", "query": "x"}\n\n',
    "Is there something new to tell the user? One sentence.\n",
] * 8


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    built = Tokenizer(models.BPE())
    # Full stops merge with the line breaks that follow them, as they do in most vocabularies.
    words = Regex(r" ?[\w]+| ?[^\s\w]+[\r\n]*|\s+")
    built.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(words, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    built.decoder = decoders.ByteLevel()
    built.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=420,
            special_tokens=["<|im_start|>", "<|im_end|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    return PreTrainedTokenizerFast(tokenizer_object=built, eos_token="<|im_end|>")


def zoo(name: str, tokenizer: Any) -> LocalRenderer:
    return LocalRenderer.from_file(ZOO / f"{name}.jinja", tokenizer=tokenizer)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(result=st.text(), instruction=st.text(min_size=1))
def test_nonce_splice_is_the_official_prompt_id_for_id(
    tokenizer: Any, result: str, instruction: str
) -> None:
    render = zoo("plain", tokenizer).render_now
    base = Prompt.of(trunk(Scenario(), model="m"))
    base = base.with_messages([*base.messages[:-1], {**base.messages[-1], "content": result}])
    marked = carriers.nonced(base)
    spliced = carriers.nonce_splice(
        render(base).items,
        render(marked).items,
        render(carriers.user_turn(marked, instruction)).items,
    )
    assert spliced == render(carriers.user_turn(base, instruction)).items


@pytest.mark.parametrize(
    ("name", "carrier"),
    [
        ("plain", "user_turn"),
        ("dated", "user_turn"),
        ("reasoning_gate", "nonce_splice"),
        ("tools_move", "nonce_splice"),
        ("alternating", "neutral_splice"),
        ("twice", "call_pair"),
    ],
)
async def test_the_ladder_in_tokens(tokenizer: Any, name: str, carrier: str) -> None:
    line = trunk(Scenario(), model="m")
    aligned = await Ladder(max_new=2000).align(line, ASK, zoo(name, tokenizer), block_size=1)
    assert aligned.carrier == carrier
    assert aligned.branch.unit == "tokens"
    assert (aligned.items == aligned.branch.items) == carrier.endswith("_splice")
    assert aligned.kept >= aligned.needed - 1


async def test_a_spliced_branch_says_how_its_answer_begins_and_ends(tokenizer: Any) -> None:
    line = trunk(Scenario(), model="m")
    aligned = await Ladder().align(line, ASK, zoo("reasoning_gate", tokenizer), block_size=1)
    assert aligned.opening is not None
    assert not aligned.opening.thinking
    assert "<think>\n\n</think>" in aligned.opening.text
    assert aligned.opening.stop == (tokenizer.convert_tokens_to_ids("<|im_end|>"),)


@pytest.mark.parametrize(
    ("text", "thinking"),
    [
        ("<|im_start|>assistant\n<think>\n", True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("[/INST][THINK]", True),
        ("<seed:think>", True),
        ("<|im_start|>assistant\n", False),
        ("", False),
    ],
)
def test_an_open_thinking_block_is_recognised(text: str, thinking: bool) -> None:
    assert Opening(text=text).thinking is thinking


async def test_a_tail_without_a_quiet_form_stays_in_its_thinking_block(tokenizer: Any) -> None:
    source = (ZOO / "reasoning_gate.jinja").read_text().replace("not enable_thinking", "false")
    renderer = LocalRenderer(source, tokenizer=tokenizer)
    aligned = await Ladder().align(trunk(Scenario(), model="m"), ASK, renderer, block_size=1)
    assert aligned.opening is not None
    assert aligned.opening.thinking


def merging(tokenizer: Any) -> LocalRenderer:
    """A template whose line break, after the content, merges with a full stop."""
    source = (ZOO / "plain.jinja").read_text()
    closed = source.replace("<|im_end|>\n{% endfor -%}", '{{ "\\n" }}<|im_end|>\n{% endfor -%}')
    assert closed != source
    return LocalRenderer(closed, tokenizer=tokenizer)


class NoText:
    """A renderer that cannot turn tokens back into text."""

    unit = "tokens"

    def __init__(self, inner: LocalRenderer) -> None:
        self.inner = inner

    async def render(self, prompt: Prompt) -> Rendering:
        return await self.inner.render(prompt)

    async def tokens(self, text: str) -> Items:
        return await self.inner.tokens(text)


async def test_the_instruction_is_found_by_its_ids_although_its_ends_merge(tokenizer: Any) -> None:
    renderer = NoText(zoo("plain", tokenizer))
    line = trunk(Scenario(), model="m")
    ask = "Is there something new to tell the user? One sentence."
    ladder = Ladder(carriers=["tool_append"])
    aligned = await ladder.align(line, ask, NoText(merging(tokenizer)), block_size=1)
    whole = tokenizer.encode(ask, add_special_tokens=False)
    assert not carriers.occurrences(aligned.branch.items, tuple(whole))
    assert (await Ladder().align(line, ask, renderer, block_size=1)).carrier == "user_turn"
    for name in ("twice", "silent_user"):
        with pytest.raises(AlignmentError):
            await Ladder(carriers=["user_turn"]).align(
                line, ask, NoText(zoo(name, tokenizer)), block_size=1
            )


async def test_a_short_instruction_is_found_through_the_text(tokenizer: Any) -> None:
    line = trunk(Scenario(), model="m")
    aligned = await Ladder().align(line, "New?", zoo("plain", tokenizer), block_size=1)
    assert aligned.carrier == "user_turn"
    with pytest.raises(AlignmentError):
        await Ladder(carriers=["user_turn"]).align(
            line, "New?", zoo("twice", tokenizer), block_size=1
        )


async def test_a_folder_gives_tokens(tokenizer: Any, tmp_path: Path) -> None:
    with pytest.raises(AlignmentError, match="No tokenizer"):
        LocalRenderer.from_folder(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(AlignmentError, match="no chat template"):
        LocalRenderer.from_folder(tmp_path)
    (tmp_path / "chat_template.jinja").write_text((ZOO / "plain.jinja").read_text())
    renderer = LocalRenderer.from_folder(tmp_path)
    base = Prompt.of(trunk(Scenario(), model="m"))
    rendering = await renderer.render(base)
    assert rendering.unit == "tokens"
    assert rendering.items == zoo("plain", tokenizer).render_now(base).items
    assert await renderer.text(rendering.items[:1]) == "<|im_start|>"
