"""Laws that every method keeps on every model."""

import pytest
import torch
from contract_models import MODELS, traced
from hypothesis import given, settings
from hypothesis import strategies as st

import fedwidth
from fedwidth.methods import methods
from zoo import run

CAPACITIES = (1.0, 0.5, 0.25, 0.125, 1 / 16)
METHODS = sorted(methods())


def state_of(name):
    model, plan, inputs = traced(name)
    return model, plan, inputs, fedwidth.state_of(model)


@pytest.mark.parametrize("model_name", MODELS)
@pytest.mark.parametrize("name", METHODS)
class TestLaws:
    def test_indices_are_in_range_distinct_sorted_and_of_the_planned_size(self, name, model_name):
        _, plan, _, state = state_of(model_name)
        for rounding in ("floor", "ceil"):
            narrows = "rounding" in methods()[name].options
            method = fedwidth.method(name, **({"rounding": rounding} if narrows else {}))
            for capacity in (1.0, 0.5, 1 / 16):
                for round in (0, 7, 1000):
                    index = method.select(
                        plan, capacity=capacity, round=round, client=1, clients=3, seed=5, state=state
                    )
                    wanted = plan.narrow_shapes(plan.counts(capacity if narrows else 1.0, rounding))
                    for tensor, dims in index.items():
                        assert tuple(len(kept) for kept in dims) == wanted[tensor]
                        for kept, size in zip(dims, plan.shapes[tensor], strict=True):
                            assert kept.dtype == torch.long
                            assert len(kept) == 0 or 0 <= int(kept[0]) <= int(kept[-1]) < size
                            assert bool((kept[1:] > kept[:-1]).all())

    def test_full_capacity_is_fedavg_bit_for_bit(self, name, model_name):
        model, plan, inputs, state = state_of(model_name)
        noise = torch.Generator().manual_seed(0)
        outcomes = []
        for method in (fedwidth.method("fedavg"), fedwidth.method(name)):
            noise.manual_seed(0)
            tasks = method.assign(plan, [(c, 1.0) for c in range(3)], round=4, seed=1, state=state)
            updates = []
            for task in tasks:
                sub = fedwidth.extract(state, plan, task.index)
                assert all(torch.equal(sub[n], state[n]) for n in state)
                for n in sub:
                    if n not in plan.tied and sub[n].is_floating_point():
                        sub[n] += torch.randn(sub[n].shape, generator=noise)
                updates.append(fedwidth.Update(sub, task.index, weight=1.0 + task.client))
            outcomes.append(method.aggregate(state, fedwidth.core.cohort.sum_cohorts(updates, plan), plan))
        assert all(torch.equal(outcomes[0][n], outcomes[1][n]) for n in state)
        small = fedwidth.narrow(model, plan, fedwidth.method(name).select(plan, capacity=1, round=3, state=state))
        with torch.no_grad():
            assert torch.equal(run(small.eval(), inputs), run(model.eval(), inputs))

    def test_training_that_changes_nothing_changes_nothing(self, name, model_name):
        _, plan, _, state = state_of(model_name)
        method = fedwidth.method(name)
        tasks = method.assign(plan, list(enumerate((*CAPACITIES, 0.5))), round=3, seed=2, state=state)
        updates = [
            fedwidth.Update(fedwidth.extract(state, plan, t.index), t.index, weight=0.1 + t.client) for t in tasks
        ]
        new = method.aggregate(state, fedwidth.core.cohort.sum_cohorts(updates, plan), plan)
        assert all(torch.equal(new[n], state[n]) for n in state)

    def test_untouched_elements_keep_their_bits(self, name, model_name):
        _, plan, _, state = state_of(model_name)
        method = fedwidth.method(name, **({"broadcast": 0} if name == "fedbrb" else {}))
        tasks = method.assign(plan, list(enumerate((0.25, 0.125))), round=5, seed=2, state=state)
        updates = []
        for task in tasks:
            sub = {n: t + 1 for n, t in fedwidth.extract(state, plan, task.index).items()}
            updates.append((sub, task.index, 1.0))
        new = method.aggregate(state, fedwidth.core.cohort.sum_cohorts(updates, plan), plan)
        for n, tensor in state.items():
            held = torch.zeros(tensor.shape, dtype=torch.bool)
            for task in tasks:
                held[torch.meshgrid(*task.index[n], indexing="ij") if tensor.dim() else ()] = True
            assert torch.equal(new[n][~held], tensor[~held])
            assert bool((new[n][held] != tensor[held]).all())

    def test_sub_models_run_and_train(self, name, model_name):
        model, plan, inputs, state = state_of(model_name)
        index = fedwidth.method(name).select(plan, capacity=0.5, round=2, client=1, clients=2, state=state)
        small = fedwidth.narrow(model, plan, index).train()
        run(small, inputs).square().mean().backward()
        grads = [p.grad for p in small.parameters() if p.grad is not None]
        assert len(grads) > 0.8 * len(list(small.parameters()))  # some models hold weights they do not use
        assert all(g.isfinite().all() for g in grads)


@pytest.mark.parametrize("name", METHODS)
@given(
    capacity=st.sampled_from(CAPACITIES),
    round=st.integers(0, 5000),
    clients=st.integers(1, 20),
    seed=st.integers(0, 2**31),
    data=st.data(),
)
@settings(deadline=None, max_examples=25)
def test_the_same_arguments_give_the_same_index(name, capacity, round, clients, seed, data):
    _, plan, _, state = state_of("preresnet18")
    client = data.draw(st.integers(0, clients - 1))
    arguments = {"capacity": capacity, "round": round, "client": client, "clients": clients, "seed": seed}
    arguments["state"] = state
    first = fedwidth.method(name).select(plan, **arguments)
    torch.manual_seed(data.draw(st.integers(0, 9)))
    second = fedwidth.method(name).select(plan, **arguments)
    assert first.key == second.key
    assert all(torch.equal(a, b) for n in first for a, b in zip(first[n], second[n], strict=True))


@pytest.mark.parametrize("name", [name for name, method in methods().items() if method.shared(method.values)])
def test_clients_of_one_capacity_share_a_window_where_the_paper_says_so(name):
    _, plan, _, state = state_of("preresnet18")
    tasks = fedwidth.method(name).assign(plan, [(c, 0.25) for c in range(4)], round=9, seed=3, state=state)
    assert len({task.index.key for task in tasks}) == 1
    by_select = {
        fedwidth.method(name).select(plan, capacity=0.25, round=9, client=c, clients=4, seed=3, state=state).key
        for c in range(4)
    }
    assert by_select == {tasks[0].index.key}


@pytest.mark.parametrize("name", [name for name, method in methods().items() if not method.shared(method.values)])
def test_clients_of_one_capacity_differ_where_the_paper_says_so(name):
    _, plan, _, state = state_of("preresnet18")
    tasks = fedwidth.method(name).assign(plan, [(c, 0.25) for c in range(4)], round=9, seed=3, state=state)
    assert len({task.index.key for task in tasks}) > 1


def test_the_papers_share_windows_in_these_methods():
    shared = {name for name, method in methods().items() if method.shared(method.values)}
    assert {"fedavg", "heterofl", "fjord", "fedrolex", "fedbrb"} <= shared
    assert not shared & {"feddropout", "fedcover", "fedstack", "fedminoccurances", "fedecover"}


@pytest.mark.parametrize("name", [name for name, method in methods().items() if method.nested(method.values)])
def test_narrower_sub_models_lie_inside_wider_ones_where_a_method_says_so(name):
    _, plan, _, state = state_of("preresnet18")
    for round in (0, 5, 300):
        narrow, wide = (
            fedwidth.method(name).select(plan, capacity=c, round=round, seed=3, state=state) for c in (0.25, 0.5)
        )
        for tensor in plan.shapes:
            for inner, outer in zip(narrow[tensor], wide[tensor], strict=True):
                assert set(inner.tolist()) <= set(outer.tolist())


def test_smaller_windows_of_fedrolex_are_nested_in_larger_ones():
    _, plan, _ = traced("preresnet18")
    rolex = fedwidth.method("fedrolex")
    for round in (0, 5, 63, 200):
        small, large = (rolex.select(plan, capacity=c, round=round) for c in (0.25, 0.5))
        assert all(set(small.units[g].tolist()) <= set(large.units[g].tolist()) for g in plan.groups)


def test_residuals_stay_aligned_under_federated_dropout():
    # The published code draws per layer, so a full-width random sub-model computes something else than the model.
    model, plan, inputs = traced("preresnet18")
    index = fedwidth.method("feddropout").select(plan, capacity=1.0, seed=3)
    with torch.no_grad():
        assert torch.equal(fedwidth.narrow(model, plan, index)(inputs), model(inputs))
