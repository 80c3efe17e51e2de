"""Inside someone's own Flower app, on public API alone: a Strategy for the server, three functions for the client."""
