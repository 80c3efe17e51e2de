"""The section about all methods side by side: one setting, one seed, as far as it has been run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fedwidth.analysis.wording import over_seeds
from fedwidth.methods import methods
from fedwidth.methods.lookup.families import traits_of
from fedwidth.reproduce.records import Record, by_experiment
from reproduction.cells import find_cells
from reproduction.markdown import make_table
from reproduction.yardsticks import Measured, Yardsticks

RECIPE = "benchmark/cifar10-all-methods"
ABOUT = (
    "CIFAR-10 with 5 labels per client, devices of five fixed sizes, 100 rounds, at most 100 batches of distillation"
    " in each, every method with its defaults (but for PriSM's weight decay of 1e-4 and FedHM's `keep_first = 0`)"
    " and the same learning rate"
    f" (`{RECIPE}`, jobs `all-methods-cifar10-…` of"
    " `results/queue.toml`). A first look and no comparison: nothing was chosen for any of them, and FedAvg, FedProx,"
    " SCAFFOLD and FedBE train the whole model on every device, so that FedAvg is the yardstick *full for all*. Clients"
    " take four local steps a round, which teachers need more than averages do:"
    " [FedDF](methods/feddf.md#how-long-clients-train) shows what longer training changes."
    " [FedGKT](methods/fedgkt.md) is first because its server trains on features of all samples with their labels, as"
    " if data were in one place: it saves devices work and keeps nothing private."
)


def all_methods_texts(records: Sequence[Record], yardsticks: Yardsticks) -> Iterator[str]:
    """The paragraphs of the section: what it is, the methods that were run, the best first, and which were not."""
    cells = find_cells(RECIPE, by_experiment(records), {})
    done = sorted((cell for cell in cells if cell.records), key=lambda cell: -(cell.ours or 0.0))
    yield "## All methods"
    yield ABOUT
    if done:
        more, measured = yardsticks.columns([Measured(cell.run.settings, cell.by_seed) for cell in done])
        rows = []
        for cell, measures in zip(done, measured, strict=True):
            method = methods()[cell.run.settings.method.name]
            own = [100 * each.local_accuracy for each in cell.records if each.local_accuracy is not None]
            seeds = ", ".join(str(each.seed) for each in cell.records)
            known = [over_seeds(cell.final), over_seeds(own) if own else "–", seeds]
            rows.append([method.title, traits_of(method).family, *known, *measures])
        yield make_table(["method", "family", "last round", "clients' own data", "seeds", *more], rows, left=2)
    left = [methods()[cell.run.settings.method.name].title for cell in cells if not cell.records]
    if left:
        yield f"Not run yet: {', '.join(left)}." if done else f"None of its {len(left)} runs has been made yet."
