"""A run from beginning to end: its folder, checkpoints, summary, and several runs in step."""
