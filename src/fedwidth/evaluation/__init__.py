"""How good a model is: on test and validation samples, on each client's own, and at each width."""
