"""Differential privacy: how much a client may count, how much noise hides it, and what many rounds of that come to."""
