"""Settings and recipes: read, checked, explained, and made into the parts of a run."""
