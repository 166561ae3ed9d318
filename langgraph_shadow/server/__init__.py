"""The vLLM server: start one, read one."""
