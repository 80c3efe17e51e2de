"""From a budget to a width: sums by hand, the memory of a step that can be counted, and profiles that fill a budget."""

import json
from fractions import Fraction

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import fedwidth
from fedwidth.cli.entry import run_command
from fedwidth.config.read import read_settings
from fedwidth.devices.budget import DeviceClass, parse_size, read_devices
from fedwidth.devices.memory import cross_entropy, training_memory
from fedwidth.devices.needs import Costing, Work, exceeded
from fedwidth.devices.peak import WORKSPACE, peak_of_step
from fedwidth.devices.profile import fill
from fedwidth.devices.workspace import lstm_workspace
from fedwidth.errors import CapacityError, OptionError
from fedwidth.experiment import Experiment
from fedwidth.models import StaticBatchNorm2d
from fedwidth.plan import trace

MB = 1e6


def mlp(hidden=1000):
    return nn.Sequential(nn.Linear(100, hidden), nn.ReLU(), nn.Linear(hidden, 10))


INPUTS = torch.zeros(2, 100)


def test_the_peak_of_a_step_is_what_can_be_counted_by_hand():
    # Batches of 50: inputs 50 x 100, hidden 50 x 1000 twice (before and after ReLU). ReLU keeps its result; in its
    # backward pass the gradients of the result and of its input live beside the kept one, as do those of the second
    # layer's weight and bias: 10 x 1000 + 10. Everything is four bytes.
    peak = peak_of_step(mlp(), INPUTS, 50, cross_entropy)
    inputs, hidden, second = 50 * 100, 50 * 1000, 10 * 1000 + 10
    first = 100 * 1000 + 1000
    assert peak.gradients == 4 * (first + second)
    at_relu = inputs + 3 * hidden + second
    at_the_end = inputs + hidden + second + first
    assert peak.step == pytest.approx(WORKSPACE * 4 * max(at_relu, at_the_end), rel=0.02)


def test_memory_grows_with_the_batch_and_adam_takes_two_moments_and_their_roots():
    def of(**given):
        return training_memory(mlp(), INPUTS, **{"batch": 50, **given})

    weights = 4 * (100 * 1000 + 1000 + 10_010)
    sgd, plain, adam = of(), of(moments=0), of(moments=2)
    assert (sgd.received, sgd.parameters, sgd.optimiser, plain.optimiser) == (weights, weights, weights, 0)
    assert adam.optimiser == 2 * weights
    assert adam.step >= 2 * weights
    assert of(batch=500).step > 5 * of(batch=50).step
    assert sgd.total == sgd.base + sgd.growth


def test_frozen_weights_have_no_gradient_and_are_not_sent():
    model = mlp()
    model[0].requires_grad_(False)
    [found] = fedwidth.fit(model, INPUTS, upload="1MB", profiles=False)
    assert found.needs.upload == 4 * 10_010
    assert found.needs.download == 4 * (100 * 1000 + 1000 + 10_010)
    assert training_memory(model, INPUTS, batch=2).optimiser == 4 * 10_010


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        # bytes: 4 (111 n + 10) for n hidden units: 10/16 have 277,540
        ({"upload": 280_000}, (Fraction(10, 16), "upload")),
        ({"upload": "1MB"}, (Fraction(1), "")),
        # 3 x 110 n x 500 samples / 1e7 per second: 16.5 s at full width, 1/2 takes 8.25
        ({"seconds": 8.3, "rate": 1e7}, (Fraction(1, 2), "seconds")),
        # twice 4 (111 n + 10) over a bandwidth of 1e5: 8.88 s at full width
        ({"seconds": 4.5, "bandwidth": "100kB"}, (Fraction(1, 2), "seconds")),
    ],
)
def test_the_widest_that_fits(budget, expected):
    [found] = fedwidth.fit(mlp(), INPUTS, profiles=False, **budget)
    assert (found.capacity, found.limit) == expected


def test_memory_decides_and_the_next_wider_one_does_not_fit():
    base = DeviceClass("x").base
    model = mlp(16_000)
    device = DeviceClass.of("small", {"memory": base + 15 * MB})
    [found] = fedwidth.fit(model, INPUTS, devices=[device], profiles=False)
    assert found.limit == "memory"
    assert found.needs.memory.total <= device.memory
    costing = Costing(model, trace(model, INPUTS), INPUTS, Work())
    wider = costing.needs(costing.plan.counts(found.capacity + Fraction(1, 16)), device)
    assert exceeded(wider, device) == "memory"


def test_a_profile_is_nowhere_narrower_and_fits():
    # Bytes sit in the last layers (64 x 512), memory in the first ones: with little to send the first become wide.
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10),
    )  # fmt: skip
    [found] = fedwidth.fit(model, torch.zeros(2, 3, 16, 16), upload="300kB")
    assert found.limit == "upload"
    assert all(share >= found.capacity for share in found.profile.values())
    assert found.profile["0"] > found.capacity
    assert found.needs.upload < found.profile_needs.upload <= 300e3


def test_water_rises_where_it_can():
    # a costs 8 for its whole width and b costs 1; together they may cost 4.9. Both rise to 1/2 (4.5); there the next
    # step of a would come to 5, so a stays, and b rises to 7/8 (4.875).
    found = fill({"a": Fraction(1, 4), "b": Fraction(1, 4)}, lambda s: 8 * s["a"] + s["b"] <= Fraction(49, 10))
    assert found == {"a": Fraction(1, 2), "b": Fraction(7, 8)}


def test_a_plan_with_a_profile_gives_its_counts_to_every_method():
    from dataclasses import replace

    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    plan = replace(trace(model, torch.zeros(2, 4)), profiles={0.25: {"0": 0.75}})
    assert plan.counts(0.25) == {"0": 6, "2": 4}
    assert plan.counts(0.5) == {"0": 4, "2": 8}
    for name in ("heterofl", "fedrolex", "feddrop"):
        if name in fedwidth.methods():
            assert fedwidth.method(name).select(plan, capacity=0.25).counts == {"0": 6, "2": 4}


def test_device_files(tmp_path):
    (tmp_path / "pi4.toml").write_text('memory = "2GB"\nrate = 4e9\nseconds = 30\n')
    [found] = read_devices(tmp_path / "pi4.toml")
    assert (found.name, found.memory, found.rate, found.seconds) == ("pi4", 2e9, 4e9, 30.0)
    (tmp_path / "fleet.toml").write_text('[phone]\nmemory = "512MB"\n[pi]\nupload = "1MiB"\n')
    assert [(each.name, each.upload) for each in read_devices(tmp_path / "fleet.toml")] == [
        ("phone", None),
        ("pi", 2**20),
    ]


@pytest.mark.parametrize("text", ["much", "-1MB", "5 parsecs", "0", "", True])
def test_sizes_that_are_none(text):
    with pytest.raises(OptionError, match="bytes such as 512MB|must be above 0"):
        parse_size(text)


def command(capsys, *words):
    code = run_command(["fit", *words])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_the_command(tmp_path, capsys):
    (tmp_path / "fleet.toml").write_text('[phone]\nupload = "100kB"\n[tablet]\nupload = "10MB"\n')
    words = ("mlp", "--shape", "64", "--set", "hidden=[256]", "--device", str(tmp_path / "fleet.toml"))
    code, said, _ = command(capsys, *words, "--json")
    assert code == 0
    found = {each["device"]["name"]: each for each in json.loads(said)["devices"]}
    # 4 (75 n + 10) bytes for n hidden units of one hidden layer: 256 have 76,840
    assert (found["phone"]["capacity"], found["tablet"]["capacity"]) == (1.0, 1.0)
    assert found["phone"]["needs"]["upload"] == 76_840
    assert found["phone"]["needs"]["memory"]["total"] > found["phone"]["needs"]["memory"]["base"]
    code, said, _ = command(capsys, *words)
    assert code == 0
    assert "tablet" in said


def test_little_to_send_is_shown_too(capsys):
    # 4 (75 n + 10) bytes for n hidden units: one has 340, two have 640
    words = ("mlp", "--shape", "64", "--set", "hidden=[16]", "--uniform", "--upload")
    assert "0.000340" in command(capsys, *words, "400")[1]
    assert "0.000640" in command(capsys, *words, "640B")[1]


def test_where_no_width_fits_the_row_says_that_it_is_of_the_narrowest(capsys):
    code, said, _ = command(capsys, "mlp", "--shape", "64", "--set", "hidden=[16]", "--upload", "0.3kB")
    assert code == 0
    assert said.splitlines()[2].split("│")[1].strip() == "none fits"
    assert said.splitlines()[3:] == [
        "no width fits device 'device': the narrowest needs 0.000340 MB to send, and 0.000300 can be;"
        " its row shows what that one takes"
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "state at least one budget"),
        (("--memory", "lots"), "512MB, 2GB"),
        (("--memory", "100MB"), "has 100 MB of memory, but Python and PyTorch alone take 250 MB (its `base`)\n"),
        (
            ("--memory", "512"),
            "has 512 bytes of memory, but Python and PyTorch alone take 250 MB (its `base`); units are",
        ),
        (("--memory", "512"), "; units are B, kB, MB, GB, KiB, MiB, GiB, and without one a size is in bytes\n"),
        (("--memory", "512Mb/s"), "(units: B, kB, MB, GB, KiB, MiB, GiB), not '512Mb/s'"),
        (("--seconds", "3"), "nothing says how fast it is"),
        (("--upload", "5MB", "--device", "none.toml"), "leave out --upload"),
        (("--device", "none.toml"), "cannot read none.toml"),
        (("--upload", "5MB", "--batch", "9" * 20), "batches can have up to 1,000,000,000 samples, not 9999"),
        (("--upload", "5MB", "--shape", "99999999999x99999999999"), "an input may have up to 268,435,456"),
        (("--upload", "5MB", "--optimiser", "lion"), "sgd, adam, adamw"),
    ],
)
def test_bad_input_is_one_line(words, said, capsys):
    code, _, error = command(capsys, "mlp", "--shape", "64", *words)
    assert (code, error.count("\n")) == (2, 1)
    assert said in error


def test_budgets_in_a_recipe_become_capacities_and_profiles(tmp_path):
    from fedwidth.config.read import read_config, read_settings
    from fedwidth.experiment import Experiment

    recipe = """
    rounds = 1
    model.name = "mlp"
    model.options = { hidden = [64, 32] }
    data.clients = 4
    devices.per_round = 2
    engine = "serial"
    [devices.budgets]
    phone = { upload = "10kB", weight = 3, profile = true }
    tablet = { upload = "1MB" }
    """
    experiment = Experiment(read_settings(recipe).main)
    # 4 (64 a + a + a b + b + 10 b + 10) bytes; 64 and 32 units have 26,152, a half 10,792, 7/16 have 9,152
    assert experiment.settings.devices.capacities == "1:1 7/16:3"
    assert experiment.capacities.values == (1.0, 7 / 16)
    counts = experiment.method.select(experiment.plan, capacity=7 / 16).counts
    assert sum(counts.values()) > 28 + 14
    experiment.run(tmp_path / "run")
    again = Experiment(read_config(tmp_path / "run" / "config.toml"))
    assert again.identity == experiment.identity
    assert again.plan.profiles == experiment.plan.profiles
    with pytest.raises(OptionError, match="leave out devices.capacities"):
        Experiment(read_settings(recipe, ["devices.capacities=a1-e1"]).main)
    with pytest.raises(CapacityError, match="no width fits device 'watch'"):
        Experiment(read_settings(recipe, ["devices.budgets={watch={upload=50}}"]).main)


def test_profiles_in_a_recipe_are_checked():
    from fedwidth.config.read import read_settings
    from fedwidth.experiment import Experiment

    recipe = "rounds = 1\nmodel.name = 'mlp'\nengine = 'serial'\n[devices.profiles]\n"
    for text, said in (
        ("'1/4' = {nowhere = 0.5}", "no width group"),
        ("'1/4' = {'*' = 2}", "shares above 0"),
        ("wide = {'*' = 0.5}", "goes by capacity"),
    ):
        with pytest.raises(OptionError, match=said):
            Experiment(read_settings(recipe + text).main)


def test_measured_seconds_are_those_of_steps_with_one_thread(monkeypatch):
    ticks, threads = iter(range(1000)), []

    class Watched(nn.ReLU):
        def forward(self, x):
            threads.append(torch.get_num_threads())
            return super().forward(x)

    monkeypatch.setattr("fedwidth.devices.needs.time.perf_counter", lambda: float(next(ticks)))
    before = torch.get_num_threads()
    model = nn.Sequential(nn.Linear(100, 8), Watched(), nn.Linear(8, 10))
    [found] = fedwidth.fit(model, INPUTS, seconds=6, batch=10, samples=55, measure=True, profiles=False)
    assert found.needs.seconds == 6.0, "six batches, each of one tick of this clock"
    assert set(threads[-4:]) == {1}
    assert torch.get_num_threads() == before
    [none] = fedwidth.fit(model, INPUTS, seconds=5, batch=10, samples=55, measure=True, profiles=False)
    assert none.capacity is None
    with torch.device("meta"):
        empty = mlp()
    with pytest.raises(OptionError, match="cannot be timed: state a rate instead"):
        fedwidth.fit(empty, INPUTS.to("meta"), seconds=5, measure=True)


def test_the_command_measures(capsys):
    command = ["fit", "mlp", "--seconds", "3600", "--measure", "--batch", "2", "--samples", "2", "--uniform", "--json"]
    assert run_command(command) == 0
    [found] = json.loads(capsys.readouterr().out)["devices"]
    assert found["capacity"] == 1
    assert 0 < found["needs"]["seconds"] < 3600


def test_the_scaler_goes_by_the_capacity_whatever_the_profile():
    recipe = """
    rounds = 1
    model.name = "cnn"
    model.options = { widths = [8, 8] }
    method.name = "heterofl"
    data.clients = 2
    devices.per_round = 2
    devices.capacities = [0.25, 0.25]
    engine = "serial"
    devices.profiles = { "1/4" = { "features.0" = 0.75 } }
    """
    experiment = Experiment(read_settings(recipe).main)
    (task, _) = experiment.rounds.assign(experiment.first_server(), [(0, 0.25), (1, 0.25)])
    assert task.index.counts == {"features.0": 6, "features.4": 2}
    experiment.run()
    module = experiment.trainer.skeleton(task.part)
    assert [norm.rate for norm in module.modules() if isinstance(norm, StaticBatchNorm2d)] == [0.25, 0.25]


@pytest.mark.parametrize("size", [(4, 128, 256, 512), (9, 32, 300, 64), (64, 16, 64, 64)])
def test_the_workspace_of_an_lstm_is_what_the_library_asks_for(size):
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this PyTorch has no oneDNN")
    steps, samples, inputs, hidden = size
    found = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            made = func(*args, **(kwargs or {}))
            if func is torch.ops.aten.mkldnn_rnn_layer.default:
                found.append(made[3].numel())
            return made

    given = torch.randn(steps, samples, inputs, requires_grad=True)
    with Watch():
        nn.LSTM(inputs, hidden)(given)
    assert found == [pytest.approx(4 * lstm_workspace(given.shape, hidden), rel=0.03)]


def test_what_an_lstm_keeps_is_counted_and_the_peak_is_in_its_backward_pass():
    steps, samples, inputs, hidden = 20, 30, 40, 50

    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.LSTM(inputs, hidden, batch_first=True)

        def forward(self, x):
            return self.rnn(x)[0][:, -1]

    peak = peak_of_step(Last(), torch.zeros(2, steps, inputs), samples, cross_entropy)
    whole = 4 * lstm_workspace(torch.Size((steps, samples, inputs)), hidden)
    assert peak.step > whole, "the workspace, and inputs, outputs and gradients beside it"
    assert peak.step < 1.5 * whole
