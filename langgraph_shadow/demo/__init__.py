"""The demo: a research agent on the docs of Python's standard library."""
