"""Records of runs that nobody had to train, and cells of tables that are made of them."""

from dataclasses import replace

from reproduction.cells import Cell

from fedwidth.config.recipe import Paper, Variant
from fedwidth.reproduce.records import make_record
from small_runs import small


def record(settings, *, label="run", final=0.5, best=None, seconds=10.0, steps=100):
    """A run of three rounds that ended with this accuracy."""
    lines = [
        {"round": 1, "seconds": seconds / 2},
        {"round": 2, "global_accuracy": best or final, "global_loss": 1 / 3, "seconds": seconds},
        {"round": 3, "global_accuracy": final, "local_accuracy": 0.75, "global_loss": None, "seconds": seconds},
    ]
    return make_record("table", label, settings, changes=["device=cpu"], metrics=lines, steps=steps)


def cell(label, number, *ours, spread=None, best=False, settings=None):
    """A cell with these accuracies in percent, one a seed."""
    records = tuple(record(replace(settings or small(), seed=s), final=a / 100) for s, a in enumerate(ours, 1))
    paper = Paper(table="T", number=number, spread=spread, best=best)
    return Cell(Variant(label, settings or small(), paper), records)
