"""What runs on a device: the client app, the trainer that stays up, and what keeps both running."""
