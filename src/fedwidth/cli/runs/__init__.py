"""What the commands that train do with their runs: checking, training, progress, the table at the end."""
