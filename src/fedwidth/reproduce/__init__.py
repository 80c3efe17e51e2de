"""Published tables run again: jobs, the queue, and the record of every finished run."""
