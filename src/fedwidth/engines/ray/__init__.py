"""Workers on one machine or many, with Ray."""
