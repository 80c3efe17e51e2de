"""A run from beginning to end: its start, its folder, what is recorded, checkpoints, and several runs in step."""
