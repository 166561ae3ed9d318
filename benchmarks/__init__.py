"""Long measurements, run from the repository's root: `python -m benchmarks.soak`."""
