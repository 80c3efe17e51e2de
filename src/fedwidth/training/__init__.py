"""Training: a client's step and its epochs, the server's side, one round, and how a model is evaluated."""
