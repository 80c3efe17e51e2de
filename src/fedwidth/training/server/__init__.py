"""The server's side of a round: its state and step, and which updates count for how much."""
