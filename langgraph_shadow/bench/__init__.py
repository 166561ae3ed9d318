"""The benchmarks behind `langgraph-shadow bench`: each compares its arms in one run."""
