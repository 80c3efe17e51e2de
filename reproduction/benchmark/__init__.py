"""The tables of docs/benchmark.md, from the runs of the recipes `benchmark/…`: tuning, gains, and what they cost."""
