"""Out of a run: its model at any width, ready to use, and files of it for other programs and devices."""
