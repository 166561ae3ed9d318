"""Tokens and blocks: renderers, carriers, and the ladder that proves one."""
