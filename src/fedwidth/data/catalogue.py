"""The one entry to data sets by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedwidth.data.own import UNNAMED, from_dataset
from fedwidth.data.records import Data
from fedwidth.data.sets.cifar import load_cifar10, load_cifar100
from fedwidth.data.sets.digits import load_digits
from fedwidth.data.sets.mnist import load_mnist
from fedwidth.data.sets.stackoverflow import load_stackoverflow
from fedwidth.data.sets.synthetic import load_synthetic_text
from fedwidth.data.sets.text import load_text
from fedwidth.errors import DataError, FedwidthError, OptionError, unknown
from fedwidth.importing import find_function, what_failed

SETS: dict[str, Callable[..., Data]] = {
    "digits": load_digits,
    "mnist": load_mnist,
    "cifar10": load_cifar10,
    "cifar100": load_cifar100,
    "text": load_text,
    "stackoverflow": load_stackoverflow,
    "synthetic_text": load_synthetic_text,
}


def load(
    name: str, root: str | Path | None = None, *, download: bool = True, cache: int | None = None, **options: Any
) -> Data:
    """Load a data set by name: looked for in `root`, else $FEDWIDTH_DATA, then the cache; else downloaded.

    Each set's options are the keyword arguments of its loader (`fedwidth.data.catalogue.SETS`). The name may also be
    that of a function of yours, `package.module:function`: it gets the options, and `root` where it asks for it, and
    returns `Data` or two map-style data sets, one to train with and one to test with. Those are read into memory, or
    with `cache` when they are asked for, at most so many MiB being held (see `from_dataset`).

    >>> data = load("digits")
    >>> data.shape, data.classes, len(data.train), len(data.test)
    ((1, 8, 8), 10, 1442, 355)
    """
    loader = find_function("data set", name, SETS)
    if name in SETS and cache is not None:
        raise OptionError(f"data.cache is for data sets of your own, and '{name}' is not: leave it out")
    allowed = options_of(name)
    for option in options:
        if option not in allowed:
            raise unknown(f"option of data set '{name}'", option, allowed)
    given = {"root": root, "download": download}
    accepted = inspect.signature(loader).parameters
    known = {key: value for key, value in given.items() if key in accepted}
    if name in SETS:
        return SETS[name](**known, **options)
    known = {key: value for key, value in known.items() if value is not None}  # what is not given has its own default
    return _own(name, loader, {**known, **options}, cache)


def options_of(name: str) -> dict[str, Any]:
    """The options of a data set and their defaults.

    >>> options_of("cifar10")
    {'base_url': None, 'normalise': True, 'mirror': False, 'augment': True}
    """
    parameters = inspect.signature(find_function("data set", name, SETS)).parameters
    return {key: p.default for key, p in parameters.items() if key not in ("root", "download")}


def _own(name: str, loader: Callable[..., Any], arguments: Mapping[str, Any], cache: int | None) -> Data:
    """What a function of the user's own gives; without a name of its own it has the function's."""
    title = name.partition(":")[2]
    try:
        found = loader(**arguments)
    except FedwidthError:
        raise
    except Exception as error:  # it may do anything
        raise DataError(f"data set '{name}' could not be loaded: {what_failed(error)}") from error
    if isinstance(found, Data):
        if cache is not None and not found.is_lazy:
            raise OptionError(
                f"data.cache is for data sets that are read as they are needed, but '{name}' returns data in memory"
            )
        return replace(found, name=title) if found.name in UNNAMED else found
    if not isinstance(found, tuple) or len(found) != 2:
        raise DataError(
            f"data set '{name}' must return fedwidth.data.Data, or a pair of data sets to train and to test with, not a"
            f" {type(found).__name__}"
        )
    return from_dataset(*found, name=title, cache=cache)
