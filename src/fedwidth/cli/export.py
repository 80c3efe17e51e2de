"""`fedwidth export`: a run's model of some width, or the models of several runs, as a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def export_model(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Folder of the run; of several runs, whose models answer together (not as safetensors)."),
    ],
    out: Annotated[Path, typer.Option("--out", help="File to write; of a transformers model, a folder.")],
    capacity: Annotated[
        str | None,
        typer.Option(
            "--capacity",
            help="Share of the run's model, as 1/4; else all of it. Several (1,1/2,1/4), or chosen, answer together.",
        ),
    ] = None,
    form: Annotated[
        str, typer.Option("--format", help="safetensors, torch (a torch.export program), onnx or executorch")
    ] = "safetensors",
    batch: Annotated[
        int | None,
        typer.Option("--batch", min=1, help="Samples that a program takes at a time; without it any number, or one."),
    ] = None,
    training: Annotated[
        bool, typer.Option("--training", help="With executorch: a program that trains the model on the device.")
    ] = False,
    adapters: Annotated[
        str,
        typer.Option("--adapters", help="Of a run with adapters: kept, merged into weights, or apart as in peft."),
    ] = "kept",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")] = False,
) -> None:
    """Write the trained model of a run, at some width and ready to use, as a file for other programs and devices.

    The models of several runs are one program, which answers with the mean of their probabilities.
    """
    from fedwidth.export import export_run
    from fedwidth.export.wanted import server_width, settings_of, share

    written = export_run(
        runs[0] if len(runs) == 1 else runs,
        out,
        capacity=tuple(capacity.split(",")) if capacity and "," in capacity else capacity,
        form=form,
        batch=batch,
        training=training,
        adapters=adapters,
        overwrite=overwrite,
    )
    # Who knows devices by the model at full width looks again.
    if len(runs) == 1 and (server := server_width(settings_of(runs[0]))) != 1:
        print(f"capacities are shares of the run's model, {share(server)} of the model at full width", file=sys.stderr)
    for path in written:
        print(path)
