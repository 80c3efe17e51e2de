"""What only a GPU can show; skipped where there is none. `contracts/test_every_engine.py` has every model on it too."""

import gc
import json
import os
import random
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import fedwidth
import zoo
from fedwidth.config.read import read_settings
from fedwidth.data import from_tensors
from fedwidth.engines import FlatEngine
from fedwidth.engines.slots.making import make_slot
from fedwidth.engines.slots.pool import SlotPool
from fedwidth.engines.slots.slot import FIRST_GRAPHS
from fedwidth.experiment import Experiment
from fedwidth.models import build, example_inputs, preresnet
from fedwidth.models.preresnet import ScaledNorm
from fedwidth.settings import DataSettings, DeviceSettings, MethodSettings, Settings
from small_runs import same

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

OVERRIDES = ["rounds=4", "evaluation.every=4", "device=cuda", "precision=float32", "devices.dynamic=true"]


IID = ["data.partition=iid", "data.partition_options={}"]


def quickstart(*changes, **fields):
    return replace(read_settings("quickstart", [*OVERRIDES, *changes]).main, **fields)


@pytest.mark.parametrize("name", [name for name, each in fedwidth.methods().items() if each.slices and not each.public])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_extract_and_merge_are_exact_on_the_device(name, dtype):
    model = build("preresnet18", widths=[16, 16, 32, 32])
    plan = fedwidth.trace(model, example_inputs("preresnet18"))
    state = {n: t.to("cuda", dtype) if t.is_floating_point() else t.cuda() for n, t in fedwidth.state_of(model).items()}
    method = fedwidth.method(name)
    updates = []
    for task in method.assign(plan, list(enumerate((1.0, 0.5, 0.25, 0.25))), round=7, seed=1, state=state):
        sub = fedwidth.extract(state, plan, task.index)
        host = fedwidth.extract({n: t.cpu() for n, t in state.items()}, plan, task.index)
        assert all(torch.equal(sub[n].cpu(), host[n]) for n in sub)
        updates.append((sub, task.index, 0.3 + task.client))
    new = fedwidth.merge(state, updates, plan)
    assert all(torch.equal(new[n], state[n]) and new[n].is_cuda for n in state)


def test_a_model_on_the_device_is_traced_there():
    model = build("cnn", data_shape=(1, 8, 8)).cuda()
    inputs = example_inputs("cnn", data_shape=(1, 8, 8))[0].cuda()
    plan = fedwidth.trace(model, inputs)
    index = fedwidth.method("fedrolex").select(plan, capacity=0.5, round=3)
    assert fedwidth.narrow(model, plan, index)(inputs).is_cuda


@pytest.mark.parametrize("method", ["fedrolex", "heterofl", "feddropout", "fedbrb", "fjord"])
def test_the_cuda_engine_agrees_with_the_serial_one(method):
    settings = quickstart(f"method.name={method}")
    one = Experiment(replace(settings, engine="serial")).run().server.state
    many = Experiment(replace(settings, engine="cuda")).run().server.state
    assert all(torch.allclose(one[n].double(), many[n].double(), atol=2e-4) for n in one)


def test_the_cuda_engine_repeats_bit_for_bit_and_slots_change_nothing():
    states = [Experiment(quickstart(engine="cuda", slots=slots)).run().server.state for slots in (4, 4, 1)]
    for other in states[1:]:
        assert all(torch.equal(states[0][n], other[n]) for n in other)


def prepare_own(model, classes=10, **changes):
    """A run of one's own model on random images, or (a vocabulary of 50) on words."""
    draw = torch.Generator().manual_seed(0)
    if classes == 50:
        inputs = torch.randint(0, 50, (48, 9), generator=draw)
        targets = torch.randint(0, 50, (48, 9), generator=draw)
    else:
        inputs = torch.randn(48, 3, 8, 8, generator=draw)
        targets = torch.randint(0, classes, (48,), generator=draw)
    data = from_tensors(inputs, targets, inputs, targets, classes=classes)
    settings = Settings(
        rounds=3,
        device="cuda",
        precision="float32",
        data=DataSettings(clients=6),
        devices=DeviceSettings("a1-b1", dynamic=True, per_round=6),
        training=replace(Settings().training, batch_size=5, lr=0.05),  # batches of 5 and 3
    )
    return Experiment(replace(settings, **changes), model=model, data=data)


def own(model, classes=10, **changes):
    """The state after such a run."""
    return prepare_own(model, classes, **changes).run().server.state


def near(one, other, tolerance=2e-4):
    return all(torch.allclose(one[n].double(), other[n].double(), rtol=0, atol=tolerance) for n in one)


def flat_cnn():
    """Flattens with `view`, which asks for channels first in memory."""
    return zoo.FlatCNN(8, 12, 20)


@pytest.mark.parametrize(
    ("make", "classes"),
    [
        (lambda: zoo.TorchTransformer(32, 4, 48), 50),  # dropout, nn.MultiheadAttention that drops
        (lambda: build("transformer", vocabulary=50, embedding=32, heads=2, hidden=32, layers=1), 50),  # dropout
        (lambda: zoo.ResNet(8), 10),  # running statistics and their counts
        (lambda: zoo.TiedLM(32, 4, 48, 8), 50),
        (flat_cnn, 10),
    ],
    ids=["attention-dropout", "dropout", "running-statistics", "tied", "view"],
)
def test_models_with_a_state_of_their_own_are_captured(make, classes):
    model = make().float().train()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing falls back
        states = [own(model, classes, engine="cuda", slots=slots) for slots in (4, 4, 1)]
    serial = own(model, classes, engine="serial")
    for other in states[1:]:
        assert same(states[0], other), "runs repeat bit for bit, whatever the number of slots"
    # The same seeds, and the same draws: a captured step takes its random numbers where an eager one would.
    assert near(serial, states[0])
    counts = [n for n in serial if n.endswith("num_batches_tracked")]
    assert all(torch.equal(serial[n], states[0][n]) for n in counts)


def one_graph(*arguments):
    """A slot that captures the step of one batch size alone."""
    slot = make_slot(*arguments)
    slot.max_graphs = 1
    return slot


def test_batch_sizes_beyond_the_captured_ones_draw_from_the_same_stream():
    run = prepare_own(zoo.TorchTransformer(32, 4, 48).float(), 50, engine="cuda")
    pool = SlotPool(run.trainer, make_slot=one_graph)
    found = run.run(engine=FlatEngine(run.trainer, pool, averages_here=True)).server.state
    assert near(run.run().server.state, found)


def test_clients_of_many_sizes_have_captured_steps_of_the_same_bits():
    """Each client is one batch of its own size: from the second round on all are captured."""
    run = prepare_own(
        zoo.ResNet(8).float(),
        slots=1,
        data=DataSettings(clients=6, partition="dirichlet", partition_options={"alpha": 1.0}),
        devices=DeviceSettings("a1", per_round=6),
        training=replace(Settings().training, batch_size=48, lr=0.05),
    )
    sizes = set(run.partition.train.sizes.tolist())
    assert len(sizes) > FIRST_GRAPHS
    states, captured = [], []
    for make in (make_slot, one_graph):
        slots = []
        pool = SlotPool(
            run.trainer, make_slot=lambda *given, make=make, slots=slots: slots.append(make(*given)) or slots[-1]
        )
        states.append(run.run(engine=FlatEngine(run.trainer, pool, averages_here=True)).server.state)
        captured.append([len(slot.graphs) for slot in slots])
    assert captured == [[len(sizes)], [1]]
    assert same(*states)


@pytest.mark.parametrize("method", ["heterofl", "fjord"])
def test_norms_and_relus_of_captured_steps_are_one_operation(method, monkeypatch):
    """In bf16, where channels of all sub-models lie last: the same bits in any number of slots, near both apart."""
    model = build("preresnet18", widths=[8, 8, 16, 16], data_shape=(3, 8, 8))
    run = prepare_own(model, engine="cuda", precision="bf16", method=MethodSettings(method))
    slots = []

    def recorded(*given):
        slots.append(make_slot(*given))
        return slots[-1]

    def state(per_size):
        pool = SlotPool(run.trainer, make_slot=recorded)
        pool.per_size = per_size
        return run.run(engine=FlatEngine(run.trainer, pool, averages_here=True)).server.state

    one, many = state(1), state(4)
    assert same(one, many)
    assert all(norm.fused for slot in slots for norm in slot.module.modules() if isinstance(norm, ScaledNorm))
    slots.clear()
    monkeypatch.setattr(preresnet, "has_norm_relu", lambda device: False)
    apart = state(4)
    assert not any(norm.fused for slot in slots for norm in slot.module.modules() if isinstance(norm, ScaledNorm))
    assert near(apart, many, 2e-2)
    assert not same(apart, many)


def test_frozen_parameters_stay():
    model = zoo.ResNet(8).float()
    model.stem.weight.requires_grad_(False)
    serial, captured = own(model, engine="serial"), own(model, engine="cuda")
    assert near(serial, captured)
    assert torch.equal(captured["stem.weight"].cpu(), model.stem.weight)


class Looks(zoo.MLP):
    """Looks at a value: the processor waits for the GPU in every step."""

    def forward(self, x):
        y = super().forward(x)
        return y / 2 if self.training and torch.is_grad_enabled() and float(y.detach().sum()) > 1e9 else y


class Tosses(zoo.MLP):
    """Tosses a coin on the processor in every step."""

    def forward(self, x):
        y = super().forward(x)
        return y / 2 if self.training and torch.is_grad_enabled() and random.random() < 0 else y


@pytest.mark.parametrize(
    ("make", "classes", "reason"),
    [
        (lambda: Looks(16, 12), 10, "cannot be captured"),
        (lambda: Tosses(16, 12), 10, "draws at random on the processor"),
        (lambda: zoo.Recurrent(nn.LSTM, 16, 24), 50, "cuDNN's own order"),
    ],
    ids=["looks", "tosses", "lstm"],
)
def test_what_cannot_be_captured_says_why_and_trains_one_client_at_a_time(make, classes, reason):
    model = make()
    if classes == 10:
        model.layers[1] = nn.Linear(192, 16)
    serial = own(model, classes, engine="serial")
    with pytest.warns(UserWarning, match=reason):
        assert same(serial, own(model, classes, engine="cuda"))
    # and the device is none the worse for the attempt
    assert near(own(flat := flat_cnn(), engine="serial"), own(flat, engine="cuda"))


def test_out_of_device_memory_goes_on_with_fewer_slots_and_the_same_result():
    wide = ["model.name=mlp", "model.options={hidden=[4096,4096]}", "devices.capacities=a1", "devices.per_round=4"]
    settings = quickstart(*wide, "rounds=2", "evaluation.every=2", "training.lr=0.01", engine="cuda")

    def run(slots):
        """The state, and the most memory it took on the way."""
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        state = Experiment(replace(settings, slots=slots)).run().server.state
        return state, torch.cuda.max_memory_reserved()

    _, for_one = run(slots=1)
    expected, for_four = run(slots=4)
    gc.collect()
    torch.cuda.empty_cache()
    allowed = (0.9 * for_one + 0.1 * for_four) / torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(allowed)
    try:
        with pytest.warns(UserWarning, match="out of memory on cuda: the cuda engine goes on with fewer slots"):
            found, _ = run(slots=4)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()
    assert same(expected, found)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["cuda", "vectorised", "serial"])
def test_device_memory_does_not_grow_with_the_rounds(engine):
    seen = {}

    def note(line):
        torch.cuda.synchronize()
        seen[line["round"]] = torch.cuda.memory_allocated()

    changes = ["rounds=1001", "evaluation.every=1001", "data.clients=6", "devices.per_round=6", "devices.dynamic=false"]
    changes += ["training.steps=2"]  # a step of the serial engine takes milliseconds of Python
    settings = quickstart(*changes, "model.options={widths=[8,8]}", *IID, engine=engine)
    Experiment(settings).run(on_round=note)
    print(f"{engine}: {seen[20]:,} bytes after 20 rounds, {seen[1000]:,} after 1,000")
    assert seen[20] == seen[1000]


PEAKS = """
import gc, json, sys, torch
from dataclasses import replace
from fedwidth.data import Partition, Shares, from_tensors
from fedwidth.experiment import Experiment
from fedwidth.models import build
from fedwidth.settings import DeviceSettings, Settings, TrainingSettings

gc.disable()  # what is let go of must not depend on how much else was made meanwhile
clients, device, found = int(sys.argv[1]), sys.argv[2], {}
inputs, targets = torch.linspace(-1, 1, 60 * 3 * 8 * 8).view(60, 3, 8, 8), torch.arange(60) % 10
data = from_tensors(inputs, targets, inputs, targets)
shares = Shares(torch.arange(6 * clients) % 60, 6 * torch.arange(clients + 1))
partition = Partition("shared", shares, shares, data.train.targets)
half = Settings(rounds=3, device=device, devices=DeviceSettings("b1", per_round=10))
half = replace(half, training=TrainingSettings(batch_size=4, lr=0.01))
for engine in ("serial", "cuda", "vectorised"):
    model = build("cnn", data_shape=(3, 8, 8), widths=[16, 32])
    torch.cuda.reset_peak_memory_stats()
    Experiment(replace(half, engine=engine), model=model, data=data, partition=partition).run()
    found[engine] = torch.cuda.max_memory_allocated()
print(json.dumps(found))
"""


def test_device_memory_does_not_grow_with_the_registered_clients():
    # Exact: all clients share 60 samples, each has six of them with six labels, and all have half the width. So rounds
    # of ten ask for memory in the same sizes and order, whoever they are. Each number of clients has a process of its
    # own: libraries keep memory for every stream that was ever used.
    source = str(Path(fedwidth.__file__).resolve().parent.parent)
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PEAKS, str(clients), "cuda"],
            env={**os.environ, "PYTHONPATH": source, "PYTHONHASHSEED": "0"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for clients in (100, 20_000)
    ]
    few, many = (json.loads(process.communicate()[0]) for process in started)
    print(f"bytes at the peak with 100 and 20,000 registered clients: {few}, {many}")
    assert few == many
    assert min(few.values()) > 0
