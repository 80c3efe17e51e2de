"""What `fedwidth export` does, in one call: the trained model of a run, at some width, as a file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from torch import nn

from fedwidth.data import Data
from fedwidth.errors import OptionError
from fedwidth.export.adapters import APART, KEPT, MERGED, check_way, merged, write_apart
from fedwidth.export.formats import check_target, export
from fedwidth.export.load import Taken, runs_of, take
from fedwidth.export.several import take_several
from fedwidth.export.wanted import Wanted


def export_run(
    run: str | Path | Iterable[str | Path],
    out: str | Path,
    *,
    capacity: Wanted | None = None,
    form: str = "safetensors",
    model: nn.Module | None = None,
    data: Data | None = None,
    batch: int | None = None,
    training: bool = False,
    adapters: str = KEPT,
    overwrite: bool = False,
) -> list[Path]:
    """Write the trained model of a run folder as a file, as `fedwidth export` does; what was written, the model first.

    `model` and `data` are those the run was given, where it was given any in Python. `form` is safetensors, torch,
    onnx or executorch; the other arguments are the command's options. Several capacities in a list, or "chosen", give a
    program of models that answer together, and so do several runs in a list, as wholes: `model` and `data` are then
    those of all of them.
    """
    out = Path(out)
    check_way(adapters, form, out, overwrite=overwrite)
    check_target(out, form, overwrite=overwrite or adapters == APART)

    def prepare(taken: Taken) -> Taken:
        return merged(taken) if adapters == MERGED else taken

    runs = runs_of([run] if isinstance(run, (str, Path)) else run, capacity)
    if len(runs) == 1:
        taken = prepare(take(runs[0], capacity, model=model, data=data))
    elif adapters == APART:
        raise OptionError("adapters apart from their model are those of one run: export each run by itself")
    else:
        taken = take_several(runs, model=model, data=data, prepare=prepare)
    if adapters == APART:
        return write_apart(taken, out)
    return export(taken, form, out, batch=batch, training=training, overwrite=overwrite)
