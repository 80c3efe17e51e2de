"""Engines on vectors: a whole sub-model as one vector, cut and averaged by a few kernels."""
