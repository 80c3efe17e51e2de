"""Secure sums: the server learns what clients of different widths trained together, of none what it trained alone."""
