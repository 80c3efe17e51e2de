"""Arithmetic and options that several methods have in common."""
