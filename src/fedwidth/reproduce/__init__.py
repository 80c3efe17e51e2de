"""Published tables run again: which runs they have, the queue of experiments, and the record of every finished run."""
