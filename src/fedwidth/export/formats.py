"""Files of a model for other programs, each written whole or not at all, with a card beside it.

safetensors   the weights, and a JSON file that says how to build the model; of a model of the transformers package, a
              folder that `from_pretrained` opens
torch         a `torch.export` program (.pt2), which runs without the model's code and holds no pickle
onnx          for ONNX Runtime and what else reads ONNX; needs the extra fedwidth[onnx]
executorch    for ExecuTorch on phones and boards; needs the package executorch
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from fedwidth.errors import OptionError, PlanError, StateError, unknown
from fedwidth.export.card import card
from fedwidth.export.hugging_face import is_hugging_face, save_folder
from fedwidth.export.load import Taken
from fedwidth.export.program import Program, as_program
from fedwidth.export.tensors import as_bytes, recipe_of
from fedwidth.export.training_program import training_program
from fedwidth.files import make_folder_of, write_whole
from fedwidth.importing import one_line
from fedwidth.run.folder import refuse_files_of_run


@dataclass(frozen=True)
class Made:
    """The bytes of a file, and what there is to know about them."""

    content: bytes
    notes: tuple[str, ...] = ()


def as_torch(taken: Taken, batch: int | None) -> Made:
    """The model as a `torch.export` program."""
    program = _program(taken, batch, by_name=True)
    # Example inputs would be stored as a pickle; they are no part of the program.
    program.exported.example_inputs = None
    buffer = io.BytesIO()
    extra = {RECIPE: json.dumps(recipe_of(taken))}
    torch.export.save(program.exported, buffer, extra_files=extra)
    return Made(buffer.getvalue(), (_batch_note(program),))


def as_onnx(taken: Taken, batch: int | None) -> Made:
    """The model as ONNX."""
    _needed("onnx", "onnxscript", extra="pip install 'fedwidth[onnx]'")
    program = _program(taken, batch)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), _silence():
        warnings.simplefilter("ignore")
        path = Path(folder) / "model.onnx"
        try:
            made = torch.onnx.export(
                program.exported, dynamo=True, verbose=False, input_names=list(program.names), output_names=["answer"]
            )
            assert made is not None
            made.save(path, external_data=False)
        except Exception as error:  # an operator that ONNX does not have
            raise PlanError(f"ONNX cannot hold this model: {one_line(error)}") from error
        return Made(path.read_bytes(), (_batch_note(program),))


def as_executorch(taken: Taken, batch: int | None) -> Made:
    """The model as an ExecuTorch program, for the CPU of a phone: XNNPACK where it can, portable kernels elsewhere."""
    _needed("executorch.exir", extra="pip install executorch, in an environment of its own")
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    program = _program(taken, batch or 1)  # memory is planned beforehand, so the batch has one size
    with warnings.catch_warnings(), _silence():
        warnings.simplefilter("ignore")
        try:
            lowered = to_edge_transform_and_lower(program.exported, partitioner=[XnnpackPartitioner()])
            content = bytes(lowered.to_executorch().buffer)
        except Exception as error:  # an operator that ExecuTorch does not have
            raise PlanError(f"ExecuTorch cannot hold this model: {one_line(error)}") from error
    return Made(content, (_batch_note(program),))


def as_executorch_training(taken: Taken, batch: int | None) -> Made:
    """A training step of the model as an ExecuTorch program."""
    if taken.together or taken.several:
        raise OptionError(
            "a program that trains holds one model, and not several that answer together: name one run and one width"
        )
    _needed("executorch.exir", "executorch.extension.training", extra="pip install executorch, in its own environment")
    size = batch or taken.settings.training.batch_size
    with _silence():
        content = training_program(taken, size)
    note = (
        f"The program trains: it takes {size} inputs and their targets, and gives the loss, the answer and gradients."
    )
    return Made(content, (note,))


def as_safetensors(taken: Taken, batch: int | None) -> Made:
    """The model's weights."""
    if batch is not None:
        raise OptionError("--batch is for formats that hold a program, and safetensors holds weights")
    return Made(as_bytes(taken), ("`fedwidth.load(FILE)` opens it; the JSON file beside it says how it is built.",))


FORMATS: dict[str, Callable[[Taken, int | None], Made]] = {
    "safetensors": as_safetensors,
    "torch": as_torch,
    "onnx": as_onnx,
    "executorch": as_executorch,
}
TRAINING = {"executorch": as_executorch_training}
"""Formats in which a model can be trained."""
RECIPE = "fedwidth.json"
"""What says how the model is built, in a program and in a folder."""


def check_target(out: Path, form: str, *, overwrite: bool) -> None:
    """Refuse a format there is not, and a place where something else would be lost; writes nothing."""
    if form not in FORMATS:
        raise unknown("format", form, FORMATS)
    if not out.name:
        raise OptionError(f"--out is {out}, a folder; give the name of a file in it")
    there = next(folder for folder in out.parents if folder.exists())
    if not there.is_dir():
        raise OptionError(f"--out is {out}, but {there} is no folder")
    refuse_files_of_run(out, *_beside(out, form))
    for path in (out, *_beside(out, form)):
        if path.exists() and not overwrite:
            raise OptionError(f"{path} is there already; give --overwrite (in Python overwrite=True) or another --out")


def export(
    taken: Taken,
    form: str,
    out: Path,
    *,
    batch: int | None = None,
    training: bool = False,
    overwrite: bool = False,
) -> list[Path]:
    """Write a model that was taken out of a run in a format; what was written, the model first."""
    check_target(out, form, overwrite=overwrite)
    if training and form not in TRAINING:
        raise OptionError(f"a program that trains is written as {', '.join(TRAINING)}, not as {form}")
    if form == "safetensors" and is_hugging_face(taken.model):
        return _export_folder(taken, out)
    if out.is_dir():
        raise OptionError(f"--out is {out}, a folder; a {form} model is a file")
    made = (TRAINING if training else FORMATS)[form](taken, batch)
    texts = {out.with_name(f"{out.name}.md"): card(taken, form=form, notes=made.notes)}
    if form == "safetensors":
        texts[out.with_name(f"{out.name}.json")] = json.dumps(recipe_of(taken), indent=2) + "\n"
    make_folder_of(out)
    for path, text in texts.items():
        write_whole(path, text)
    write_whole(out, made.content)  # last: where the model is, all of it is
    return [out, *texts]


def _export_folder(taken: Taken, out: Path) -> list[Path]:
    """A folder as the transformers package has it."""
    if out.suffix:
        raise OptionError(f"--out is {out.name}, but a model of the transformers package is a folder: give its name")
    if out.is_dir() and any(out.iterdir()) and not (out / RECIPE).is_file():
        raise OptionError(f"--out is {out}, a folder that `fedwidth export` did not write, and so does not replace")
    note = f"`{type(taken.model).__name__}.from_pretrained(FOLDER)` opens it."
    make_folder_of(out)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as beside:
        made = Path(beside) / "model"
        save_folder(taken.model, made, taken.data.example())
        (made / "README.md").write_text(card(taken, form="transformers folder", notes=(note,)), encoding="utf-8")
        (made / RECIPE).write_text(json.dumps(recipe_of(taken), indent=2) + "\n", encoding="utf-8")
        try:
            if out.exists():
                shutil.rmtree(out) if out.is_dir() else out.unlink()
            os.replace(made, out)
        except OSError as error:
            raise StateError(f"cannot write {out}: {error.strerror or error}") from error
    return [out]


def _beside(out: Path, form: str) -> list[Path]:
    names = [f"{out.name}.md", *([f"{out.name}.json"] if form == "safetensors" else [])]
    return [out.with_name(name) for name in names]


def _program(taken: Taken, batch: int | None, *, by_name: bool = False) -> Program:
    return as_program(taken.model, taken.data.example(), taken.objective, batch=batch, by_name=by_name)


def _batch_note(program: Program) -> str:
    size = "any number of samples" if program.batch is None else f"{program.batch} sample{'s' * (program.batch > 1)}"
    how = " by name" if program.by_name else ""
    return f"The program takes {', '.join(program.names)}{how}: {size} at a time, on the CPU, in single precision."


def _needed(*modules: str, extra: str) -> None:
    for name in modules:
        try:
            __import__(name)
        except ImportError:
            raise OptionError(f"this format needs the package {name.partition('.')[0]}: {extra}") from None


def _silence() -> contextlib.AbstractContextManager[object]:
    """What exporters print is not for the user of a command that has one line to say."""
    return contextlib.redirect_stdout(io.StringIO())
