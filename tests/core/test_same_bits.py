"""The short cuts of the core (rectangles, one scatter, blocks that repeat without being copied) change no bit.

Beside them: the same arithmetic written plainly, one pass over all elements of a tensor per client or cohort.
"""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedwidth.core.cohort import sum_cohorts
from fedwidth.core.index import Index
from fedwidth.core.submodel import extract
from fedwidth.core.updates import Update
from fedwidth.methods import method
from fedwidth.plan.axis import Fixed, Units, tiling
from hand_plans import heads_plan, mlp_plan, plan_of, random_state


def bits(tensor):
    """The bytes of a tensor: 0 and -0 differ."""
    return tensor.contiguous().numpy().tobytes()


def grid(index, name):
    return torch.meshgrid(*index[name], indexing="ij")


def weights(update, name, plan):
    """What an update weighs in every element: nothing in rows of labels it lacks."""
    weight = torch.full(update.sub[name].shape, update.weight, dtype=torch.float64)
    for tensor, dim in plan.label_axes:
        if tensor == name and update.labels is not None:
            lacking = sorted(set(range(weight.shape[dim])) - set(update.labels.tolist()))
            weight.index_fill_(dim, torch.tensor(lacking, dtype=torch.long), 0.0)
    return weight


def blend(mean, value, weight, total):
    return torch.lerp(mean, value, torch.where(total > 0, weight / total, 0.0).to(mean.dtype))


def cohorts_of(updates, name, plan):
    """(index, mean, weight) of each cohort."""
    found = {}
    for update in updates:
        value, weight = update.sub[name], weights(update, name, plan)
        if update.index.key in found:
            _, mean, before = found[update.index.key]
            value, weight = blend(mean, value, weight, before + weight), before + weight
        found[update.index.key] = (update.index, value, weight)
    return list(found.values())


def average(old, cohorts, name):
    """Eq. 10 as running means."""
    new, total = old.clone(), torch.zeros(old.shape, dtype=torch.float64)
    for index, mean, weight in cohorts:
        here = grid(index, name)
        total[here] += weight
        new[here] = blend(new[here], mean, weight, total[here])
    return new


def broadcast(old, cohorts, name, plan):
    """The mean of FedBRB's updates, each tiled over all blocks but its own."""
    total, count = torch.zeros_like(old), torch.zeros_like(old)
    for index, mean, weight in cohorts:
        if index.shapes[name] == old.shape:
            continue
        tiles = torch.meshgrid(*[tiling(axis, index.counts) for axis in plan.axes[name]], indexing="ij")
        update = ((mean - old[grid(index, name)]) * (weight > 0))[tiles]
        others = torch.ones(old.shape)
        others[grid(index, name)] = 0
        total, count = total + torch.where(others > 0, update, 0.0), count + others
    return total / count.clamp(min=1)


def apart_plan():
    """Sliced dimensions with a whole one between them."""
    return plan_of({"w": (Units("a", 10), Fixed(3, "kernel"), Units("b", 9)), "v": (Fixed(2, "pair"), Units("b", 9))})


PLANS = {"rows": mlp_plan(first=16, second=12), "composite": heads_plan(), "apart": apart_plan()}


@given(
    st.sampled_from(["heterofl", "fedrolex", "feddropout", "fedbrb"]),
    st.sampled_from(sorted(PLANS)),
    st.lists(st.tuples(st.sampled_from([1, 0.6, 0.5, 0.25, 0.1]), st.floats(0.1, 10)), min_size=1, max_size=6),
    st.integers(0, 30),
    st.booleans(),
    st.booleans(),
)
@settings(deadline=None, max_examples=50)
def test_extract_and_aggregate_give_the_bits_of_plain_full_passes(name, plan, clients, round, labelled, turned):
    plan, how, noise = PLANS[plan], method(name), torch.Generator().manual_seed(round)
    state = random_state(plan)
    if turned:
        state = {n: t.transpose(0, -1).contiguous().transpose(0, -1) for n, t in state.items()}
    updates = []
    for number, task in enumerate(how.assign(plan, [(i, c) for i, (c, _) in enumerate(clients)], round)):
        sub = extract(state, plan, task.index)
        assert all(bits(t) == bits(state[n][grid(task.index, n)]) for n, t in sub.items())
        labels = torch.tensor([number % 4, (number + round) % 4]) if labelled else None
        for weight in (clients[number][1], 2.0):
            trained = {n: t + torch.randn(t.shape, generator=noise).round(decimals=1) for n, t in sub.items()}
            updates.append(Update(trained, task.index, weight, labels=labels))
    new = how.aggregate(state, sum_cohorts(updates, plan, copy=False), plan)
    for n, old in state.items():
        cohorts = cohorts_of(updates, n, plan)
        expected = average(old, cohorts, n)
        if name == "fedbrb" and any(index.sliced(n) for index, _, _ in cohorts):
            expected = expected + how.values["broadcast"] * broadcast(old, cohorts, n, plan)
        assert bits(new[n]) == bits(expected), n


def test_parts_are_put_back_into_tensors_of_any_layout():
    plan = apart_plan()
    index = Index.of_units(plan, {"a": [0, 2, 4, 6, 8], "b": [1, 3, 5, 7, 8]})
    assert index.pieces("w") is None
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2), (0, 2, 1)):
        back = [order.index(dim) for dim in range(3)]
        state = {
            n: t.permute(order).contiguous().permute(back) if n == "w" else t for n, t in random_state(plan).items()
        }
        sub = {n: t + 1 for n, t in extract(state, plan, index).items()}
        new = method("feddropout").aggregate(state, sum_cohorts([(sub, index, 1.0)], plan), plan)
        expected = state["w"].clone()
        expected[grid(index, "w")] = sub["w"]
        assert bits(new["w"]) == bits(expected)
