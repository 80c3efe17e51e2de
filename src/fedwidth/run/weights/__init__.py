"""The weights that a run begins with, and the models that it leaves ready to use."""
