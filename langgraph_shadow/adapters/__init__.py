"""How LangGraph reaches us: a node, callback handlers, a middleware."""
