"""One module per command of `langgraph-shadow`; no logic of their own."""
