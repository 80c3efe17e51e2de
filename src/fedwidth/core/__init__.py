"""The model and its sub-models: which positions a sub-model holds, cutting it out, averaging it back, what it costs."""
