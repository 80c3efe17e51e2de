"""Clients of one size as one batch of models."""
