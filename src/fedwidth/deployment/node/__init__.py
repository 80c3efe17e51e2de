"""What runs on a device: the ClientApp, the trainer that stays up, and what keeps trainer and SuperNode running."""
