"""`fedwidth fit`: the widest sub-model of a model that a device can train."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from fedwidth.cli.inspect import (
    Heads,
    Json,
    Keep,
    Model,
    Options,
    Rounding,
    Shape,
    Tokens,
    arguments_of,
    naming_other_ways,
    read_input,
)
from fedwidth.cli.tables import print_table
from fedwidth.devices.capacity import parse_capacity
from fedwidth.errors import OptionError

MEGA = 1e6


def fit(
    model: Model,
    memory: Annotated[str, typer.Option("--memory", help="What the process that trains may take, e.g. 512MB.")] = "",
    seconds: Annotated[float, typer.Option("--seconds", help="What a round may take on the device.")] = 0.0,
    upload: Annotated[str, typer.Option("--upload", help="What may be sent after a round, e.g. 5MB.")] = "",
    rate: Annotated[float, typer.Option("--rate", help="Multiply-adds per second of the device, e.g. 4e9.")] = 0.0,
    bandwidth: Annotated[str, typer.Option("--bandwidth", help="Bytes per second, down and up, e.g. 1MB.")] = "",
    device: Annotated[Path | None, typer.Option("--device", help="TOML file of one or several device classes.")] = None,
    gpu: Annotated[bool, typer.Option("--gpu", help="--memory is that of this machine's GPU, which is asked.")] = False,
    measure: Annotated[bool, typer.Option("--measure", help="Time this machine in place of a stated rate.")] = False,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Samples a step.")] = 10,
    samples: Annotated[int, typer.Option("--samples", min=1, help="Samples a round, each as often as seen.")] = 500,
    optimiser: Annotated[str, typer.Option("--optimiser", help="sgd, adam or adamw")] = "sgd",
    precision: Annotated[str, typer.Option("--precision", help="float32, tf32 or bf16, as trained.")] = "tf32",
    capacities: Annotated[str, typer.Option("--capacities", help="Widths to choose from, e.g. 1,1/2,1/4.")] = "",
    uniform: Annotated[bool, typer.Option("--uniform", help="One width for all groups: look for no profile.")] = False,
    rounding: Rounding = "floor",
    shape: Shape = "",
    tokens: Tokens = 0,
    options: Options = None,
    heads: Heads = "within",
    keep: Keep = None,
    as_json: Json = False,
) -> None:
    """For each device class the widest sub-model it can train within its memory, time and upload."""
    import fedwidth.devices.fit as fitting
    from fedwidth.devices.budget import DeviceClass, read_devices

    stated = {"memory": memory, "seconds": seconds, "upload": upload, "rate": rate, "bandwidth": bandwidth}
    given: dict[str, Any] = {name: value for name, value in stated.items() if value}
    if gpu:
        given["gpu"] = True
    if device is not None and given:
        raise OptionError(f"{device} says what devices can spend: leave out {', '.join(f'--{name}' for name in given)}")
    if device is None and not given.keys() & {"memory", "seconds", "upload"}:
        raise OptionError("state at least one budget: --memory, --seconds or --upload, or --device FILE")
    classes = read_devices(device) if device is not None else [DeviceClass.of("device", given)]
    choices = [parse_capacity(text.strip()) for text in capacities.split(",")] if capacities else fitting.CHOICES
    built, example = _built(model, shape, tokens, options, measure)
    with naming_other_ways():
        found = fitting.fit(
            built,
            example,
            devices=classes,
            batch=batch,
            samples=samples,
            optimiser=optimiser,
            precision=precision,
            choices=choices,
            rounding=rounding,
            profiles=not uniform,
            measure=measure,
            heads=heads,
            keep=keep or (),
        )
    if as_json:
        print(json.dumps({"model": model, "batch": batch, "devices": [_record(each) for each in found]}, indent=2))
    else:
        _print(found)


def _built(model: str, shape: str, tokens: int, options: list[str] | None, values: bool) -> tuple[Any, Any]:
    """The model without values, where it can be built so, and what it reads."""
    import torch

    from fedwidth.models import build

    data_shape, example = read_input(model, shape, tokens)
    given = arguments_of(model, data_shape, options)
    if values:
        return build(model, **given), example
    try:
        with torch.device("meta"):
            built = build(model, **given)
        from fedwidth.plan import trace

        example = tuple(tensor.to("meta") for tensor in example)
        trace(built, example)
        return built, example
    except Exception:  # a model that looks at values, while it is built or run
        return build(model, **given), tuple(torch.zeros(t.shape, dtype=t.dtype) for t in example)


def _record(found: Any) -> dict[str, Any]:
    needs = {"needs": found.needs, "profile_needs": found.profile_needs}
    record: dict[str, Any] = {
        "device": asdict(found.device),
        "capacity": None if found.capacity is None else float(found.capacity),
        "limit": found.limit,
        "profile": dict(found.profile),
    }
    for name, each in needs.items():
        if each is not None:
            memory = {**each.memory.parts, "base": each.memory.base, "total": each.memory.total}
            record[name] = {**asdict(each), "memory": memory}
    return record


def _print(found: list[Any]) -> None:
    from fedwidth.devices.budget import show_megabytes
    from fedwidth.devices.fit import why_none_fits

    rows, profiled = [], []
    for each in found:
        lines = [(str(each.capacity) if each.capacity is not None else "none fits", each.needs)]
        if each.profile_needs is not None:
            lines.append(("profile", each.profile_needs))
            profiled.append(each)
        for width, needs in lines:
            rows.append(
                [
                    each.device.name,
                    width,
                    f"{needs.share:.1%}",
                    f"{needs.memory.total / MEGA:,.0f}",
                    "–" if needs.seconds is None else f"{needs.seconds:,.1f}",
                    show_megabytes(needs.upload),
                    each.limit or "none",
                ]
            )
    print_table(["device", "width", "parameters", "memory (MB)", "seconds", "upload (MB)", "limit"], rows)
    for each in found:
        if each.capacity is None:
            print(f"{why_none_fits(each)}; its row shows what that one takes")
    for each in profiled:
        wider = {name: share for name, share in each.profile.items() if share > float(each.capacity)}
        shown = ", ".join(f"{name} = {share:g}" for name, share in wider.items())
        print(f"{each.device.name}: groups that can be wider than {each.capacity}: {shown}")
