"""Clients side by side on one GPU, each in a slot that has a stream and a captured training step of its own."""
