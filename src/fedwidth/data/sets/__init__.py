"""The data sets by name, and how their files are found and read."""
