"""Several runs as one batch: they advance in step, and each writes what it would write alone."""

from fedwidth.run.lockstep.loop import run_in_lockstep

__all__ = ["run_in_lockstep"]
