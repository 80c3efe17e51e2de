"""The server's step from its old state to the aggregate of a round, whoever trained it.

Plain averaging takes the aggregate as it is. The server optimisers (Reddi et al. 2021) treat aggregate - old as a
gradient. Elements whose aggregate equals their old value, above all those nobody trained, are left alone by all of
them: neither moved by old momentum nor their moments decayed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from fedwidth.errors import StateError
from fedwidth.settings import ServerSettings


def server_step(
    old: Mapping[str, Tensor],
    aggregate: Mapping[str, Tensor],
    settings: ServerSettings,
    *,
    round: int = 0,
    moments: Mapping[str, Tensor] | None = None,
    trained: Collection[str] | None = None,
) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
    """The new state and the optimiser's new moments; neither the old state nor the old moments are changed.

    `moments` are what the last call returned, and nothing in the first round. `trained` names the parameters, as
    `plan.parameters` does: all other tensors take the aggregate as it is. None: all of floating point are parameters.

    >>> old, average = {"w": torch.tensor([0.0, 5.0])}, {"w": torch.tensor([1.0, 5.0])}
    >>> momentum = ServerSettings(optimiser="fedavgm", momentum=0.5)
    >>> state, moments = server_step(old, average, momentum)
    >>> state, _ = server_step(state, {"w": torch.tensor([2.0, 5.0])}, momentum, round=1, moments=moments)
    >>> state["w"]
    tensor([2.5000, 5.0000])
    """
    _check_alike(old, aggregate)
    return take_step(old, aggregate, settings, round=round, moments=moments or {}, trained=trained)


def take_step(
    old: Mapping[str, Tensor],
    aggregate: Mapping[str, Tensor],
    settings: ServerSettings,
    *,
    round: int,
    moments: Mapping[str, Tensor],
    trained: Collection[str] | None,
) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
    """As `server_step`, for an aggregate that is known to fit the old state."""
    rate = step_size(settings, round)
    if settings.optimiser == "plain" and rate == 1.0:
        return aggregate, moments
    names = [name for name, tensor in aggregate.items() if tensor.is_floating_point()] if trained is None else trained
    state, found = dict(aggregate), dict(moments)
    for name in (name for name in aggregate if name in names):
        step = _step(name, aggregate[name] - old[name], found, settings)
        state[name] = old[name] + rate * step
    return state, found


def _check_alike(old: Mapping[str, Tensor], aggregate: Mapping[str, Tensor]) -> None:
    """Refuse an aggregate of other tensors than the old state's."""
    for name in (*old, *aggregate):
        if name not in aggregate:
            raise StateError(f"the aggregate lacks '{name}' {tuple(old[name].shape)} of the old state")
        if name not in old:
            raise StateError(f"the aggregate holds '{name}', which the old state lacks; is it of another model?")
        if old[name].shape != aggregate[name].shape:
            shapes = f"{tuple(aggregate[name].shape)}, in the old state {tuple(old[name].shape)}"
            raise StateError(f"the aggregate has another shape for '{name}': {shapes}")


def step_size(settings: ServerSettings, round: int) -> float:
    """The server step of a round: it shrinks every `lr_every` rounds, up to round `lr_until`.

    >>> [step_size(ServerSettings(lr_decay=0.5, lr_every=10, lr_until=20), round) for round in (0, 9, 10, 20, 90)]
    [1.0, 1.0, 0.5, 0.25, 0.25]
    """
    last = min(round, settings.lr_until) if settings.lr_until else round
    return settings.lr * settings.lr_decay ** (last // settings.lr_every)


def _step(name: str, delta: Tensor, moments: dict[str, Tensor], settings: ServerSettings) -> Tensor:
    """The direction the optimiser takes for this change, updating its moments."""
    if settings.optimiser == "plain":
        return delta
    moved = delta != 0
    first = moments.get(f"first.{name}", torch.zeros_like(delta))
    if settings.optimiser == "fedavgm":
        first = torch.where(moved, settings.momentum * first + delta, first)
        moments[f"first.{name}"] = first
        return torch.where(moved, first, 0.0)
    first = torch.where(moved, settings.momentum * first + (1 - settings.momentum) * delta, first)
    square, keep = delta.square(), settings.second_moment
    second = moments.get(f"second.{name}", torch.zeros_like(delta))
    if settings.optimiser == "fedadam":
        second = torch.where(moved, keep * second + (1 - keep) * square, second)
    else:  # fedyogi
        second = second - (1 - keep) * square * torch.sign(second - square)
    moments[f"first.{name}"], moments[f"second.{name}"] = first, second
    return torch.where(moved, first / (second.sqrt() + settings.epsilon), 0.0)
