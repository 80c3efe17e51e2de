"""FedDF's end of a round: what ten teachers say of public samples, and a student that is taught it.

    python benchmarks/distillation.py [--device cuda] [--precision bf16] [--steps 1000] [--out distillation.json]

Ten PreResNet18 of full width are teachers and the student is one more: 1,000 batches of 128 public samples, which are
random, of CIFAR-10's shape (speed does not depend on what they show). The target for one H200 in bf16 is 15 s.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from torch import Tensor

import fedwidth
from fedwidth.core.index import Index
from fedwidth.core.updates import Update
from fedwidth.data import Data, Transform, from_tensors
from fedwidth.methods import Closing, Method, Task
from fedwidth.methods.feddf import ensemble
from fedwidth.methods.shared.distillation import Lesson
from fedwidth.methods.shared.width_models import teachers
from fedwidth.models import build
from fedwidth.plan.plan import Plan
from fedwidth.settings import ServerSettings
from fedwidth.training.rounds import Rounds

TARGET = 15.0
"""Seconds that the end of a round may take on a GPU in bf16."""


def public(samples: int) -> Data:
    """Random images of CIFAR-10's shape."""
    pixels = torch.randint(256, (samples, 3, 32, 32), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    labels = torch.zeros(samples, dtype=torch.long)
    transform = Transform((0.5, 0.5, 0.5), (0.25, 0.25, 0.25), scale=255)
    return from_tensors(pixels, labels, pixels, labels, kind="images", transform=transform, name="random", classes=10)


def closing_of(arguments: argparse.Namespace, method: Method) -> Closing:
    """A round in which every client held the whole model and came back a little different."""
    torch.manual_seed(0)
    device = torch.device(arguments.device)
    data = public(arguments.samples)
    options = json.loads(arguments.options)
    model = build(arguments.model, data_shape=data.shape, classes=10, **options).to(device)
    plan: Plan = fedwidth.trace(model, data.example().to(device))
    state, whole = fedwidth.state_of(model), Index.whole(plan)
    sums = []
    for client in range(arguments.teachers):
        total = fedwidth.CohortSum(whole)
        total.add(Update({name: changed(tensor) for name, tensor in state.items()}, whole, 1.0, client=client))
        sums.append(total)
    rounds = Rounds(method, plan, ServerSettings(), 0, device=device, precision=arguments.precision, channels_last=True)
    return Closing(
        state,
        sums,
        plan,
        tasks=[Task(client, 1.0, whole, client, single=True) for client in range(arguments.teachers)],
        model=model,
        public=data.to(device),
        answer=rounds.answer,
        channels_last=rounds.channels_last,
        device=device,
        options=method.values,
    )


def changed(tensor: Tensor) -> Tensor:
    """A tensor as a client may have left it."""
    return tensor + 0.01 * torch.randn_like(tensor) if tensor.is_floating_point() else tensor


def seconds_since(start: float, device: str) -> float:
    """Seconds since a time, once the device has done what it was given."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--precision", default="bf16", choices=("bf16", "float32"), help="on a GPU")
    parser.add_argument("--model", default="preresnet18")
    parser.add_argument("--options", default="{}", help="options of the model as JSON")
    parser.add_argument("--teachers", type=int, default=10)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--samples", type=int, default=5000, help="public samples")
    parser.add_argument("--out", type=Path, help="a file for the result")
    arguments = parser.parse_args()
    method = fedwidth.method("feddf", steps=arguments.steps, batch_size=arguments.batch_size)
    closing = closing_of(arguments, method)
    start = time.perf_counter()
    Lesson.of(
        closing,
        teachers(closing),
        lambda logits: ensemble(logits, "logits", 1.0),
        steps=arguments.steps,
        batch_size=arguments.batch_size,
    )
    answered = seconds_since(start, arguments.device)
    start = time.perf_counter()
    state = method.finish(closing)
    whole = seconds_since(start, arguments.device)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in state.values() if tensor.is_floating_point())
    found = {"teachers_s": answered, "whole_s": whole, "steps": arguments.steps, "teachers": arguments.teachers}
    device = torch.cuda.get_device_name() if arguments.device == "cuda" else "cpu"
    print(f"{device}: {arguments.teachers} teachers answer in {answered:.2f} s (first time); the end of a round with")
    print(f"{arguments.steps} batches of {arguments.batch_size} takes {whole:.2f} s (target: {TARGET:g} s on one H200)")
    if arguments.out:
        arguments.out.write_text(json.dumps(found | {"device": device}, indent=2) + "\n")


if __name__ == "__main__":
    main()
