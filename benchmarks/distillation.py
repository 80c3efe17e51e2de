"""FedDF's end of a round: what teachers say of public samples, and the students that are taught it.

    python benchmarks/distillation.py [--device cuda] [--precision bf16] [--case alike widths] [--out distillation.json]

Two cases, on random public samples of CIFAR-10's shape (speed does not depend on what they show):

    alike     ten teachers of full width, and one student of that width that is taught 1,000 batches of 128
    widths    ten teachers of five widths, two of each, and a student of every width that is taught 100 batches each, as
              in the recipe benchmark/cifar10-all-methods

On a GPU students' steps are captured; each case is timed with that and without, in turns, after a first time of each
that does not count. The target for "alike" on one H200 in bf16 is 15 s.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from unittest.mock import patch

import torch
from torch import Tensor

import fedwidth
from fedwidth.core.index import Index
from fedwidth.core.updates import Update
from fedwidth.data import Data, Transform, from_tensors
from fedwidth.methods import Beginning, Closing, Method, Task
from fedwidth.methods.feddf import ensemble
from fedwidth.methods.shared import repeated
from fedwidth.methods.shared.distillation import Lesson
from fedwidth.methods.shared.width_models import teachers
from fedwidth.models import build
from fedwidth.plan.plan import Plan
from fedwidth.settings import ServerSettings
from fedwidth.training.rounds import Rounds

TARGET = 15.0
"""Seconds that the end of a round of teachers that are alike may take on a GPU in bf16."""
WIDTHS = (1.0, 0.5, 0.25, 0.125, 0.0625)
CASES = {"alike": (1.0,), "widths": WIDTHS}
"""The widths that clients of each case have in turn."""
STEPS, TURNS = {"alike": 1000, "widths": 100}, {"alike": 1, "widths": 3}
"""Batches of each student, and how often each way is timed."""
WARM_UP = 10
"""Steps of the first time, which does not count."""


def public(samples: int) -> Data:
    """Random images of CIFAR-10's shape."""
    pixels = torch.randint(256, (samples, 3, 32, 32), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    labels = torch.zeros(samples, dtype=torch.long)
    transform = Transform((0.5, 0.5, 0.5), (0.25, 0.25, 0.25), scale=255)
    return from_tensors(pixels, labels, pixels, labels, kind="images", transform=transform, name="random", classes=10)


def closing_of(arguments: argparse.Namespace, widths: Sequence[float]) -> Callable[[Method], Closing]:
    """A round in which clients of these widths, one after the other, came back a little different, for any options."""
    torch.manual_seed(0)
    device = torch.device(arguments.device)
    data = public(arguments.samples).to(device)
    options = json.loads(arguments.options)
    model = build(arguments.model, data_shape=data.shape, classes=10, **options).to(device)
    plan: Plan = fedwidth.trace(model, data.example().to(device))
    state, feddf = fedwidth.state_of(model), fedwidth.method("feddf")
    memory = feddf.first_memory(Beginning(state, plan, enrolled=widths, options=feddf.values))
    cohort = [(client, widths[client % len(widths)]) for client in range(arguments.teachers)]
    tasks = feddf.assign(plan, cohort, 0, memory)
    sums = [summed(task, state, plan) for task in tasks]
    rounds = Rounds(feddf, plan, ServerSettings(), 0, device=device, precision=arguments.precision, channels_last=True)

    def close(method: Method) -> Closing:
        return Closing(
            state,
            sums,
            plan,
            memory=memory,
            tasks=tasks,
            enrolled=widths,
            model=model,
            public=data,
            answer=rounds.answer,
            channels_last=rounds.channels_last,
            device=device,
            options=method.values,
        )

    return close


def summed(task: Task, state: dict[str, Tensor], plan: Plan) -> fedwidth.CohortSum:
    """What a client has sent."""
    total = task.part.accumulator()
    sub = {name: changed(tensor) for name, tensor in task.part.cut(state, plan).items()}
    total.add(Update(sub, task.part if isinstance(task.part, Index) else task.part.index, 1.0, client=task.client))
    return total


def changed(tensor: Tensor) -> Tensor:
    """A tensor as a client may have left it."""
    return tensor + 0.01 * torch.randn_like(tensor) if tensor.is_floating_point() else tensor


def seconds(work: Callable[[], object], device: str) -> float:
    """How long a device is busy with some work."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def end_round(close: Callable[[Method], Closing], method: Method) -> None:
    """End the round, and look at the result."""
    state = method.finish(close(method))
    assert all(bool(torch.isfinite(tensor).all()) for tensor in state.values() if tensor.is_floating_point())


def answer(close: Callable[[Method], Closing], method: Method) -> None:
    """Ask the teachers alone."""
    closing, options = close(method), method.values
    says = partial(ensemble, average="logits", temperature=1.0)
    Lesson.of(closing, teachers(closing), says, steps=options["steps"], batch_size=options["batch_size"])


def measure(arguments: argparse.Namespace, case: str) -> dict[str, object]:
    """The seconds of a case: of the teachers alone, and of the end of a round with steps captured and not."""
    close = closing_of(arguments, CASES[case])
    size, steps, turns = arguments.batch_size, arguments.steps or STEPS[case], arguments.turns or TURNS[case]
    method, short = (fedwidth.method("feddf", steps=number, batch_size=size) for number in (steps, min(steps, WARM_UP)))
    ways = {"captured": repeated.MAX_GRAPHS, "eager": 0} if arguments.device == "cuda" else {"eager": 0}
    found: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(1 + turns):
        for way, graphs in ways.items():
            with patch.object(repeated, "MAX_GRAPHS", graphs):
                taken = seconds(partial(end_round, close, method if turn else short), arguments.device)
            if turn:
                found[way].append(taken)
    asked = [seconds(lambda: answer(close, method), arguments.device) for _ in range(turns)]
    medians = {f"{way}_s": median(each) for way, each in found.items()}
    return {"steps": steps, "teachers": arguments.teachers, "teachers_s": median(asked), **medians, "turns": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--precision", default="bf16", choices=("bf16", "float32"), help="on a GPU")
    parser.add_argument("--model", default="preresnet18")
    parser.add_argument("--options", default="{}", help="options of the model as JSON")
    parser.add_argument("--case", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--teachers", type=int, default=10)
    parser.add_argument("--steps", type=int, help="batches of each student, in place of 1,000 and 100")
    parser.add_argument("--turns", type=int, help="how often each way is timed, in place of 1 and 3; the median counts")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--samples", type=int, default=5000, help="public samples")
    parser.add_argument("--out", type=Path, help="a file for the result")
    arguments = parser.parse_args()
    device = torch.cuda.get_device_name() if arguments.device == "cuda" else "cpu"
    print(f"{device}: {arguments.teachers} teachers, batches of {arguments.batch_size}")
    found = {}
    for case in arguments.case:
        found[case] = one = measure(arguments, case)
        students = f"{one['steps']} batches for each of {len(CASES[case])} students"
        students = f"{one['steps']} batches for each of {len(CASES[case])} students"
        print(f"{case}: teachers answer in {one['teachers_s']:.2f} s, a round with {students} ends in", end=" ")
        print(", ".join(f"{one[f'{way}_s']:.2f} s {way}" for way in ("captured", "eager") if f"{way}_s" in one))
    if "alike" in found:
        print(f"(target for alike: {TARGET:g} s on one H200)")
    if arguments.out:
        arguments.out.write_text(json.dumps(found | {"device": device}, indent=2) + "\n")


if __name__ == "__main__":
    main()
