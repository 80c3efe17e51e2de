"""Steps of the server's own training that are captured on a GPU: the same training, whatever can be captured.

Where there is no GPU, what a capture does is played: a step that is replayed reads the batch from where it was copied.
"""

import gc
import random
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD

from fedwidth.data import from_tensors
from fedwidth.experiment import Experiment
from fedwidth.methods import Closing
from fedwidth.methods.shared import repeated
from fedwidth.methods.shared.distillation import Lesson, adam, cosine, teach
from fedwidth.methods.shared.repeated import Graphs, Repeated
from small_runs import same, small

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
SAMPLES, CLASSES, STEPS, SIZE = 96, 5, 12, 16


class Drawing(nn.Module):
    """Draws at random on the processor, as a captured step would not do again."""

    def forward(self, x):
        return x * (1 + 0.1 * random.random())


class DrawingInNumpy(nn.Module):
    """The same with NumPy."""

    def forward(self, x):
        return x * (1 + 0.1 * float(np.random.rand()))


class Counting(nn.Module):
    """Counts its steps, as a captured one would not do again."""

    def __init__(self):
        super().__init__()
        self.taken = 0

    def forward(self, x):
        self.taken += self.training
        return x / (1 + self.taken)


class Replacing(nn.Module):
    """Counts in a tensor that it puts in place of its buffer, which a captured step would not read."""

    def __init__(self):
        super().__init__()
        self.register_buffer("taken", torch.tensor(0.0))

    def forward(self, x):
        if self.training:
            self.taken = self.taken + 1
        return x / (1 + self.taken)


class Asking(nn.Module):
    """Goes on as the numbers say, for which the processor waits."""

    def forward(self, x):
        return x if x.sum().item() > 0 else -x


class Breaking(nn.Module):
    """Breaks a capture off, and does nothing else."""

    def forward(self, x):
        if x.is_cuda and torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize()
        return x


class Refusing(nn.Module):
    """Raises an error in a capture, after other layers were captured."""

    def forward(self, x):
        if x.is_cuda and torch.cuda.is_current_stream_capturing():
            raise ValueError("not in a capture")
        return x


LAYERS = {"plain": nn.Identity, "dropout": lambda: nn.Dropout(0.3)}
CHANGING = {"drawing": Drawing, "numpy": DrawingInNumpy, "counting": Counting, "replacing": Replacing}
ODD = {**CHANGING, "asking": Asking, "breaking": Breaking, "refusing": Refusing}
DROPPING = ODD.keys() - {"numpy", "counting", "replacing"}
"""Where a GPU is played, dropout alone would give the others away."""


def network(kind="plain", *, width=12):
    torch.default_generator.manual_seed(0)  # the processor's alone: a test looks at what others drew on the GPU
    random.seed(0)
    odd = (LAYERS | ODD)[kind]()
    first = (nn.Conv2d(3, width, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.Dropout(0.2 * (kind in DROPPING)))
    return nn.Sequential(*first, nn.AvgPool2d(3), nn.Flatten(), odd, nn.Linear(4 * width, CLASSES))


def lesson_of(device="cpu", *, sizes=(SIZE,) * STEPS):
    """A lesson on random samples, in a round of its own."""
    draws = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, 3, 8, 8, generator=draws)
    labels = torch.zeros(SAMPLES, dtype=torch.long)
    data = from_tensors(inputs, labels, inputs, labels, name="random", classes=CLASSES).to(torch.device(device))
    closing = Closing({}, (), None, public=data, device=torch.device(device))
    batches = [torch.randperm(SAMPLES, generator=draws)[:size].to(device) for size in sizes]
    wanted = [torch.softmax(2 * torch.randn(size, CLASSES, generator=draws), -1).to(device) for size in sizes]
    return Lesson(closing, batches, wanted)


def taught(lesson, kind="plain", optimiser="adam", **options):
    """The student's tensors after the lesson."""
    device = lesson.closing.device
    student = network(kind).to(device)
    if optimiser == "adam":
        made = adam(student.parameters(), 1e-2, device)
        options |= {"rates": cosine(1e-2, len(lesson.batches)), "clip": 0.5}
    else:
        made = SGD(student.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    teach(student, lesson, made, **options)
    return {name: tensor.detach().clone() for name, tensor in student.state_dict().items()}


class PlayedGraph:
    """Takes the step again when it is replayed."""

    def __init__(self, step):
        self.step = step

    def replay(self):
        self.step()
        played.append("replay")


played: list[str] = []


@pytest.fixture
def gpu_is_played(monkeypatch):
    """A stream, captures and generators as a GPU has them, on the CPU."""
    stream = SimpleNamespace(cuda=SimpleNamespace(device=torch.device("cpu")), queue=nullcontext, join=lambda: None)
    monkeypatch.setattr(Graphs, "on", classmethod(lambda cls, device: cls(stream)))
    monkeypatch.setattr(repeated, "no_waiting", nullcontext)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: torch.random.get_rng_state())
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: torch.random.set_rng_state(state))
    monkeypatch.setattr(Graphs, "capture", lambda self, step: PlayedGraph(step))
    plain = Repeated._capture

    def capture(self, kind, batch):
        held = [tree.clone() for tree in batch]
        played.append("capture")
        self._captured[kind] = repeated.Captured(held, PlayedGraph(lambda: self.step(*held)), torch.zeros(()))
        return True

    monkeypatch.setattr(Repeated, "_capture", capture)
    played.clear()
    return plain


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
@pytest.mark.parametrize("kind", ["plain", *CHANGING])
def test_replayed_steps_train_as_others_do(monkeypatch, request, kind, optimiser):
    """Also those that draw or count on the processor, which are found out in the second step."""
    usual = taught(lesson_of(), kind, optimiser)
    request.getfixturevalue("gpu_is_played")
    assert same(usual, taught(lesson_of(), kind, optimiser))
    assert played == ([] if kind in CHANGING else ["capture", *["replay"] * (STEPS - 2)])


def test_a_step_that_waits_is_begun_again(monkeypatch, request):
    """It fails after layers have counted, drawn and trained: all that is put back."""
    sizes = (SIZE,) * 4
    usual = taught(lesson_of(sizes=sizes), "dropout")
    request.getfixturevalue("gpu_is_played")
    steps = []
    plain = Repeated._take

    def take(self, batch):
        found = plain(self, batch)
        steps.append(len(batch[1]))
        if len(steps) == 2:
            raise RuntimeError("called a synchronizing CUDA operation")
        return found

    monkeypatch.setattr(Repeated, "_take", take)
    assert same(usual, taught(lesson_of(sizes=sizes), "dropout"))
    assert len(steps) == 5
    assert not played


def test_steps_of_rare_shapes_are_not_captured(monkeypatch, request):
    sizes = (16, 16, 8, 16, 4, 8, 8, 16, 4, 4)
    usual = taught(lesson_of(sizes=sizes))
    request.getfixturevalue("gpu_is_played")
    monkeypatch.setattr(repeated, "MAX_GRAPHS", 2)
    assert same(usual, taught(lesson_of(sizes=sizes)))
    assert played == ["capture", "replay", "capture", "replay", "replay"]


def test_a_capture_that_fails_leaves_steps_as_they_are(monkeypatch, request):
    usual = taught(lesson_of())
    plain = request.getfixturevalue("gpu_is_played")

    def fail(self, step):
        played.append("fail")
        raise RuntimeError("no")

    monkeypatch.setattr(Repeated, "_capture", plain)
    monkeypatch.setattr(Graphs, "capture", fail)
    assert same(usual, taught(lesson_of()))
    assert played == ["fail"]


def test_a_student_may_be_looked_at_between_steps_and_stop_early():
    seen = []
    taught(lesson_of(), after=lambda step: seen.append(step) or step < 6)
    assert seen == list(range(7))


def test_clients_repeat_steps_of_their_rule_as_the_server_does(request):
    """Three epochs of three batches: of the second round's ten clients, and of the server in both rounds."""
    changes = [
        "method.name=dsfl",
        "method.options={epochs=3, batch_size=16, samples=48}",
        "data.public=0.1",
        "rounds=2",
    ]
    usual = Experiment(small(*changes)).run().server
    request.getfixturevalue("gpu_is_played")
    found = Experiment(small(*changes)).run().server
    assert same(usual.state, found.state)
    assert same(dict(usual.memory), dict(found.memory))
    per_round = small(*changes).devices.per_round
    assert played.count("replay") == (9 - 2) * (per_round + 2)


@pytest.fixture
def exact(monkeypatch):
    """Kernels that give the same bits every time."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def replays_of(monkeypatch):
    """A list that grows with every step that is replayed."""
    found, plain = [], torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda self: found.append(1) or plain(self))
    return found


@needs_gpu
@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
@pytest.mark.parametrize("kind", LAYERS)
def test_on_a_gpu_captured_steps_train_as_others_do(monkeypatch, kind, optimiser):
    replays = replays_of(monkeypatch)
    one, two = (taught(lesson_of("cuda"), kind, optimiser) for _ in range(2))
    assert same(one, two)
    assert len(replays) == 2 * (STEPS - 2)
    monkeypatch.setattr(repeated, "MAX_GRAPHS", 0)
    usual = taught(lesson_of("cuda"), kind, optimiser)
    assert len(replays) == 2 * (STEPS - 2)
    torch.testing.assert_close(one, usual, rtol=1e-5, atol=1e-6)


@needs_gpu
@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("kind", ODD)
def test_on_a_gpu_what_cannot_be_captured_is_trained_all_the_same(monkeypatch, kind):
    """And what comes after it is captured again."""
    replays = replays_of(monkeypatch)
    found = taught(lesson_of("cuda"), kind)
    assert not replays
    after = taught(lesson_of("cuda"), "dropout")
    assert len(replays) == STEPS - 2
    monkeypatch.setattr(repeated, "MAX_GRAPHS", 0)
    torch.testing.assert_close(found, taught(lesson_of("cuda"), kind), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(after, taught(lesson_of("cuda"), "dropout"), rtol=1e-5, atol=1e-6)


@needs_gpu
def test_on_a_gpu_draws_of_others_are_left_alone():
    torch.cuda.manual_seed(3)
    before = torch.cuda.get_rng_state()
    taught(lesson_of("cuda"), "dropout")
    assert torch.equal(torch.cuda.get_rng_state(), before)
    taught(lesson_of("cuda"), "breaking")
    assert torch.equal(torch.cuda.get_rng_state(), before)
    assert torch.equal(torch.rand(3, device="cuda"), torch.rand(3, device="cuda", generator=seeded(3)))


def seeded(seed):
    return torch.Generator("cuda").manual_seed(seed)


@needs_gpu
@pytest.mark.usefixtures("exact")
def test_on_a_gpu_students_may_be_looked_at_between_replays(monkeypatch):
    def look(student, step):
        student.eval()
        with torch.no_grad():
            seen.append(student(torch.ones(3, 3, 8, 8, device="cuda")).sum().item())
        student.train()
        return step < 8

    found = []
    for graphs in (repeated.MAX_GRAPHS, 0):
        monkeypatch.setattr(repeated, "MAX_GRAPHS", graphs)
        seen = []
        student, lesson = network("dropout").cuda(), lesson_of("cuda")
        made = adam(student.parameters(), 1e-2, lesson.closing.device)
        teach(student, lesson, made, after=lambda step, student=student: look(student, step))
        found.append(seen)
    assert len(found[0]) == 9
    assert found[0] == pytest.approx(found[1], rel=1e-4, abs=1e-4)


@needs_gpu
def test_on_a_gpu_rounds_leave_no_memory_behind():
    """Students of several widths in each round, whose graphs take turns in one memory."""
    reserved, allocated = [], []
    for _ in range(5):
        lesson = lesson_of("cuda")
        for width in (8, 16, 32, 64):
            student = network(width=width).cuda()
            teach(student, lesson, adam(student.parameters(), 1e-2, lesson.closing.device))
        del lesson, student
        gc.collect()
        allocated.append(torch.cuda.memory_allocated())
        reserved.append(torch.cuda.memory_reserved())
    assert allocated[1] == allocated[-1]
    assert reserved[-1] <= max(reserved[:2])


RUNS = {
    "feddf": "{steps=10, batch_size=16, look_every=4}",
    "fedbe": "{steps=10, batch_size=16, samples=2}",
    "fedet": "{steps=10, batch_size=16}",
    "dsfl": "{epochs=3, batch_size=16, samples=40}",
    "fedgkt": "{epochs=4, batch_size=16}",
}


@needs_gpu
@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("method", RUNS)
def test_on_a_gpu_every_method_that_trains_on_the_server_replays(monkeypatch, method, precision):
    changes = [f"method.name={method}", f"method.options={RUNS[method]}", "rounds=2", "model.options={hidden=[8, 8]}"]
    changes += ["device=cuda", f"precision={precision}"] + ["data.public=0.1"] * (method != "fedgkt")
    replays = replays_of(monkeypatch)
    one, two = (Experiment(small(*changes)).run().server for _ in range(2))
    assert same(one.state, two.state)
    assert same(dict(one.memory), dict(two.memory))
    assert len(replays) >= 2 * 2 * 5
    if precision == "bf16":  # the same kernels, but what they round may be one digit apart
        return
    monkeypatch.setattr(repeated, "MAX_GRAPHS", 0)
    replays.clear()
    usual = Experiment(small(*changes)).run().server
    assert not replays
    torch.testing.assert_close(dict(one.state), dict(usual.state), rtol=1e-3, atol=1e-4)
