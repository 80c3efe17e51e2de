"""Clients of one size as one batch of models, which train together in stacks."""
