"""A deployment as a folder: written, checked and started, its devices enrolled and revoked."""
