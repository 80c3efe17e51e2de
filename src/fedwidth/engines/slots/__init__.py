"""Clients side by side on one GPU, each in a slot with a stream and a captured step of its own."""
