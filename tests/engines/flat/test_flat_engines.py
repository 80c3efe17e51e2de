"""Slots and stacks on the CPU (no graphs and streams there), against the serial engine in double precision."""

import re
import weakref
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import fedwidth
from fedwidth.config.read import read_settings
from fedwidth.data import Transform
from fedwidth.engines.flat.engine import FlatEngine
from fedwidth.engines.flat.layout import Layout, SubLayout
from fedwidth.engines.flat.sums import FlatSum, average_flat, check_finite
from fedwidth.engines.memory import out_of_memory
from fedwidth.engines.slots.slot import Slot
from fedwidth.engines.stacks.samples import TrainingSamples
from fedwidth.engines.stacks.stack import Stack
from fedwidth.errors import ClientError, UpdateError
from fedwidth.experiment import Experiment, build_model
from fedwidth.methods import Method
from fedwidth.plan.axis import Fixed, Units
from hand_plans import heads_plan, mlp_plan, plan_of, random_state


def run(settings, engine):
    data = Experiment(replace(settings, engine=engine)).data
    own = build_model(settings, data).double()
    double = fedwidth.data.from_tensors(
        data.transform(data.train.inputs).double(),
        data.train.targets,
        data.transform(data.test.inputs).double(),
        data.test.targets,
        kind="images",
    )
    return Experiment(replace(settings, engine=engine), model=own, data=double).run()


@pytest.mark.parametrize("engine", ["cuda", "vectorised"])
@pytest.mark.parametrize("optimiser", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("method", ["fedrolex", "fedbrb"])  # all of them: contracts/test_every_engine.py
def test_it_agrees_with_the_serial_engine_in_double_precision(method, optimiser, engine):
    lr = 0.1 if optimiser == "sgd" else 0.001
    changes = ["rounds=3", "evaluation.every=3", f"method.name={method}", f"training.optimiser={optimiser}"]
    changes += [f"training.lr={lr}", "devices.dynamic=true", "training.batch_size=20", "model.options={widths=[8,16]}"]
    settings = read_settings("quickstart", changes).main
    one, many = (run(settings, name) for name in ("serial", engine))
    worst = max(float((one.server.state[n] - many.server.state[n]).abs().max()) for n in one.server.state)
    assert worst < 1e-7
    assert one.metrics[-1]["train_loss"] == pytest.approx(many.metrics[-1]["train_loss"], rel=1e-5)


ROUND = ["rounds=2", "evaluation.every=2", "engine=cuda", "devices.dynamic=true", "training.batch_size=20"]
ROUND += ["model.options={widths=[4,8]}", "devices.capacities=a1-b1", "slots=4"]


def reference():
    return Experiment(read_settings("quickstart", ROUND).main).run()


class Memory:
    """A device on which the n-th call of something finds no memory, and any call while too many slots are alive."""

    def __init__(self, monkeypatch, place, *, calls=(), error=torch.OutOfMemoryError, owner=Slot):
        self.count, self.calls, self.error = 0, calls, error
        real = getattr(owner, place)

        def call(one, *arguments, **options):
            self.count += 1
            if self.count in self.calls:
                raise self.error("CUDA out of memory. Tried to allocate 2.00 MiB.")
            return real(one, *arguments, **options)

        monkeypatch.setattr(owner, place, call)


@pytest.mark.parametrize("place", ["__init__", "begin", "capture_steps", "train_all", "_step"])
@pytest.mark.parametrize("error", [torch.OutOfMemoryError, RuntimeError])
def test_out_of_memory_goes_on_with_fewer_slots_and_the_same_result(monkeypatch, place, error):
    expected = reference()
    # The third slot is the second of its width, so halving leaves one of each.
    calls, left = ((3, 6), ["2 a width", "1 a width"])
    if place == "__init__":
        calls, left = ((3, 4), ["1 a width", "1 for all widths together"])
    with monkeypatch.context() as patch:
        memory = Memory(patch, place, calls=calls, error=error)
        with pytest.warns(UserWarning, match="out of memory") as said:
            found = reference()
    assert memory.count > calls[-1]
    messages = [str(w.message) for w in said]
    assert [m.rpartition(", ")[2] for m in messages] == left
    assert all(m.startswith("out of memory on cpu: the cuda engine goes on with fewer slots") for m in messages)
    assert all(torch.equal(expected.server.state[n], found.server.state[n]) for n in expected.server.state)
    assert [line["train_loss"] for line in expected.metrics] == [line["train_loss"] for line in found.metrics]
    assert [line["clients"] for line in expected.metrics] == [line["clients"] for line in found.metrics]


@pytest.mark.parametrize(("place", "call"), [("add_flat", 3), ("__init__", 1)])
def test_no_memory_for_the_sums_begins_the_round_again_with_fewer_slots(monkeypatch, place, call):
    expected = reference()
    with monkeypatch.context() as patch:
        memory = Memory(patch, place, calls=(call,), owner=FlatSum)
        with pytest.warns(UserWarning, match="fewer slots, . a width"):
            found = reference()
    assert memory.count > 4
    assert all(torch.equal(expected.server.state[n], found.server.state[n]) for n in expected.server.state)
    assert expected.metrics[-1]["train_loss"] == found.metrics[-1]["train_loss"]


def test_no_memory_to_prepare_the_next_round_is_no_reason_to_train_this_one_again(monkeypatch):
    expected = reference()
    with monkeypatch.context() as patch:
        memory = Memory(patch, "prepare", calls=(1,), owner=FlatEngine)
        found = reference()  # warnings are errors
    assert memory.count == 1
    assert all(torch.equal(expected.server.state[n], found.server.state[n]) for n in expected.server.state)


def test_a_device_with_room_for_one_slot_trains_one_client_at_a_time(monkeypatch):
    expected = reference()
    alive = weakref.WeakSet()
    real = Slot.__init__

    def make(slot, *arguments, **options):
        if alive:
            raise torch.OutOfMemoryError("no room for a second one")
        real(slot, *arguments, **options)
        alive.add(slot)

    monkeypatch.setattr(Slot, "__init__", make)
    with pytest.warns(UserWarning, match="out of memory") as said:
        found = reference()
    assert str(said[-1].message).endswith("fewer slots, 1 for all widths together")
    assert all(torch.equal(expected.server.state[n], found.server.state[n]) for n in expected.server.state)


def test_a_device_with_room_for_none_says_which_client_did_not_fit(monkeypatch):
    Memory(monkeypatch, "__init__", calls=range(1, 99))
    expected = r"^round 0, client \d+, capacity \S+, stage train: OutOfMemoryError"
    with pytest.warns(UserWarning, match="out of memory"), pytest.raises(ClientError, match=expected):
        reference()


STACKED = [*ROUND, "model.name=mlp", "model.options={hidden=[16,8]}", "data.clients=12", "devices.per_round=9"]


def run_stacked():
    return run(read_settings("quickstart", STACKED).main, "vectorised")


@pytest.mark.parametrize("place", ["__init__", "train", "_take_step", "_step"])
@pytest.mark.parametrize("error", [torch.OutOfMemoryError, RuntimeError])
def test_stacks_without_memory_go_on_with_fewer_rows_and_the_same_result(monkeypatch, place, error):
    expected = run_stacked()
    with monkeypatch.context() as patch:
        memory = Memory(patch, place, calls=(1, 3), error=error, owner=Stack)
        with pytest.warns(UserWarning, match="out of memory") as said:
            found = run_stacked()
    assert memory.count > 3
    messages = [str(w.message) for w in said]
    assert len(messages) in (1, 2)  # where others are kept, it is first tried without them, which needs no warning
    start = "out of memory on cpu: the vectorised engine goes on with smaller stacks, "
    assert all(re.fullmatch(rf"{start}\d of capacity (1|0.5) at a time", message) for message in messages)
    state = expected.server.state
    assert max(float((state[n] - found.server.state[n]).abs().max()) for n in state) < 1e-12
    for one, other in zip(expected.metrics, found.metrics, strict=True):
        assert one["clients"] == other["clients"]
        assert one["macs"] == other["macs"]
        assert one["train_loss"] == pytest.approx(other["train_loss"], rel=1e-12)


def test_rows_that_did_not_fit_once_are_not_tried_again(monkeypatch):
    real, rows = Stack.__init__, []

    def make(stack, *arguments, **options):
        rows.append(options["rows"])
        if options["rows"] > 2:
            raise torch.OutOfMemoryError("no room for three rows")
        real(stack, *arguments, **options)

    monkeypatch.setattr(Stack, "__init__", make)
    with pytest.warns(UserWarning, match="out of memory") as said:
        run_stacked()
    refused = [number for number, count in enumerate(rows) if count > 2]
    assert 0 < len(said) <= len(refused) <= 4
    assert max(rows[refused[-1] + 1 :]) == 2


def test_stacks_of_earlier_rounds_make_room_before_anything_shrinks(monkeypatch):
    expected, real, alive, refused = run_stacked(), Stack.__init__, weakref.WeakSet(), []

    def make(stack, *arguments, **options):
        if alive:
            refused.append(options["rows"])
            raise torch.OutOfMemoryError("no room for a second one")
        real(stack, *arguments, **options)
        alive.add(stack)

    monkeypatch.setattr(Stack, "__init__", make)
    found = run_stacked()  # a warning would be an error
    assert refused
    state = expected.server.state
    assert all(torch.equal(state[n], found.server.state[n]) for n in state)


def test_a_device_without_room_for_one_row_says_which_client_did_not_fit(monkeypatch):
    Memory(monkeypatch, "train", calls=range(1, 99), owner=Stack)
    expected = r"^round 0, client \d+, capacity \S+, stage train: OutOfMemoryError"
    with pytest.warns(UserWarning, match="out of memory") as said, pytest.raises(ClientError, match=expected):
        run_stacked()
    assert " 1 of capacity" in str(said[-1].message)


def test_an_error_after_one_of_memory_counts_as_one():
    def fail(*, hide):
        try:
            try:
                raise torch.OutOfMemoryError("no room")
            finally:
                raise ValueError("the capture ended early") from (KeyError() if hide else None)
        except ValueError as error:
            return error

    error = fail(hide=True)
    assert not out_of_memory(error)
    error.__cause__, error.__suppress_context__ = None, False
    assert out_of_memory(error)


def test_parameters_that_are_frozen_or_unused_stay_as_they_are():
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    data = fedwidth.data.from_tensors(x, (x[:, 0] > 0).long(), x, (x[:, 0] > 0).long())
    settings = read_settings("data.clients=4", ["rounds=3", "devices.per_round=3", "training.weight_decay=0.1"]).main
    for model, reason in ((PartlyFrozen(), None), (PartlyUsed(), "does not depend on 'idle'")):
        runs = {}
        for engine in ("serial", "cuda", "vectorised"):
            warned = engine == "vectorised" and reason
            with pytest.warns(UserWarning, match=reason) if warned else nullcontext():
                runs[engine] = Experiment(replace(settings, engine=engine), model=model.double(), data=data).run()
        state = runs["serial"].server.state
        still = model.state_dict()[model.still]
        for run in runs.values():
            assert torch.equal(run.server.state[model.still], still)
            assert all(torch.allclose(run.server.state[n], state[n], rtol=0, atol=1e-14) for n in state)


class PartlyFrozen(nn.Sequential):
    still = "0.weight"

    def __init__(self):
        super().__init__(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
        self[0].weight.requires_grad_(False)


class PartlyUsed(nn.Sequential):
    still = "idle"

    def __init__(self):
        super().__init__(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
        self.idle = nn.Parameter(torch.ones(3))


@pytest.mark.parametrize("method", ["feddropout", "fedminoccurances"])  # the second must wait for what the round leaves
def test_choosing_beforehand_changes_no_bit_and_chooses_once(monkeypatch, method):
    settings = read_settings("quickstart", [*ROUND, "rounds=4", f"method.name={method}"]).main
    rounds = []
    assign = Method.assign

    def counted(self, plan, cohort, round, memory=None, seed=0, *, state=None):
        rounds.append(round)
        return assign(self, plan, cohort, round, memory, seed, state=state)

    monkeypatch.setattr(Method, "assign", counted)
    ahead = Experiment(settings).run()
    assert rounds == [0, 1, 2, 3]
    monkeypatch.setattr(FlatEngine, "_work_ahead", lambda self, coming: None)
    plain = Experiment(settings).run()
    assert all(torch.equal(ahead.server.state[name], tensor) for name, tensor in plain.server.state.items())
    assert [line["clients"] for line in ahead.metrics] == [line["clients"] for line in plain.metrics]


def test_the_number_of_slots_changes_no_bit():
    settings = read_settings("quickstart", ["rounds=3", "evaluation.every=3", "engine=cuda"]).main
    many, one = (Experiment(replace(settings, slots=slots)).run().server.state for slots in (4, 1))
    assert all(torch.equal(many[n], one[n]) for n in many)


@pytest.mark.parametrize("plan", [mlp_plan(), heads_plan()], ids=["mlp", "heads"])
@pytest.mark.parametrize("name", ["heterofl", "feddropout", "fedrolex", "fedbrb"])
def test_flat_gather_equals_extract_and_flat_average_equals_merge(plan, name):
    state = random_state(plan)
    layout = Layout(plan, state, torch.float32)
    flat = layout.flatten(state)
    sums, updates = {}, []
    for task in fedwidth.method(name).assign(plan, list(enumerate((1.0, 0.5, 0.5, 0.3))), round=5):
        sub_layout = SubLayout(layout, task.index, torch.device("cpu"))
        where = sub_layout.positions(task.index)
        vector = flat.flat[where] + task.client
        views = sub_layout.views(flat.flat[where])
        expected = fedwidth.extract(state, plan, task.index)
        assert all(torch.equal(views[n], expected[n]) for n in expected)
        cohort = sums.setdefault(task.index.key, FlatSum(task.index, sub_layout, where))
        cohort.add_flat(vector, 1.0 + task.client, None)
        updates.append(({n: t + task.client for n, t in expected.items()}, task.index, 1.0 + task.client))
    new = average_flat(flat, list(sums.values()), layout)
    merged = fedwidth.merge(state, updates, plan)
    assert all(torch.equal(new[n], merged[n]) for n in merged)


def flat_sum(layout, index):
    sub = SubLayout(layout, index, torch.device("cpu"))
    return FlatSum(index, sub, sub.positions(index))


def rows_of(cohort, labels, classes=4):
    """1 for the labelled elements of these classes."""
    return torch.isin(cohort.sub.classes, torch.tensor(labels)).double() if len(labels) < classes else None


def test_three_clients_with_different_labels_by_hand():
    # Clients send 6, 12 and 24 everywhere, with weights 1, 2 and 3: (6 + 24 + 72) / 6 = 17 where classes do not count.
    plan = mlp_plan()
    state = random_state(plan, dtype=torch.float64)
    layout = Layout(plan, state, torch.float64)
    cohort = flat_sum(layout, fedwidth.Index.whole(plan))
    for value, weight, labels in ((6.0, 1.0, [0, 1]), (12.0, 2.0, [1, 2]), (24.0, 3.0, [0, 2])):
        cohort.add_flat(torch.full((cohort.sub.size,), value, dtype=torch.float64), weight, rows_of(cohort, labels))
    means = torch.tensor([(6 + 72) / 4, (6 + 24) / 3, (24 + 72) / 5], dtype=torch.float64)  # class 3: nobody's
    new = average_flat(layout.flatten(state), [cohort], layout)
    for name, tensor in new.items():
        if name.startswith("c."):
            expected = means.view([-1] + [1] * (tensor.dim() - 1)).expand(3, *tensor.shape[1:])
            torch.testing.assert_close(tensor[:3], expected, rtol=1e-14, atol=0)
            assert torch.equal(tensor[3], state[name][3])
        else:
            torch.testing.assert_close(tensor, torch.full_like(tensor, 17), rtol=1e-14, atol=0)
    assert cohort.weight["b.weight"] == 6.0
    assert cohort.weight["c.bias"].tolist() == [4, 3, 5, 0]
    assert cohort.weight["c.weight"].tolist() == [[weight] * 6 for weight in (4, 3, 5, 0)]

    # A client with weight 2, all classes and half the units joins: what nobody else weighed is its value alone.
    narrow = flat_sum(layout, fedwidth.Index.of_units(plan, {"a": range(4), "b": range(3)}))
    narrow.add_flat(torch.full((narrow.sub.size,), 5.0, dtype=torch.float64), 2.0, None)
    new = average_flat(layout.flatten(state), [cohort, narrow], layout)
    expected = torch.tensor([(78 + 10) / 6, (30 + 10) / 5, (96 + 10) / 7, 5], dtype=torch.float64)
    torch.testing.assert_close(new["c.bias"], expected, rtol=1e-14, atol=0)
    torch.testing.assert_close(new["c.weight"][:, :3], expected[:, None].expand(4, 3), rtol=1e-14, atol=0)
    torch.testing.assert_close(new["c.weight"][:3, 3:], means[:, None].expand(3, 3), rtol=1e-14, atol=0)
    assert torch.equal(new["c.weight"][3, 3:], state["c.weight"][3, 3:])
    torch.testing.assert_close(new["b.bias"], torch.tensor([14.0] * 3 + [17.0] * 3).double(), rtol=1e-14, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("first", [[0, 1, 2, 3], [2], []], ids=["all labels first", "one", "none"])
def test_rows_of_labels_have_the_bits_of_the_reference(first, dtype):
    plan, noise = mlp_plan(), torch.Generator().manual_seed(0)
    state = random_state(plan, dtype=dtype)
    layout = Layout(plan, state, dtype)
    flat, sums, updates = layout.flatten(state), {}, []
    for task in fedwidth.method("fedrolex").assign(plan, [(c, (1.0, 0.5)[c % 2]) for c in range(10)], round=3):
        labels = first if task.client < 2 else [[0], [1, 3], [0, 1, 2, 3]][task.client % 3]
        sub = fedwidth.extract(state, plan, task.index)
        sub = {name: tensor + torch.randn(tensor.shape, generator=noise, dtype=dtype) for name, tensor in sub.items()}
        cohort = sums.setdefault(task.index.key, flat_sum(layout, task.index))
        vector = torch.zeros(cohort.sub.size, dtype=dtype)
        for name, view in cohort.sub.views(vector).items():
            view.copy_(sub[name])
        cohort.add_flat(vector, 1.0 + task.client, rows_of(cohort, labels))
        updates.append(fedwidth.Update(sub, task.index, 1.0 + task.client, labels=torch.tensor(labels).long()))
    assert len(sums) == 2
    new = average_flat(flat, list(sums.values()), layout)
    merged = fedwidth.merge(state, updates, plan)
    assert all(torch.equal(new[n], merged[n]) for n in merged)


class Doubles(TorchDispatchMode):
    """Remembers how many elements every result in double precision has."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def __torch_dispatch__(self, call, types, arguments=(), options=None):
        result = call(*arguments, **(options or {}))
        found = result if isinstance(result, (tuple, list)) else [result]
        self.sizes += [t.numel() for t in found if isinstance(t, torch.Tensor) and t.dtype == torch.float64]
        return result


def test_adding_a_client_makes_no_vector_of_weights():
    plan = mlp_plan(first=50, second=6, classes=4)
    layout = Layout(plan, random_state(plan), torch.float32)
    cohort = flat_sum(layout, fedwidth.Index.whole(plan))
    labelled = 4 * 6 + 4
    vector, rows = torch.ones(cohort.sub.size), rows_of(cohort, [1, 2])
    with Doubles() as made:
        for own in (None, rows, None, rows):
            cohort.add_flat(vector, 2.0, own)
        assert cohort.mean.keys() == cohort.weight.keys()
    assert max(made.sizes) == labelled < cohort.sub.size


@pytest.mark.parametrize("channels_last", [True, False])
def test_labelled_elements_are_those_of_tensors_with_a_class_axis(channels_last):
    kernel = Fixed(2, "kernel")
    axes = {"hidden": (Units("a", 6), Fixed(3, "input")), "head": (Fixed(5, "output"), Units("a", 6), kernel, kernel)}
    plan = plan_of(axes | {"turned": (Units("a", 6), Fixed(5, "output"))}, label_axes=(("turned", 1), ("head", 0)))
    layout = Layout(plan, random_state(plan), torch.float32)
    index = fedwidth.Index.of_units(plan, {"a": [0, 2, 5]})
    sub = SubLayout(layout, index, torch.device("cpu"), channels_last=channels_last)
    numbers = torch.arange(5)
    expected = {"hidden": torch.tensor(5), "head": numbers.view(5, 1, 1, 1), "turned": numbers.view(1, 5)}
    labels = sub.labels(5)
    for name, view in sub.views(labels).items():
        assert torch.equal(view, expected[name].expand(view.shape))
    assert torch.equal(labels[labels < 5], sub.classes)
    for name, view in sub.labelled_views(sub.classes).items():
        assert torch.equal(view, expected[name].expand(index.shapes[name]))

    flat = torch.arange(sub.size)
    taken = sub.take_labelled(flat)
    assert torch.equal(taken, flat[labels < 5])
    sub.put_labelled(flat, -taken)
    assert torch.equal(flat, torch.where(labels < 5, -1, 1) * torch.arange(sub.size))


def test_a_value_that_is_not_finite_names_client_and_tensor():
    plan = mlp_plan()
    state = random_state(plan)
    layout = Layout(plan, state, torch.float32)
    index = fedwidth.Index.whole(plan)
    sub = SubLayout(layout, index, torch.device("cpu"))
    good = layout.flatten(state).flat[sub.positions(index)]
    bad = good.clone()
    sub.views(bad)["b.weight"][1, 2] = torch.nan
    with pytest.raises(UpdateError, match="client 8 sent a value in 'b.weight'"):
        check_finite([good, bad], [sub, sub], [3, 8])


def test_stacked_clients_of_unequal_size_agree_with_the_serial_engine():
    # Dirichlet shares differ in size, so batches are padded and clients end at different steps (no batch norm here).
    changes = ["rounds=3", "evaluation.every=3", "data.partition=dirichlet", "data.partition_options={alpha=1.0}"]
    changes += ["model.name=mlp", "model.options={hidden=[16,8]}", "training.lr=0.05", "data.clients=10"]
    settings = read_settings("quickstart", changes).main
    one, many = (run(settings, name) for name in ("serial", "vectorised"))
    worst = max(float((one.server.state[n] - many.server.state[n]).abs().max()) for n in one.server.state)
    assert worst < 1e-9


def test_orders_and_draws_are_replaced_together_or_not_at_all(monkeypatch):
    settings = read_settings("quickstart", ["rounds=1", "training.batch_size=4"]).main
    trainer = Experiment(settings).trainer
    flipped = replace(trainer.data, transform=Transform((0.5,), (0.5,), flip=True))
    held = TrainingSamples(replace(trainer, data=flipped))
    real, orders, draws = torch.zeros, [torch.zeros(3, 4, dtype=torch.long)], [torch.ones(3, 4, 3, dtype=torch.long)]

    def zeros(*shape, **options):
        if len(shape) == 3:
            raise torch.OutOfMemoryError("no room")
        return real(*shape, **options)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "zeros", zeros)
        with pytest.raises(torch.OutOfMemoryError):
            held.load_orders(orders, draws)
    assert held.load_orders(orders, draws) == ([0], True)
    assert held.draws[:3].eq(1).all()
