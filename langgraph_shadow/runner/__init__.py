"""Running branches without being felt."""
