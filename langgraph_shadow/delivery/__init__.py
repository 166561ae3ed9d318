"""Where verdicts go."""
