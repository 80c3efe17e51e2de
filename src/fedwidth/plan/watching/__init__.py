"""Watching a forward pass: the axes of every tensor, the numbers in the code, and what they state."""
