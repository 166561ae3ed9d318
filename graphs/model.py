"""The model that all examples share.

Needs a vLLM server at `LANGGRAPH_SHADOW_BASE_URL` that serves `LANGGRAPH_SHADOW_MODEL`;
`langgraph-shadow serve` starts one. Nothing is asked of it before a graph runs.
"""

import os

from langchain_openai import ChatOpenAI

from graphs.small_model import SmallModel
from langgraph_shadow.server.models import EMBEDDED_MODELS


def chat_model() -> ChatOpenAI:
    """An ordinary ChatOpenAI, or a `SmallModel` where the model cannot write tool calls.

    That is so for the embedded models, and wherever `LANGGRAPH_SHADOW_SMALL_MODEL` is set.
    """
    name = os.environ.get("LANGGRAPH_SHADOW_MODEL", EMBEDDED_MODELS[0])
    small = name in EMBEDDED_MODELS or os.environ.get("LANGGRAPH_SHADOW_SMALL_MODEL")
    kind = SmallModel if small else ChatOpenAI
    return kind(
        base_url=os.environ.get("LANGGRAPH_SHADOW_BASE_URL", "http://127.0.0.1:8000/v1"),
        model=name,
        api_key=os.environ.get("LANGGRAPH_SHADOW_API_KEY", "none"),
        temperature=0,
        max_tokens=256,
        stream_usage=True,  # without it a stream tells neither prompt nor cached tokens
        use_responses_api=False,
    )
