"""Commands that look and do not train: methods, plan, cost, coverage, partition."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any

import typer

from fedwidth.cli.tables import print_table
from fedwidth.devices.capacity import parse_capacity
from fedwidth.errors import OptionError, PlanError
from fedwidth.plan.plan import Plan
from fedwidth.plan.units import check_rounding

Model = Annotated[str, typer.Argument(help="mlp, cnn, lenet, preresnet18, transformer, or package.module:factory")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Shape = Annotated[str, typer.Option("--shape", help="Shape of one input, e.g. 3x32x32.")]
Options = Annotated[list[str] | None, typer.Option("--set", help="Option of the model, key=value.")]
Rounding = Annotated[str, typer.Option("--rounding", help="floor or ceil")]
Tokens = Annotated[int, typer.Option("--tokens", help="Length of one input, for a model that reads tokens.")]
Keep = Annotated[
    list[str] | None, typer.Option("--keep", help="Width group that stays whole, or a pattern such as 'layers.*'.")
]
Rank = Annotated[
    int, typer.Option("--rank", help="Freeze the model and add adapters of this rank, which capacities are shares of.")
]
Targets = Annotated[
    list[str] | None, typer.Option("--target", help="Layer that gets an adapter, or a pattern; else all but the last.")
]
Heads = Annotated[str, typer.Option("--heads", help="Slice inside attention heads (within) or whole heads (whole).")]
Seed = Annotated[int, typer.Option("--seed", help="What is random comes from it.")]


def list_methods(as_json: Json = False) -> None:
    """List the methods by family: what clients hold and send, what the server needs, paper, equation and options."""
    from fedwidth.methods import methods
    from fedwidth.methods.lookup.families import HOLDS, traits_of

    traits = {name: traits_of(method) for name, method in methods().items()}
    if as_json:
        print(
            json.dumps(
                {
                    m.name: {
                        "title": m.title,
                        "paper": m.paper,
                        "equation": m.equation,
                        "options": {
                            n: {"default": o.default, "allowed": o.allowed, "help": o.help}
                            for n, o in m.options.items()
                        },
                        **asdict(traits[m.name]),
                    }
                    for m in methods().values()
                },
                indent=2,
            )
        )
        return
    rows = [
        [
            m.name,
            traits[m.name].family,
            traits[m.name].holds,
            traits[m.name].sends,
            "yes" if traits[m.name].architectures else "no",
            "yes" if m.public else "no",
            traits[m.name].secure_sums,
        ]
        for m in sorted(methods().values(), key=lambda m: (list(HOLDS).index(traits[m.name].family), m.name))
    ]
    columns = ["method", "family", "a client holds", "and sends", "architectures", "public data", "secure sums"]
    print_table(columns, rows)
    print()
    shown = {m.name: ", ".join(f"{n}={_show(o.default)}" for n, o in m.options.items()) for m in methods().values()}
    papers = {m.name: f"{m.paper}, {m.equation}" for m in methods().values()}
    named = [[row[0], papers[row[0]], shown[row[0]] or "–"] for row in rows]
    print_table(["method", "paper", "options and their defaults"], named)


def show_plan(
    model: Model,
    shape: Shape = "",
    tokens: Tokens = 0,
    options: Options = None,
    heads: Heads = "within",
    keep: Keep = None,
    rank: Rank = 0,
    targets: Targets = None,
) -> None:
    """Show which axes of a model share a width, and what a device of each capacity really has."""
    _, plan, _ = _traced(model, shape, options, heads, tokens=tokens, keep=keep, rank=rank, targets=targets)
    print(plan)


def show_cost(
    model: Model,
    capacities: Annotated[str, typer.Option("--capacities", help="Comma-separated, e.g. 1,1/2,1/4")] = (
        "1,1/2,1/4,1/8,1/16"
    ),
    rounding: Rounding = "floor",
    shape: Shape = "",
    tokens: Tokens = 0,
    options: Options = None,
    heads: Heads = "within",
    keep: Keep = None,
    rank: Rank = 0,
    targets: Targets = None,
    as_json: Json = False,
) -> None:
    """Parameters, multiply-adds and bytes of the sub-model of each capacity."""
    from fedwidth.core.cost import average, cost

    built, plan, example = _traced(model, shape, options, heads, tokens=tokens, keep=keep, rank=rank, targets=targets)
    texts = [text.strip() for text in capacities.split(",")]
    costs = cost(built, plan, example, [parse_capacity(text) for text in texts], rounding=rounding)
    labels = [*texts, "average"]
    records: list[dict[str, Any]] = [
        {
            "capacity": label if label == "average" else c.capacity,
            "parameters": c.parameters,
            "bytes": c.bytes,
            "megabytes": c.bytes / 2**20,
            "macs": c.macs,
            "operations": c.operations,
            "buffer_bytes": c.buffer_bytes,
            "activation_bytes": c.activation_bytes,
            "share": c.share,
            "trained_bytes": c.trained_bytes,
            "frozen_bytes": c.frozen_bytes,
            "bytes_down": c.bytes_down,
            "bytes_up": c.bytes_up,
        }
        for label, c in zip(labels, [*costs, average(costs)], strict=True)
    ]
    if as_json:
        print(json.dumps({"model": model, "rounding": rounding, "costs": records}, indent=2))
        return
    rows = [
        [
            label,
            f"{r['parameters'] / 1e6:.5g}",
            f"{r['megabytes']:.2f}",
            f"{r['macs'] / 1e6:.2f}",
            f"{r['operations'] / 1e6:.6g}",
            f"{r['activation_bytes'] / 2**20:.2f}",
            f"{r['share']:.2%}",
        ]
        for label, r in zip(labels, records, strict=True)
    ]
    sizes = ["parameters (M)", "MiB", "multiply-adds (M)", "operations* (M)", "activations (MiB)"]
    if rank:  # what is frozen is sent once, and what a rank does not save stands beside what it does
        sizes += ["trained (MiB)", "sent once (MiB)"]
        for row, r in zip(rows, records, strict=True):
            row[-1:-1] = [f"{r[key] / 2**20:.2f}" for key in ("trained_bytes", "frozen_bytes")]
    print_table(["capacity", *sizes, "share"], rows)
    print("Per sample; MiB = 2^20 bytes, a paper's MB. * as FedRolex Table 7 counts: four more per normalised element.")


def show_coverage(
    model: Model,
    method: Annotated[str, typer.Option("--method", help="Method, as listed by `fedwidth methods`.")] = "fedrolex",
    capacity: Annotated[str, typer.Option("--capacity", help="Capacity of the clients; several: 1,1/4")] = "1/4",
    rounds: Annotated[int, typer.Option("--rounds", help="Rounds to count over.")] = 512,
    seed: Seed = 0,
    rounding: Rounding = "floor",
    shape: Shape = "",
    tokens: Tokens = 0,
    options: Options = None,
    heads: Heads = "within",
    method_options: Annotated[
        list[str] | None, typer.Option("--option", help="Option of the method, key=value.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Share of weights ever trained, evenness, rounds to full coverage, beside the theory."""
    from fedwidth.analysis import coverage as measuring
    from fedwidth.methods import method as find_method

    _, plan, _ = _traced(model, shape, options, heads, tokens=tokens)
    given = pairs_of(method_options)
    check_rounding(rounding)  # also where the method has no use for it
    if "rounding" in find_method(method).options:
        given = {"rounding": rounding, **given}
    wanted, chosen = [parse_capacity(text) for text in capacity.split(",")], find_method(method, **given)
    if chosen.adapters:
        raise OptionError(f"{chosen.title} hands out ranks of adapters: coverage is of methods that slice a model")
    measured = measuring.measure_coverage(plan, chosen, wanted, rounds, seed=seed)
    indices = max(group.size for group in plan.groups.values())
    theory = {
        "indices": indices,
        "rolling_rounds": measuring.rolling_rounds(indices),
        "random_rounds_exact": measuring.random_rounds_exact(indices),
        "random_rounds_integral": measuring.random_rounds_integral(indices),
        "random_rounds_order": measuring.random_rounds_order(indices),
    }
    if as_json:
        record = {
            "method": method,
            "capacities": wanted,
            "rounds": rounds,
            "share": measured.share(),
            "share_by_kind": {kind: measured.share(kind) for kind in measured.kinds},
            "evenness": measured.evenness,
            "full_after": measured.full_after,
            "share_by_round": measured.share_by_round,
            "tensors": {t.name: t.share for t in measured.tensors},
            "theory": theory,
        }
        print(json.dumps(record, indent=2))
        return
    rows = [[t.name, "x".join(map(str, t.shape)), f"{t.share:.1%}"] for t in measured.tensors]
    rows += [[f"all {kind}", "", f"{measured.share(kind):.1%}"] for kind in measured.kinds]
    rows.append(["all weights", "", f"{measured.share():.1%}"])
    print_table(["tensor", "shape", "trained at least once"], rows)
    reached = f"not every weight trained within {rounds} rounds"
    if measured.full_after:
        reached = f"every weight trained after {measured.full_after} rounds"
    print(f"{method} at {capacity}: {reached}; evenness {measured.evenness:.3f} (1 = all equally often)")
    print(
        f"Theory (FedRolex A.1) for I = {indices} units, each chosen once: rolling {theory['rolling_rounds']} rounds;"
        f" random {theory['random_rounds_exact']:.1f} (Lemma 1), {theory['random_rounds_integral']:.1f} (Lemma 2),"
        f" order {theory['random_rounds_order']:.1f}"
    )


def show_partition(
    data: Annotated[
        str,
        typer.Argument(
            help="digits, mnist, cifar10, cifar100, text, stackoverflow, synthetic_text, or package.module:function"
        ),
    ] = "digits",
    kind: Annotated[
        str,
        typer.Option(
            "--kind", help="iid, labels, random_labels (the thesis), dirichlet, natural, or package.module:function"
        ),
    ] = "iid",
    clients: Annotated[int, typer.Option("--clients", help="Number of clients.")] = 10,
    seed: Seed = 1,
    validation: Annotated[
        float, typer.Option("--validation", help="Share of the training data that no client trains on.")
    ] = 0.0,
    options: Annotated[list[str] | None, typer.Option("--set", help="Option of the partition, key=value.")] = None,
    root: Annotated[str, typer.Option("--data", help="Folder of the data.")] = "",
) -> None:
    """Picture of which client has which labels."""
    from fedwidth.data import load, make_partition, partition_picture

    loaded = load(data, root or None)
    dealt = make_partition(loaded, kind, clients, seed, validation=validation, **pairs_of(options))
    print(partition_picture(loaded, dealt))


def _traced(
    model: str,
    shape: str,
    options: list[str] | None,
    heads: str,
    *,
    tokens: int = 0,
    keep: list[str] | None = None,
    rank: int = 0,
    targets: list[str] | None = None,
) -> tuple[Any, Plan, Any]:
    from fedwidth.adapters import adapt
    from fedwidth.models import build
    from fedwidth.plan import trace

    data_shape, example = read_input(model, shape, tokens)
    built = build(model, **arguments_of(model, data_shape, options))
    if targets and not rank:
        raise OptionError("--target names layers that get an adapter, so --rank must be above 0")
    with naming_other_ways():
        if rank:
            built = adapt(built, rank, targets or ())
            plan = trace(built, example, heads=heads)
            keep = [*(keep or ()), *(name for name in plan.groups if name not in plan.rank_groups)]
        return built, trace(built, example, heads=heads, keep=keep or ()), example


@contextmanager
def naming_other_ways() -> Iterator[None]:
    """A model that fails on what the command gave it is told of with the ways to give it something else."""
    try:
        yield
    except PlanError as error:
        if error.__cause__ is None:  # it ran, and something else is wrong with it
            raise
        raise PlanError(
            f"{error}; commands give a model one tensor, which --shape or --tokens says: for several inputs or others"
            " use fedwidth.trace and fedwidth.fit in Python, or devices.budgets in a recipe"
        ) from error.__cause__


def arguments_of(model: str, data_shape: tuple[int, ...] | None, options: list[str] | None) -> dict[str, Any]:
    """What a model is built with: what was given, which must be all that it asks for."""
    from fedwidth.models.catalogue import lacking

    given = {"data_shape": data_shape, **pairs_of(options)}
    if missing := lacking(model, given):
        add = " ".join(f"--set {name}=…" for name in missing)
        raise OptionError(f"model '{model}' asks for {' and '.join(missing)}: give {add}")
    return given


MAX_NUMBERS = 2**28
"""An example is two inputs of up to so many numbers, which take 2 GiB."""


def read_input(model: str, shape: str, tokens: int) -> tuple[tuple[int, ...] | None, tuple[Any, ...]]:
    """The shape that --shape states, None where it states none, and an example of what the model reads."""
    import torch

    from fedwidth.models import example_inputs, needs_shape

    data_shape = _parse_shape(shape)
    if tokens < 0 or (tokens and shape):
        raise OptionError("--tokens is the length of one input, instead of --shape")
    if not (tokens or shape) and needs_shape(model):
        raise OptionError(f"what model '{model}' reads is not known: give --shape, e.g. 3x32x32, or --tokens, e.g. 20")
    if (numbers := tokens or math.prod(data_shape or ())) > MAX_NUMBERS:
        asked = f"--tokens is {tokens:,}" if tokens else f"--shape is {shape}, {numbers:,} numbers"
        raise OptionError(f"{asked}: an input may have up to {MAX_NUMBERS:,}")
    if tokens:
        return data_shape, (torch.zeros(2, tokens, dtype=torch.long),)
    return data_shape, example_inputs(model, data_shape=data_shape)


def _parse_shape(text: str) -> tuple[int, ...] | None:
    if not text:
        return None
    try:
        shape = tuple(int(part) for part in text.replace(",", "x").split("x"))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise OptionError(f"--shape must be whole numbers such as 3x32x32, not '{text}'")
    return shape


def pairs_of(given: list[str] | None) -> dict[str, Any]:
    """The options that --set gives, by name."""
    from fedwidth.config.read import parse_override

    pairs: dict[str, Any] = {}
    for text in given or []:
        pairs |= parse_override(text)
    return pairs


def _show(value: Any) -> str:
    return ", ".join(f"{v:g}" for v in value) if isinstance(value, (tuple, list)) else str(value)
