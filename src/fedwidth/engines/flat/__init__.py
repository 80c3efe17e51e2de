"""Engines on vectors: a whole sub-model is one vector, which a few kernels cut out of the state and average."""
