"""A run's adapters merged into its model, or apart from it, as `peft` has them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedwidth.adapters import merge, save
from fedwidth.adapters.averages import MOVE_FROZEN
from fedwidth.config.build import trace_model
from fedwidth.config.method_settings import method_of
from fedwidth.errors import OptionError, unknown
from fedwidth.export.load import Taken
from fedwidth.plan.adapters import find_adapters
from fedwidth.settings import AdapterSettings

KEPT, MERGED, APART = "kept", "merged", "apart"
WAYS = (KEPT, MERGED, APART)


def check_way(way: str, form: str, out: Path, *, overwrite: bool) -> None:
    """Refuse a way there is not, and a place where something else would be lost."""
    if way not in WAYS:
        raise unknown("way to write adapters", way, WAYS)
    if way == APART and form != "safetensors":
        raise OptionError(f"adapters apart from their model are a folder of safetensors, not {form}")
    if way == APART and out.exists() and not overwrite:
        raise OptionError(f"{out} is there already; give --overwrite (in Python overwrite=True) or another --out")


def merged(taken: Taken) -> Taken:
    """The same model without adapters: what they add is in its weights."""
    _check(taken)
    settings, model = replace(taken.settings, adapter=AdapterSettings()), merge(taken.model).eval()
    plan = replace(trace_model(model, taken.data.example(), settings, taken.objective), before=taken.plan.before)
    counts = {name: group.size for name, group in plan.groups.items()}
    return replace(taken, model=model, settings=settings, plan=plan, counts=counts, capacity=1.0)


def write_apart(taken: Taken, out: Path) -> list[Path]:
    """Write the adapters alone into a folder that `peft` and `fedwidth.adapters.load` open."""
    _check(taken)
    method = method_of(taken.settings)
    if method.moves_frozen or taken.settings.adapter.average in MOVE_FROZEN:
        raise OptionError(
            f"{taken.folder} also trained what lies under its adapters ({method.title}, adapter.average ="
            f" '{taken.settings.adapter.average}'): apart from it they are another model; export them merged"
        )
    save(taken.model, out)
    return sorted(out.iterdir())


def _check(taken: Taken) -> None:
    if not find_adapters(taken.model):
        raise OptionError(f"{taken.folder} holds a run without adapters")
    if taken.together:
        raise OptionError("models that answer together keep their adapters: export them as they are, or one width")
    if taken.plan.groups.keys() - taken.plan.rank_groups and taken.capacity != 1:
        raise OptionError("a model whose widths are sliced too keeps its adapters: export it as it is, or whole")
