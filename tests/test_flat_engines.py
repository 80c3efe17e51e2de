"""Slots and stacks on the CPU (no graphs and streams there), against the serial engine in double precision."""

from dataclasses import replace

import pytest
import torch

import fedwidth
from fedwidth.config import read_settings
from fedwidth.engines.flat import Layout, SubLayout
from fedwidth.engines.flat_sums import FlatSum, average_flat, check_finite
from fedwidth.errors import UpdateError
from fedwidth.experiment import Experiment, build_model
from hand_plans import heads_plan, mlp_plan, random_state


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
@pytest.mark.parametrize("method", ["fedrolex", "heterofl", "feddropout", "fedbrb", "fedavg"])
def test_it_agrees_with_the_serial_engine_in_double_precision(method, optimiser, engine):
    lr = 0.1 if optimiser == "sgd" else 0.001
    changes = ["rounds=3", "evaluation.every=3", f"method.name={method}", f"training.optimiser={optimiser}"]
    changes += [f"training.lr={lr}", "devices.dynamic=true", "training.batch_size=20", "model.options={widths=[8,16]}"]
    settings = read_settings("quickstart", changes).main
    one, many = (run(settings, name) for name in ("serial", engine))
    worst = max(float((one.server.state[n] - many.server.state[n]).abs().max()) for n in one.server.state)
    assert worst < 1e-7
    assert one.metrics[-1]["train_loss"] == pytest.approx(many.metrics[-1]["train_loss"], rel=1e-5)


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
        where = sub_layout.where(task.index)
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


def test_a_value_that_is_not_finite_names_client_and_tensor():
    plan = mlp_plan()
    state = random_state(plan)
    layout = Layout(plan, state, torch.float32)
    index = fedwidth.Index.whole(plan)
    sub = SubLayout(layout, index, torch.device("cpu"))
    good = layout.flatten(state).flat[sub.where(index)]
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
