"""The server's side of secure sums in a deployment: who may take part, its rounds, and which of them were opened."""
