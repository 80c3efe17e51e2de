"""The tables of docs/benchmark.md and its pages, from the runs of the recipes `benchmark/…`."""
