"""The README's code runs as printed, against the real server."""

from __future__ import annotations

import ast
import contextlib
import io
import re
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.agents import TOOLS, contents, hand_built
from tests.conftest import VllmServer

README = (Path(__file__).parents[2] / "README.md").read_text()


async def test_readme(vllm_server: VllmServer, llm: Any) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    code = "\n".join(blocks)
    code = code.replace("http://127.0.0.1:8000/v1", vllm_server.base_url)
    code = code.replace("served-model", vllm_server.model)
    # a random model never stops by itself
    code = code.replace('api_key="none"', 'api_key="none", max_tokens=16')
    names: dict[str, Any] = {
        "graph": hand_built(llm).compile(),
        "inputs": {"messages": [("user", f"How fast do glaciers retreat? ({uuid4()})")]},
        "tools": TOOLS,
    }
    printed = io.StringIO()
    program = compile(code, "README.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    with contextlib.redirect_stdout(printed):
        await eval(program, names)
    assert "predicted = cached on 2 of 2 branches" in printed.getvalue()
    for door in ("built", "created"):
        state = names[door].invoke(names["inputs"])
        assert contents(state["messages"])[0][0] == "human"
