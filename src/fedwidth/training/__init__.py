"""Training: a client's step and its epochs, the server's side, and one round."""
