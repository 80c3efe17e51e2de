"""A deployment as a folder: made, checked, started, and its devices let in and out."""
