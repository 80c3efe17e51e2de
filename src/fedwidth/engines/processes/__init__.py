"""Several CPU workers on this machine, one process and one thread each."""
