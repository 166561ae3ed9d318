"""The `langgraph-shadow` command. Each command lives in `commands/`; this file only lists them."""

from __future__ import annotations

import typer

from langgraph_shadow.commands.bench import bench
from langgraph_shadow.commands.check import check
from langgraph_shadow.commands.demo import demo
from langgraph_shadow.commands.doctor import doctor
from langgraph_shadow.commands.roles import roles
from langgraph_shadow.commands.serve import serve
from langgraph_shadow.commands.template import template

app = typer.Typer(
    name="langgraph-shadow",
    help="Shadow branches for LangGraph agents on vLLM.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    add_completion=False,
)

app.command()(demo)
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(serve)
app.command()(check)
app.command()(template)
app.command()(doctor)
app.command()(roles)
app.add_typer(bench)

if __name__ == "__main__":
    app()
