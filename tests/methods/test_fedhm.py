"""FedHM: worked examples of its equations, by hand."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import fedwidth
from fedwidth.core.factored.factored_layer import product_norm
from fedwidth.core.factored.factors import Factors
from fedwidth.core.index import Index
from fedwidth.experiment import Experiment
from fedwidth.methods import Closing, Task
from small_runs import small


def net(matrix):
    """Three layers; the inner one has the matrix."""
    made = nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(3)))
    made[1].weight.data = torch.tensor(matrix)
    return made


PLAN = fedwidth.trace(net([[2.0, 0.0], [0.0, 1.0]]), torch.randn(2, 2))
FEDHM = fedwidth.method("fedhm")


def rank_one():
    return Factors(PLAN, "separable", {"1.weight": (0,)})


def test_a_diagonal_matrix_of_rank_one():
    """diag(2, 1) at rank 1: U = (sqrt 2, 0)', V = (sqrt 2, 0), recovered diag(2, 0)."""
    state = fedwidth.state_of(net([[2.0, 0.0], [0.0, 1.0]]))
    sub = rank_one().cut(state, PLAN)
    root = math.sqrt(2)
    torch.testing.assert_close(sub["1.up"].abs(), torch.tensor([[[root], [0.0]]]))
    torch.testing.assert_close(sub["1.down"].abs(), torch.tensor([[[root, 0.0]]]))
    recovered = rank_one().products(sub, PLAN)["1.weight"]
    torch.testing.assert_close(recovered, torch.tensor([[2.0, 0.0], [0.0, 0.0]]))


def closed(method, updates):
    """The inner matrix after a round; an update is (capacity, part, tensors of the inner layer)."""
    state = fedwidth.state_of(net([[9.0, 9.0], [9.0, 9.0]]))
    tasks, sums = [], []
    for place, (capacity, part, inner) in enumerate(updates):
        tasks.append(Task(place, capacity, part, place, single=True))
        sums.append(part.accumulator())
        sub = {name: tensor for name, tensor in state.items() if name != "1.weight"} | inner
        sums[-1].add(fedwidth.Update(sub, part, 1.0))
    return method.finish(Closing(state, sums, PLAN, tasks=tasks, options=method.values))["1.weight"]


WHOLE = (1.0, Index.whole(PLAN), {"1.weight": torch.tensor([[2.0, 0.0], [0.0, 2.0]])})
ROOT = math.sqrt(2)
HALF = (0.5, rank_one(), {"1.up": torch.tensor([[[ROOT], [1.0]]]), "1.down": torch.tensor([[[ROOT, 0.0]]])})


def test_the_mean_of_products_of_a_whole_and_a_factored_client():
    uniform = closed(FEDHM, [WHOLE, HALF])
    torch.testing.assert_close(uniform, torch.tensor([[2.0, 0.0], [0.707107, 1.0]]))
    by_rank = closed(fedwidth.method("fedhm", weights="rank"), [WHOLE, HALF])
    torch.testing.assert_close(by_rank, torch.tensor([[2.0, 0.0], [0.380341, 1.462117]]))


def test_four_factors_weigh_what_their_softmax_says():
    """f = 1, 2, 4, 8: 0.704931, 0.259330, 0.035096, 0.000643."""
    ones = [(1 / f, Index.whole(PLAN), {"1.weight": torch.zeros(2, 2)}) for f in (1, 2, 4, 8)]
    shares = []
    for place in range(4):
        updates = [(c, p, {"1.weight": torch.full((2, 2), float(n == place))}) for n, (c, p, _) in enumerate(ones)]
        shares.append(closed(fedwidth.method("fedhm", weights="rank"), updates)[0, 0].item())
    assert shares == pytest.approx([0.704931, 0.259330, 0.035096, 0.000643], abs=1e-6)


def test_what_weighs_less_than_any_number_counts_for_nothing():
    """At a temperature of 0.001 the whole model weighs e^1000 times as much as the half."""
    whole = (1.0, Index.whole(PLAN), {"1.weight": torch.full((2, 2), 7.0)})
    cold = fedwidth.method("fedhm", weights="rank", temperature=0.001)
    torch.testing.assert_close(closed(cold, [whole, HALF]), torch.full((2, 2), 7.0))
    torch.testing.assert_close(closed(cold, [HALF]), torch.full((2, 2), 9.0))


def test_without_a_whole_client_the_server_joins():
    """W_B = [[2, 0], [1.414214, 0]] and the server's nines, alike and by softmax of -2 and -1."""
    alike = closed(FEDHM, [HALF])
    torch.testing.assert_close(alike, torch.tensor([[5.5, 4.5], [(ROOT + 9) / 2, 4.5]]))
    by_rank = closed(fedwidth.method("fedhm", weights="rank"), [HALF])
    share = math.exp(-2) / (math.exp(-2) + math.exp(-1))
    torch.testing.assert_close(by_rank[0], torch.tensor([share * 2 + (1 - share) * 9, (1 - share) * 9]))


def test_the_server_joins_with_its_counters_too():
    """Batch norms count batches in whole numbers: a client's 4 and the server's 2 are 3 on average."""
    model = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    plan = fedwidth.trace(model, torch.randn(3, 2))
    part = Factors(plan, "separable", {"1.weight": (0,)})
    state = fedwidth.state_of(model) | {"2.num_batches_tracked": torch.tensor(2)}
    summed = part.accumulator()
    summed.add(fedwidth.Update(part.cut(state, plan) | {"2.num_batches_tracked": torch.tensor(4)}, part, 1.0))
    closing = Closing(state, [summed], plan, tasks=[Task(0, 0.5, part, 0, single=True)], options=FEDHM.values)
    found = FEDHM.finish(closing)["2.num_batches_tracked"]
    assert found == torch.tensor(3)
    assert found.dtype == torch.int64


def test_ranks_follow_the_paper_and_layers_that_gain_nothing_stay_whole():
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 1))
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5))
    plan = fedwidth.trace(model, torch.randn(2, 3, 8, 8))
    half = FEDHM.select(plan, capacity=0.5)
    assert {n: len(c) for n, c in half.components.items()} == {"1.weight": 8}, "1 x 1 at rank 8 of 16 saves nothing"
    quarter = FEDHM.select(plan, capacity=0.25)
    assert {n: len(c) for n, c in quarter.components.items()} == {"1.weight": 4, "2.weight": 4}
    by_weights = fedwidth.method("fedhm", rank="parameters").select(plan, capacity=0.25)
    assert len(by_weights.components["1.weight"]) == 48 * 48 // (16 * (48 + 48)), "a sixteenth of its weights"
    kept = fedwidth.method("fedhm", keep_first=1).select(plan, capacity=0.25)
    assert set(kept.components) == {"2.weight"}
    assert FEDHM.select(plan, capacity=1).is_whole


def test_the_gradient_of_its_decay_is_that_of_the_product():
    """d/2 |UV|^2 has the gradients d U V V' and d U' U V."""
    torch.manual_seed(0)
    part = rank_one()
    module = part.module(net([[2.0, 0.0], [0.0, 1.0]]), PLAN)
    module.load_state_dict(part.cut(fedwidth.state_of(net([[2.0, 1.0], [0.5, 1.0]])), PLAN))
    (0.1 / 2 * product_norm(module)).backward()
    up, down = module[1].up, module[1].down
    torch.testing.assert_close(up.grad, 0.1 * up @ down @ down.mT)
    torch.testing.assert_close(down.grad, 0.1 * up.mT @ up @ down)


def test_published_classifiers_shrink_where_clients_lack_a_class():
    """A has both classes, B the first alone, both weigh 1: row 0 is (3 + 1) / 2, row 1 is 3 / 2 in place of 3."""
    state, whole = fedwidth.state_of(net([[1.0, 0.0], [0.0, 1.0]])), Index.whole(PLAN)
    found = {}
    for published in (False, True):
        method = fedwidth.method("fedhm", published=published)
        total = whole.accumulator()
        for client, (value, labels) in enumerate(((3.0, [0, 1]), (1.0, [0]))):
            sub = {name: torch.full_like(tensor, value) for name, tensor in state.items()}
            total.add(fedwidth.Update(sub, whole, 1.0, labels=torch.tensor(labels), client=client))
        tasks = [Task(0, 1.0, whole, 0), Task(1, 1.0, whole, 1)]
        found[published] = method.finish(Closing(state, [total], PLAN, tasks=tasks, options=method.values))
    assert found[False]["2.weight"].tolist() == [[2.0, 2.0], [3.0, 3.0]]
    assert found[True]["2.weight"].tolist() == [[2.0, 2.0], [1.5, 1.5]]
    assert torch.equal(found[True]["1.weight"], found[False]["1.weight"])


def test_published_factors_decay_like_all_weights():
    """One step on a loss of 0 with decay 0.1 and rate 1: factors shrink by a tenth, or stay."""
    training = ["training.weight_decay=0.1", "training.lr=1.0", "training.momentum=0", "training.steps=1", "rounds=1"]
    settings = ["method.name=fedhm", "devices.capacities=1/4:1", "model.options={hidden=[32,32]}", *training]
    trained = {}
    for published in ("false", "true"):
        run = Experiment(small(*settings, f"method.options={{decay=0, published={published}}}"))
        (task, *_) = run.method.assign(run.plan, [(0, 0.25)], round=0)
        sub = task.part.cut(run.first_state, run.plan)
        run.trainer.objective = replace(run.objective, loss=lambda output, targets: (output * 0).sum())
        after = run.trainer.train(sub, task, 0).update.sub
        names = [name for name in sub if name.endswith((".up", ".down"))]
        assert names
        trained[published] = {name: (after[name] / sub[name]).median().item() for name in names}
    assert set(trained["false"].values()) == {1.0}
    assert all(share == pytest.approx(0.9) for share in trained["true"].values())


def test_the_server_joins_with_whole_numbers_too():
    """Batch norms count batches in whole numbers, which are averaged as numbers with a fraction."""
    run = Experiment(
        small(
            "method.name=fedhm",
            "model.name=cnn",
            "model.options={widths=[16,16,16]}",
            "rounds=1",
            "devices.capacities=1/8:1",
        )
    )
    counted = [name for name, tensor in run.first_state.items() if not tensor.is_floating_point()]
    state = run.run().server.state
    assert counted
    assert all(torch.equal(state[name], run.first_state[name]) for name in counted)
