"""Vectors of sub-models: the gather is `extract`, the average is `merge`, and rows of labels have their bits."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import fedwidth
from fedwidth.engines.flat.layout import FlatState, Layout, SubLayout
from fedwidth.engines.flat.sums import FlatSum, FlatSums, average_flat, broadcast_flat, check_finite
from fedwidth.errors import UpdateError
from fedwidth.methods.shared.broadcast import add_broadcast
from fedwidth.plan.axis import Fixed, Units
from hand_plans import heads_plan, mlp_plan, plan_of, random_state


@pytest.mark.parametrize("plan", [mlp_plan(), heads_plan()], ids=["mlp", "heads"])
@pytest.mark.parametrize("name", ["heterofl", "feddropout", "fedrolex", "fedbrb"])
def test_flat_gather_equals_extract_and_flat_average_equals_merge(plan, name):
    state = random_state(plan)
    layout = Layout(plan, state, torch.float32)
    flat = layout.flatten(state)
    sums, updates = {}, []
    for task in fedwidth.method(name).assign(plan, list(enumerate((1.0, 0.5, 0.5, 0.3))), round=5):
        sub_layout = SubLayout(layout, task.index, torch.device("cpu"))
        positions = sub_layout.positions(task.index)
        vector = flat.flat[positions] + task.client
        views = sub_layout.views(flat.flat[positions])
        expected = fedwidth.extract(state, plan, task.index)
        assert all(torch.equal(views[n], expected[n]) for n in expected)
        cohort = sums.setdefault(task.index.key, FlatSum(task.index, sub_layout, positions))
        cohort.add_flat(vector, 1.0 + task.client, None)
        updates.append(({n: t + task.client for n, t in expected.items()}, task.index, 1.0 + task.client))
    new = average_flat(flat, list(sums.values()), layout)
    merged = fedwidth.merge(state, updates, plan)
    assert all(torch.equal(new[n], merged[n]) for n in merged)


@pytest.mark.parametrize("labels", [[], [0, 2]], ids=["all classes", "two classes"])
@pytest.mark.parametrize("plan", [mlp_plan(), heads_plan()], ids=["mlp", "heads"])
def test_updates_are_repeated_over_vectors_as_they_are_tensor_by_tensor(plan, labels):
    state = random_state(plan)
    layout = Layout(plan, state, torch.float32)
    flat = layout.flatten(state)
    sums = {}
    for task in fedwidth.method("fedbrb").assign(plan, list(enumerate((1.0, 0.5, 0.5, 0.3))), round=5):
        cohort = sums.setdefault(task.index.key, flat_sum(layout, task.index))
        rows = rows_of(cohort, labels) if labels and len(cohort.sub.classes) else None
        cohort.add_flat(flat.flat[cohort.positions] + task.client + 1, 1.0 + task.client, rows)
    found = FlatSums(list(sums.values()), layout)
    average = found.average(flat)
    vectors = add_broadcast(average, flat, found, plan, 0.2)
    tensors = add_broadcast(average, flat, list(sums.values()), plan, 0.2)
    assert isinstance(vectors, FlatState)
    assert all(torch.equal(vectors[name], tensors[name]) for name in tensors)
    assert any(not torch.equal(vectors[name], average[name]) for name in tensors)


def test_what_reaches_another_block_by_hand():
    # One client of half the width adds 1 to its 4 of 8 and 3 of 6 units, another of a quarter of "a" and a third of "b"
    # adds 3. A block that both reach gets their mean, 2; the one that only the other trained gets 1 or 3.
    plan = mlp_plan()
    state = {name: torch.zeros_like(tensor) for name, tensor in random_state(plan, dtype=torch.float64).items()}
    layout = Layout(plan, state, torch.float64)
    cohorts = []
    for value, a, b in ((1.0, 4, 3), (3.0, 2, 2)):
        cohort = flat_sum(layout, fedwidth.Index.of_units(plan, {"a": range(a), "b": range(b)}))
        cohort.add_flat(torch.full((cohort.sub.size,), value, dtype=torch.float64), 1.0, None)
        cohorts.append(cohort)
    moves = layout.views(broadcast_flat(layout.flatten(state), cohorts))
    assert moves["a.bias"].tolist() == [0, 0, 3, 3, 2, 2, 2, 2]
    assert moves["b.weight"][0].tolist() == [0, 0, 3, 3, 2, 2, 2, 2]
    assert moves["b.weight"][:, 0].tolist() == [0, 0, 3, 2, 2, 2]
    assert moves["c.bias"].tolist() == [0, 0, 0, 0], "nobody holds a block of it: all hold the whole"


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
