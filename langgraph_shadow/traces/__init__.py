"""Offline: other people's recorded runs, read as trunks."""
