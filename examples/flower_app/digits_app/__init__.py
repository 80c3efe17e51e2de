"""A Flower app that learns digits."""
