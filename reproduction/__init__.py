"""docs/results.md and its figures, from the runs recorded in results/. Not part of the package."""
