"""Inside someone's own Flower app: a Strategy for the server and three functions for the client, on public API alone."""
