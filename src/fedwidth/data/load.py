"""The one entry to data sets by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedwidth.data.records import Data
from fedwidth.data.sets.cifar import load_cifar10, load_cifar100
from fedwidth.data.sets.digits import load_digits
from fedwidth.data.sets.mnist import load_mnist
from fedwidth.data.sets.stackoverflow import load_stackoverflow
from fedwidth.data.sets.synthetic import load_synthetic_text
from fedwidth.data.sets.text import load_text
from fedwidth.errors import unknown

SETS: dict[str, Callable[..., Data]] = {
    "digits": load_digits,
    "mnist": load_mnist,
    "cifar10": load_cifar10,
    "cifar100": load_cifar100,
    "text": load_text,
    "stackoverflow": load_stackoverflow,
    "synthetic_text": load_synthetic_text,
}


def load(name: str, root: str | Path | None = None, *, download: bool = True, **options: Any) -> Data:
    """Load a data set by name: looked for in `root`, else $FEDWIDTH_DATA, then the cache; else downloaded.

    Each set's options are the keyword arguments of its loader (`fedwidth.data.load.SETS`).

    >>> data = load("digits")
    >>> data.shape, data.classes, len(data.train), len(data.test)
    ((1, 8, 8), 10, 1442, 355)
    """
    if name not in SETS:
        raise unknown("data set", name, SETS)
    loader = SETS[name]
    allowed = options_of(name)
    for option in options:
        if option not in allowed:
            raise unknown(f"option of data set '{name}'", option, allowed)
    given = {"root": root, "download": download}
    accepted = inspect.signature(loader).parameters
    return loader(**{key: value for key, value in given.items() if key in accepted}, **options)


def options_of(name: str) -> dict[str, Any]:
    """The options of a data set and their defaults.

    >>> options_of("cifar10")
    {'base_url': None, 'augment': True}
    """
    if name not in SETS:
        raise unknown("data set", name, SETS)
    parameters = inspect.signature(SETS[name]).parameters
    return {key: p.default for key, p in parameters.items() if key not in ("root", "download")}
