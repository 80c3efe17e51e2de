"""Secure sums in a simulated round (the notes' numbers 2, 4, 5, 7, 17, 18, 33, 42), and what does not go with them."""

from __future__ import annotations

import subprocess
import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import fedwidth
from fedwidth.config.read import read_settings
from fedwidth.core.cohort import CohortSum
from fedwidth.core.submodel import state_of
from fedwidth.core.updates import Update
from fedwidth.engines.packed.limits import why_not_pack
from fedwidth.errors import OptionError, UpdateError
from fedwidth.experiment import Experiment, Stopped
from fedwidth.methods import method, methods
from fedwidth.methods.lookup.secure_sums import SHELLS, segments_of
from fedwidth.secure.fixed_point import FixedPoint
from fedwidth.settings import SecureSettings, ServerSettings
from fedwidth.training.server.layout import layouts_of
from fedwidth.training.server.secure import SecureRound
from small_runs import same, small

EVERYONE = ("devices.per_round=6", "secure.enabled=true", "secure.min_clients=3")
CAPACITIES = (1.0, 0.5, 0.25, 1.0, 0.5, 0.25, 0.25)


def made(*widths: int) -> tuple[nn.Module, fedwidth.Plan]:
    torch.manual_seed(0)
    layers = [nn.Linear(widths[0], widths[1]), nn.ReLU(), nn.Linear(widths[1], widths[2]), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(widths[2], widths[3])).double()
    return model, fedwidth.trace(model, torch.zeros(2, widths[0], dtype=torch.float64))


def updates_of(plan, state, tasks, *, size=0.1, weighting="equal"):
    """What clients would send that changed every weight by at most `size`."""
    draws = torch.Generator().manual_seed(1)
    found = []
    for task in tasks:
        sub = {
            name: tensor + size * (2 * torch.rand(tensor.shape, generator=draws, dtype=tensor.dtype) - 1)
            for name, tensor in task.part.cut(state, plan).items()
        }
        weight = float(task.index.number_of_units) if weighting == "model-size" else 1.0
        found.append(Update(sub, task.index, weight, client=task.client))
    return found


def sums_of(updates):
    sums = []
    for update in updates:
        sums.append(CohortSum(update.index))
        sums[-1].add(update)
    return sums


def round_of(name, *, round=0, capacities=CAPACITIES, **options):
    chosen = method(name, **options)
    model, plan = made(4, 16, 12, 3)
    tasks = chosen.assign(plan, list(enumerate(capacities)), round, seed=3)
    return chosen, plan, state_of(model), [replace(task, single=True) for task in tasks]


def secured(chosen, plan, state, drawn, *, min_clients=2, weighting="equal"):
    settings = SecureSettings(enabled=True, min_clients=min_clients)
    return SecureRound(state, plan, drawn, settings, by_shells=segments_of(chosen) == SHELLS, weighting=weighting)


NESTED = [
    ("fedrolex", {}),
    ("fedrolex", {"direction": "backward", "step": 0.3}),
    ("heterofl", {}),
    ("fjord", {}),
    ("feddropout", {"draw": "round"}),
    ("fedavg", {}),
]


@pytest.mark.parametrize(("name", "options"), [*NESTED, ("fedbrb", {"broadcast": 0.0}), ("fedrolex", {"overlap": 0.5})])
@pytest.mark.parametrize("weighting", ["equal", "model-size"])
def test_2_the_new_state_is_within_the_bound_of_merge(name, options, weighting):
    """Of every element: n_h / (2 scale W) with its holders n_h and their weight W, both counted here one by one."""
    chosen, plan, state, tasks = round_of(name, round=14, **options)
    updates = updates_of(plan, state, tasks, weighting=weighting)
    sums, opened = secured(chosen, plan, state, tasks, weighting=weighting).add(tasks, sums_of(updates))
    assert opened.closed == 0
    found = chosen.aggregate(state, sums, plan)
    exact = fedwidth.merge(state, updates, plan)
    weights = [update.weight for update in updates]
    scale = FixedPoint(len(tasks), max_weight=max(weights)).scale
    assert not same(found, state)
    for tensor, value in state.items():
        holders, weight = torch.zeros_like(value), torch.zeros_like(value)
        for update in updates:
            where = np.ix_(*(kept.numpy() for kept in update.index[tensor]))
            holders.numpy()[where] += 1
            weight.numpy()[where] += update.weight
        bound = torch.where(weight > 0, holders / (2 * scale * weight.clamp(min=1)), 0.0)
        assert ((found[tensor] - exact[tensor]).abs() <= bound + 1e-15).all()


def test_4_training_that_changes_nothing_changes_nothing():
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        chosen, plan, state, tasks = round_of("fedrolex", round=9)
        state = {name: tensor.to(dtype) for name, tensor in state.items()}
        sums, _ = secured(chosen, plan, state, tasks).add(tasks, sums_of(updates_of(plan, state, tasks, size=0.0)))
        assert same(chosen.aggregate(state, sums, plan), state)


@pytest.mark.parametrize(("name", "options"), NESTED[:-1])
@pytest.mark.parametrize("round", [0, 7, 11, 15])
def test_7_shells_partition_what_is_held_and_all_holders_agree(name, options, round):
    """Every element of the widest sub-model lies in one shell, and all who hold a shell have its words in one order."""
    _, plan, _, tasks = round_of(name, round=round, capacities=(1 / 8, 0.25, 0.5, 0.75), **options)
    numbers = {n: torch.arange(tensor.numel()).reshape(tensor.shape).double() for n, tensor in full_state(plan).items()}
    offsets = dict(zip(numbers, np.cumsum([0, *(t.numel() for t in numbers.values())]), strict=False))
    numbered = {name: tensor + offsets[name] for name, tensor in numbers.items()}
    layouts = layouts_of({task.part.key: task.index for task in tasks}, list(plan.axes), by_shells=True)
    widest, seen = layouts[tasks[-1].part.key], {}
    for task in tasks:
        layout = layouts[task.part.key]
        elements = layout.flatten(task.part.cut(numbered, plan))
        assert layout.words.length == sum(t.numel() for t in task.part.cut(numbered, plan).values())
        for segment, own in layout.words.split(elements).items():
            assert seen.setdefault(segment, own.tolist()) == own.tolist()
        back = layout.unflatten(elements)
        assert same(back, dict(task.part.cut(numbered, plan)))
    union = sorted(element for own in seen.values() for element in own)
    assert union == sorted(widest.flatten(tasks[-1].part.cut(numbered, plan)).tolist())
    assert len(set(union)) == len(union)


def full_state(plan):
    return {name: torch.zeros(shape) for name, shape in plan.shapes.items()}


def test_17_a_closed_shell_keeps_its_bits_and_the_others_open():
    """Two of seven hold the outermost shell; with m = 3 exactly the elements that a half-width client lacks stay."""
    chosen, plan, state, tasks = round_of("fedrolex", round=14)
    sums, opened = secured(chosen, plan, state, tasks, min_clients=3).add(
        tasks, sums_of(updates_of(plan, state, tasks))
    )
    assert (opened.segments, opened.closed) == (3, 1)
    found, half = chosen.aggregate(state, sums, plan), tasks[1].index
    for name, tensor in state.items():
        held = torch.zeros(tensor.shape, dtype=torch.bool)
        held.numpy()[np.ix_(*(kept.numpy() for kept in half[name]))] = True
        assert torch.equal(found[name][~held], tensor[~held])
        assert (found[name][held] != tensor[held]).all()
    hidden = sum(t.numel() for t in state.values()) - sum(np.prod(shape) for shape in half.shapes.values())
    assert opened.closed_weights == pytest.approx(hidden / sum(t.numel() for t in state.values()))


def test_18_all_of_one_class_are_gone():
    chosen, plan, state, tasks = round_of("heterofl")
    alive = [task for task in tasks if task.capacity < 1]
    sums, opened = secured(chosen, plan, state, tasks).add(alive, sums_of(updates_of(plan, state, alive)))
    assert (opened.segments, opened.closed, opened.closed_weights) == (3, 1, 0.0)
    exact = fedwidth.merge(state, updates_of(plan, state, alive), plan)
    found = chosen.aggregate(state, sums, plan)
    assert all((found[name] - exact[name]).abs().max() < 1e-8 for name in state)


def test_too_few_open_nothing():
    """Seven were drawn, five must send theirs."""
    chosen, plan, state, tasks = round_of("heterofl")
    updates = updates_of(plan, state, tasks)
    assert secured(chosen, plan, state, tasks).add(tasks[:5], sums_of(updates[:5]))[0]
    sums, opened = secured(chosen, plan, state, tasks).add(tasks[:4], sums_of(updates[:4]))
    assert sums == []
    assert (opened.closed, opened.closed_weights) == (3, 1.0)


def test_cohorts_are_segments_where_windows_do_not_nest():
    chosen, plan, state, tasks = round_of("fedbrb", round=5)
    sums, opened = secured(chosen, plan, state, tasks, min_clients=3).add(
        tasks, sums_of(updates_of(plan, state, tasks))
    )
    assert (opened.segments, opened.closed) == (3, 2)
    assert [(total.index, total.clients) for total in sums] == [(tasks[2].index, 3)]
    assert isinstance(sums[0].weight["0.weight"], float)


def test_changes_beyond_the_clip_are_clipped_and_counted():
    chosen, plan, state, tasks = round_of("fedavg", capacities=(1.0, 1.0))
    updates = updates_of(plan, state, tasks, size=0.0)
    for update, change in zip(updates, (3.0, 0.5), strict=True):
        update.sub["0.bias"][:2] += change
    sums, opened = secured(chosen, plan, state, tasks).add(tasks, sums_of(updates))
    assert opened.clipped == 2
    change = chosen.aggregate(state, sums, plan)["0.bias"] - state["0.bias"]
    assert change[:2].tolist() == pytest.approx([0.75, 0.75])
    assert not change[2:].any()


def test_42_whole_numbers_that_change_are_refused_and_others_pass():
    model = nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))
    flat = nn.Sequential(nn.Flatten(), model)
    experiment = Experiment(small(*EVERYONE, "rounds=1"), model=flat)
    with pytest.raises(UpdateError, match=r"client \d changed '1.1.num_batches_tracked', which holds torch.int64"):
        experiment.run()
    chosen, plan, state, tasks = round_of("fedavg", capacities=(1.0, 1.0))
    updates = updates_of(plan, state, tasks, size=0.0)
    sums, _ = secured(chosen, plan, state, tasks).add(tasks, sums_of(updates))
    assert same(chosen.aggregate(state, sums, plan), state)


class WithTable(nn.Module):
    """A perceptron with whole numbers among its buffers, which training leaves alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
        self.register_buffer("table", torch.tensor([3, 1, 2]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x) + self.table.sum() * 0


def test_42_whole_numbers_that_stay_and_an_update_of_nothing_pass():
    """The buffer keeps its bits while the weights move; with a rate of 0 nothing moves at all."""
    first = WithTable()
    for rate, moves in (("0.1", True), ("0.0", False)):
        changes = (f"training.lr={rate}", "training.weight_decay=0", "rounds=2")
        experiment = Experiment(small(*EVERYONE, *changes), model=first)
        found = experiment.run().server.state
        assert torch.equal(found["table"], first.table)
        assert same(dict(found), state_of(first)) != moves


@pytest.mark.parametrize("name", ["fedrolex", "fedbrb", "fedprox"])
def test_5_engines_agree_to_the_last_bit(name):
    changes = (*EVERYONE, f"method.name={name}", "devices.dropout=0.1", "rounds=3", "workers=2")
    one = Experiment(small(*changes)).run()
    other = Experiment(small(*changes, "engine=processes")).run()
    assert same(one.server.state, other.server.state)
    assert [line["secure"] for line in one.metrics] == [line["secure"] for line in other.metrics]


@pytest.mark.parametrize("engine", ["vectorised", "cuda"])
def test_engines_on_vectors_agree_within_rounding(engine):
    """A step of words is 1e-9, and where clients' bits differ a word may."""
    changes = (*EVERYONE, "rounds=3")
    one, other = (Experiment(small(*changes, f"engine={name}")).run() for name in ("serial", engine))
    assert all((one.server.state[n] - other.server.state[n]).abs().max() < 1e-5 for n in one.server.state)
    plain = Experiment(small("devices.per_round=6", "rounds=3", "server.label_rows=false", f"engine={engine}")).run()
    assert not same(plain.server.state, other.server.state)


def test_a_run_that_was_stopped_goes_on_with_the_same_bits(tmp_path):
    settings = small(*EVERYONE, "devices.dropout=0.2", "rounds=4", "checkpoint_every=1")
    whole = Experiment(settings).run()
    stops = iter([False, True])
    with pytest.raises(Stopped):
        Experiment(settings).run(tmp_path, stop=lambda: next(stops))
    assert same(Experiment(settings).run(tmp_path, resume=True).server.state, whole.server.state)


def test_who_fails_closes_shells_and_too_many_close_the_round():
    """With six drawn, five must send; in rounds with fewer nothing moves, and the metrics say so."""
    result = Experiment(small(*EVERYONE, "devices.dropout=0.3", "rounds=12")).run()
    few = [len(line["clients"]) < 5 for line in result.metrics]
    assert any(few)
    assert not all(few)
    for line in result.metrics:
        secure = line["secure"]
        assert (secure["closed"] == secure["segments"]) == (len(line["clients"]) < 5)
        assert (secure["closed_weights"] == 1.0) == (len(line["clients"]) < 5)


def test_the_metrics_count_the_bytes_of_the_protocol():
    plain, secure = (Experiment(small("devices.per_round=6", "rounds=1", *more)).run() for more in ((), EVERYONE[1:]))
    (one,), (other,) = plain.metrics, secure.metrics
    segments = [1 + (1.0, 0.5, 0.25)[::-1].index(capacity) for capacity in other["capacities"]]
    letters = 5 * sum(4 + 12 + 5 + 17 * (1 + own) + 16 for own in segments)
    seeds = 6 * (2 + 16 * 5 + 16)
    opened = sum(min(own, other["secure"]["segments"] - other["secure"]["closed"]) for own in segments)
    assert other["bytes_up"] - one["bytes_up"] == seeds + letters + 6 * (6 * 4 + 17 * opened)
    units = sum(int(8 * capacity) for capacity in other["capacities"])
    members, alive = 6 * (175 + sum(56 + 2 * own for own in segments) + 3 * 20), 6 * 2 * 6
    assert other["bytes_down"] - one["bytes_down"] == members + letters + alive + units


def test_label_rows_are_off_unless_set():
    assert small("secure.enabled=true", "secure.min_clients=3").server.label_rows is False
    assert small("secure.enabled=true", "secure.min_clients=3", "server.label_rows=true").server.label_rows is True
    assert small().server.label_rows is True
    with pytest.warns(UserWarning, match="server.label_rows is true: the server learns how many clients"):
        Experiment(small(*EVERYONE, "server.label_rows=true"))


def test_label_rows_that_are_set_are_averaged_as_without_secure_sums():
    """Two of each width, m = 2: all is open, and only words differ from what a plain run gives."""
    changes = ("devices.per_round=6", "rounds=1", "devices.capacities=[1, 1, 0.5, 0.5, 0.25, 0.25]")
    changes = (*changes, "server.label_rows=true")
    plain = Experiment(small(*changes)).run()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = Experiment(small(*changes, "secure.enabled=true", "secure.min_clients=2")).run()
        few = Experiment(small(*changes, "secure.enabled=true", "secure.min_clients=3")).run()
    assert found.metrics[0]["secure"]["closed"] == 0
    assert all((found.server.state[n] - plain.server.state[n]).abs().max() < 1e-7 for n in plain.server.state)
    assert few.metrics[0]["secure"]["closed"] == 3, "no width has three clients, so differences of sums would show two"


PAIRS = (1.0, 1.0, 0.5, 0.5, 0.25, 0.25, 0.25)


def weighed(plan, state, tasks, weights):
    updates = updates_of(plan, state, tasks)
    return [replace(update, weight=float(weight)) for update, weight in zip(updates, weights, strict=True)]


def test_private_weights_are_summed_with_the_changes():
    """One word of weight a segment: the mean is that of `merge`, to n_h / (2 scale W) with the largest weight of 90."""
    chosen, plan, state, tasks = round_of("fedrolex", round=14, capacities=PAIRS)
    settings = SecureSettings(enabled=True, min_clients=2, max_weight=90)
    securely = SecureRound(state, plan, tasks, settings, by_shells=True, weighting="samples")
    updates = weighed(plan, state, tasks, (90, 7, 30, 1, 64, 12, 55))
    sums, opened = securely.add(tasks, sums_of(updates))
    assert opened.closed == 0
    found, exact = chosen.aggregate(state, sums, plan), fedwidth.merge(state, updates, plan)
    scale = FixedPoint(7, max_weight=90).scale
    for name, value in state.items():  # the widest two weigh 97 together, and all others more
        assert not torch.equal(found[name], value)
        assert ((found[name] - exact[name]).abs() <= 7 / (2 * scale * 97) + 1e-15).all()
    heavy = weighed(plan, state, tasks, (5000, 7, 30, 1, 64, 12, 55))
    assert same(chosen.aggregate(state, securely.add(tasks, sums_of(heavy))[0], plan), found), "it counts as 90"


def test_a_private_weight_of_a_width_of_one_is_never_opened():
    """The totals of two shells differ by what one width weighs: with one client of it, by what that client does."""
    _, plan, state, tasks = round_of("fedrolex", capacities=(1.0, 0.5, 0.5, 0.25, 0.25))
    settings = SecureSettings(enabled=True, min_clients=2, max_weight=90)
    for weighting, closed in (("equal", 1), ("samples", 3)):
        securely = SecureRound(state, plan, tasks, settings, by_shells=True, weighting=weighting)
        assert securely.add(tasks, sums_of(weighed(plan, state, tasks, [3] * 5)))[1].closed == closed
    alive = tasks[1:]
    securely = SecureRound(state, plan, tasks, settings, by_shells=True, weighting="samples")
    _, opened = securely.add(alive, sums_of(weighed(plan, state, alive, [3] * 4)))
    assert (opened.segments, opened.closed) == (3, 1), "without it the others open"


@pytest.mark.parametrize("weighting", ["samples", "updates", "hybrid"])
def test_runs_with_private_weights_are_those_without_secure_sums(weighting):
    changes = ("devices.per_round=6", "rounds=2", "devices.capacities=[1, 1, 0.5, 0.5, 0.25, 0.25]")
    changes = (*changes, "server.label_rows=false", f"server.weighting={weighting}")
    plain = Experiment(small(*changes)).run()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = Experiment(
            small(*changes, "secure.enabled=true", "secure.min_clients=2", "secure.max_weight=1000")
        ).run()
    assert [line["secure"]["closed"] for line in found.metrics] == [0, 0]
    assert all((found.server.state[n] - plain.server.state[n]).abs().max() < 1e-4 for n in plain.server.state)


def test_other_levers_go_with_secure_sums():
    for change in ("server.holders_exponent=0.5", "server.optimiser=fedadam", "server.weighting=model-size"):
        plain = Experiment(small("devices.per_round=6", "rounds=2", "server.label_rows=false", change)).run()
        found = Experiment(small(*EVERYONE[:2], "secure.min_clients=3", "rounds=2", change)).run()
        assert not same(plain.server.state, found.server.state)
        assert all(torch.isfinite(tensor).all() for tensor in found.server.state.values())


REFUSED = {
    "fedcover": "FedCover has no secure sums: its sub-models of a round neither lie inside each other",
    "fedstack": "FedStack has no secure sums: its sub-models",
    "feddropout": 'method.options.draw = "round" makes them',
    "fedminoccurances": "FedMinOccurances has no secure sums: its sub-models",
    "scaffold": "SCAFFOLD has no secure sums: its clients report more than their sub-models",
    "fedbe": "FedBE has no secure sums: its server needs the updates of single clients",
    "feddf": "FedDF has no secure sums: its server needs the updates of single clients",
    "fedhm": "FedHM has no secure sums: its clients hold no slices of the model",
}


@pytest.mark.parametrize("name", REFUSED)
def test_33_other_methods_are_refused_by_name(name):
    with pytest.raises(OptionError, match=REFUSED[name]):
        small(*EVERYONE, f"method.name={name}")
    with pytest.raises(OptionError, match=REFUSED[name]):
        Experiment(small(*EVERYONE), method=methods()[name].with_options())


def test_every_method_has_segments_or_a_reason():
    known = {"fedavg", "fedbrb", "fedimportance", "fedprox", "fedrolex", "fedtile", "fjord", "heterofl"}
    for name in known:
        assert segments_of(method(name)) in ("shells", "cohorts")
    for name in REFUSED:
        with pytest.raises(OptionError, match=f"{methods()[name].title} has no secure sums: "):
            segments_of(method(name))
    with pytest.raises(OptionError, match="FedRolex has no secure sums"):
        segments_of(method("fedrolex", stagger=True))
    with pytest.raises(OptionError, match="FedRolex with SCAFFOLD has no secure sums"):
        segments_of(method("fedrolex", local="scaffold"))
    assert segments_of(method("fedrolex", local="fedprox")) == SHELLS


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ("secure.min_clients=1", "secure.min_clients must be a whole number of at least 2"),
        ("secure.min_clients=7", "secure.min_clients is 7, but devices.per_round only 6: nothing would ever be opened"),
        ("secure.clip=0", "secure.clip must be above 0"),
        ("server.clip=3", "server.clip must be 0 and server.screen false with secure.enabled: the server sees no"),
        ("server.screen=true", "server.clip must be 0 and server.screen false with secure.enabled"),
        (
            "server.weighting=samples",
            "server.weighting must be one of equal, model-size with secure.enabled, not samples, which only a client"
            " knows; or set secure.max_weight, the most that a client counts for",
        ),
        (
            "secure.max_weight=1e9",
            "secure.max_weight is 1e\\+09, and 6 clients of that weight are more than the 2,147,483",
        ),
    ],
)
def test_what_does_not_go_together_is_one_line(change, line):
    with pytest.raises(OptionError, match=line) as caught:
        small(*EVERYONE, change)
    assert "\n" not in str(caught.value)


def test_two_clients_are_warned_of():
    with pytest.warns(UserWarning, match="secure.min_clients is 2: of a sum of two clients each knows what the other"):
        Experiment(small("devices.per_round=6", "secure.enabled=true", "secure.min_clients=2"))


def test_packs_say_why_not():
    experiment = Experiment(small(*EVERYONE, "engine=vectorised"))
    assert "secure.enabled adds up single updates" in why_not_pack([experiment.trainer])


def test_the_simulation_needs_no_cryptography():
    code = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from small_runs import small\n"
        "from fedwidth.experiment import Experiment\n"
        f"result = Experiment(small(*{EVERYONE!r}, 'rounds=1')).run()\n"
        "assert result.metrics[0]['secure']['segments'] == 3"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})


def test_earlier_fingerprints_hold():
    settings = read_settings("rounds = 2").main
    assert settings == replace(settings, secure=SecureSettings(), server=ServerSettings())
