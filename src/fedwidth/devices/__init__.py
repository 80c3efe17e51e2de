"""Devices: what each can afford, whether that goes with its data, and how long a round would take on it."""
