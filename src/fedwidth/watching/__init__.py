"""What whoever runs a deployment can see of it: its devices, its metrics, and the log of who did what."""
