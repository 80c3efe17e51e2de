"""Local training: every number here is worked out by hand in a comment."""

import math
import warnings
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st
from torch import nn

import fedwidth
from fedwidth.core.submodel import extract
from fedwidth.data import from_tensors, load, make_partition
from fedwidth.errors import OptionError
from fedwidth.experiment import Experiment
from fedwidth.methods import Local
from fedwidth.models import Cnn
from fedwidth.objectives.losses import cross_entropy
from fedwidth.randomness import numpy_generator
from fedwidth.settings import DataSettings, DeviceSettings, Settings, TrainingSettings
from fedwidth.training.batches import batches
from fedwidth.training.loss import absent_classes, mask_logits
from fedwidth.training.rule import PLAIN
from fedwidth.training.schedule import learning_rate
from fedwidth.training.skeletons import Buffers
from fedwidth.training.step import take_step
from fedwidth.training.weights import Weights
from small_runs import TwoUnits, ones, same, small, task_of, trainer_of

E = math.e
CPU = torch.device("cpu")


def close(tensor, expected, tolerance=1e-6):
    torch.testing.assert_close(tensor, torch.tensor(expected), rtol=tolerance, atol=tolerance)


def train(trainer, *, client=0, capacity=1.0, round=0):
    """The trained tensors (copied) and the mean loss of one client."""
    task = task_of(trainer, client=client, capacity=capacity, round=round)
    sub = extract(fedwidth.state_of(trainer.model), trainer.plan, task.index)
    trained = trainer.train(sub, task, round)
    return {name: tensor.clone() for name, tensor in trained.update.sub.items()}, trained


class TestLossOfOnesOwn:
    @pytest.mark.parametrize(
        ("loss", "message"),
        [
            (lambda plain, logits: None, "must be one number, the mean over the batch, not NoneType"),
            (lambda plain, logits: 1.0, "must be one number, the mean over the batch, not float"),
            (lambda plain, logits: logits.square().mean(1), r"must be one number, the mean over the batch, not \[15\]"),
            (lambda plain, logits: plain[None], r"must be one number, the mean over the batch, not \[1\]"),
            (lambda plain, logits: plain.detach(), "does not depend on the client's weights, so nothing would be"),
        ],
    )
    @pytest.mark.parametrize("engine", ["serial", "vectorised"])
    def test_what_is_none_is_one_line(self, loss, message, engine):
        def of_batch(client, inputs, targets):
            logits = client.logits(inputs)
            return loss(client.loss(logits, targets), logits)

        own = replace(fedwidth.method("heterofl"), local=Local(loss=of_batch, steady=True))
        changes = ["rounds=1", f"engine={engine}", "training.batch_size=15", "data.clients=3", "data.partition=iid"]
        settings = small(*changes, "data.partition_options={}")
        with warnings.catch_warnings(action="ignore"), pytest.raises(OptionError, match=message) as caught:
            Experiment(settings, method=own).run()
        assert "(Local(loss=…))" in str(caught.value)
        assert "(round 0, client" in str(caught.value)


class TestLearningRate:
    @pytest.mark.parametrize(
        ("schedule", "rates"),
        [
            ({}, {0: 0.8, 99: 0.8}),
            # halved at 10 and again at 20
            (
                {"schedule": "multistep", "milestones": [10, 20], "decay": 0.5},
                {0: 0.8, 9: 0.8, 10: 0.4, 19: 0.4, 20: 0.2, 99: 0.2},
            ),
            # 0.8 * 0.5^round
            ({"schedule": "exponential", "decay": 0.5}, {0: 0.8, 1: 0.4, 3: 0.1}),
            # 0.8 * (1 + cos(pi * round / 100)) / 2; cos(pi / 3) = 1/2 would be at 100/3, cos(pi / 2) = 0 at 50
            ({"schedule": "cosine"}, {0: 0.8, 50: 0.4, 25: 0.8 * (1 + math.sqrt(0.5)) / 2, 100: 0.0}),
        ],
    )
    def test_by_hand(self, schedule, rates):
        settings = TrainingSettings(lr=0.8, **schedule)
        for round, rate in rates.items():
            assert learning_rate(settings, round, 100) == pytest.approx(rate, abs=1e-15)

    def test_a_round_trains_with_its_own_rate(self):
        # The gradient does not depend on the rate, so a tenth of the rate is a tenth of the step.
        data, partition = ones()
        changes = ["training.schedule=multistep", "training.milestones=[5]", "training.decay=0.1"]
        trainer = trainer_of(TwoUnits(), data, partition, *changes)
        early, late = (train(trainer, round=round)[0]["a.weight"] for round in (4, 5))
        before = trainer.model.a.weight.detach()
        torch.testing.assert_close(late - before, (early - before) / 10)


class TestBatches:
    @limits(deadline=None, max_examples=50)
    @given(samples=st.integers(1, 40), size=st.integers(1, 50), epochs=st.integers(1, 3))
    def test_each_epoch_is_a_permutation_and_only_its_last_batch_is_short(self, samples, size, epochs):
        numbers = torch.arange(100, 100 + samples)
        found = list(batches(numbers, TrainingSettings(batch_size=size, epochs=epochs), torch.Generator()))
        per_epoch = math.ceil(samples / size)
        assert len(found) == epochs * per_epoch
        for epoch in range(epochs):
            mine = found[epoch * per_epoch : (epoch + 1) * per_epoch]
            assert sorted(torch.cat(mine).tolist()) == numbers.tolist()
            assert [len(batch) for batch in mine[:-1]] == [size] * (per_epoch - 1)

    def test_epochs_are_shuffled_anew(self):
        first, second = batches(torch.arange(50), TrainingSettings(batch_size=50, epochs=2), torch.Generator())
        assert first.tolist() != second.tolist()

    def test_steps_take_the_place_of_epochs(self):
        # 5 samples in batches of 2: 2, 2, 1, and then from the front again.
        found = list(batches(torch.arange(5), TrainingSettings(batch_size=2, steps=5, epochs=9), torch.Generator()))
        assert [len(batch) for batch in found] == [2, 2, 1, 2, 2]

    def test_steps_and_passes_are_counted(self):
        data, partition = ones(per_client=5)
        trainer = trainer_of(
            TwoUnits(), data, partition, "training.batch_size=2", "training.steps=5", "server.weighting=updates"
        )
        _, trained = train(trainer)
        assert (trained.passes, trained.update.weight) == (9, 5.0)


class TestMaskedLoss:
    # Logits (1, 3, 2), target 2, class 1 absent.
    logits, target = torch.tensor([[1.0, 3.0, 2.0]]), torch.tensor([2])

    @pytest.mark.parametrize(
        ("mask", "expected"),
        [
            # the absent logit counts as 0: log(e + 1 + e²) - 2
            ("zero", math.log(E + 1 + E**2) - 2),
            # it does not count at all: log(e + e²) - 2
            ("inf", math.log(E + E**2) - 2),
            # nothing is masked: log(e + e³ + e²) - 2
            ("none", math.log(E + E**3 + E**2) - 2),
        ],
    )
    def test_by_hand(self, mask, expected):
        absent = absent_classes(torch.tensor([0, 2]), 3, mask, CPU)
        assert float(cross_entropy(mask_logits(self.logits, absent, mask), self.target)) == pytest.approx(
            expected, rel=1e-6
        )

    def test_nothing_is_masked_where_no_class_is_absent(self):
        assert absent_classes(torch.tensor([0, 1, 2]), 3, "zero", CPU) is None

    @pytest.mark.parametrize("mask", ["zero", "inf"])
    def test_absent_classes_get_no_gradient(self, mask):
        logits = self.logits.clone().requires_grad_()
        cross_entropy(mask_logits(logits, torch.tensor([False, True, False]), mask), self.target).backward()
        assert logits.grad[0, 1] == 0
        assert logits.grad[0, 0] != 0

    def test_ended_text_is_not_trained(self):
        # Two positions, the second has ended: the loss is that of the first alone, log(1 + e) - 1.
        logits = torch.tensor([[[0.0, 1.0], [5.0, 9.0]]])
        loss = cross_entropy(logits, torch.tensor([[1, -100]]))
        assert float(loss) == pytest.approx(math.log(1 + E) - 1, rel=1e-6)


class TestOptimisers:
    def steps(self, number=1, **settings):
        """A parameter of value 1 after so many steps with gradient 2: alone, one of two, and as a row of a stack."""
        training = TrainingSettings(clip=0.0, **settings)
        found = []
        for shape, tensors, rate in [((1, 1), 1, None), ((1, 1), 2, None), ((3, 1), 1, torch.zeros(3, 1))]:
            weights = Weights([torch.ones(shape) for _ in range(tensors)], [], rows=rate is not None)
            weights.make_moments(training)
            weights.rate = settings["lr"] if rate is None else rate.fill_(settings["lr"])
            weights.steps = 0.0 if rate is None else torch.zeros(3, 1)
            for _ in range(number):
                weights.gradients = [torch.full(shape, 2.0) for _ in range(tensors)]
                take_step(weights, PLAIN, training, 1.0)
            found += [value for tensor in weights.values for value in tensor.flatten().tolist()]
        assert found == pytest.approx([found[0]] * len(found), rel=1e-6)
        return found[0]

    def test_sgd(self):
        # gradient 2 + decay 0.5 * 1 = 2.5; 1 - 0.1 * 2.5
        assert self.steps(lr=0.1, momentum=0.0, weight_decay=0.5) == pytest.approx(0.75)

    def test_sgd_momentum(self):
        # velocities 2 and 0.5 * 2 + 2 = 3: 1 - 0.1 * (2 + 3)
        assert self.steps(2, lr=0.1, momentum=0.5, weight_decay=0.0) == pytest.approx(0.5)

    def test_adam(self):
        # The first step of Adam has the length of the rate; decay is part of the gradient.
        assert self.steps(lr=0.1, optimiser="adam", weight_decay=0.5) == pytest.approx(0.9, abs=1e-6)

    def test_adamw(self):
        # Decay apart from the gradient: 1 * (1 - 0.1 * 0.5) - 0.1
        assert self.steps(lr=0.1, optimiser="adamw", weight_decay=0.5) == pytest.approx(0.85, abs=1e-6)

    def test_frozen_parameters_are_left_alone(self):
        model = TwoUnits()
        model.a.weight.requires_grad_(False)
        trainer = trainer_of(model, *ones(), "training.weight_decay=0.5")
        after, _ = train(trainer)
        assert torch.equal(after["a.weight"], model.a.weight)
        assert not torch.equal(after["b.weight"], model.b.weight)


class TestOneStepByHand:
    """Logits z = (1, 2), label 0: p = (1, e) / (1 + e), dz = p - (1, 0) = (-s, s) with s = e / (1 + e)."""

    s = E / (1 + E)

    def test_sgd(self):
        # db = dz hᵀ with h = (1, 2); da = bᵀ dz
        after, trained = train(trainer_of(TwoUnits(), *ones()))
        s = self.s
        close(after["b.weight"], [[1 + 0.1 * s, 0.2 * s], [-0.1 * s, 1 - 0.2 * s]])
        close(after["a.weight"], [[1 + 0.1 * s], [2 - 0.1 * s]])
        assert trained.loss == pytest.approx(math.log(1 + E), rel=1e-6)
        assert trained.passes == 1

    def test_clip(self):
        # Squared norm: s² (1 + 4) * 2 of b and 2 s² of a, in all 12 s². Clipped to 1/2, the rate is 0.05 / (s √12).
        after, _ = train(trainer_of(TwoUnits(), *ones(), "training.clip=0.5"))
        rate = 0.05 / math.sqrt(12)
        close(after["a.weight"], [[1 + rate], [2 - rate]])
        close(after["b.weight"], [[1 + rate, 2 * rate], [-rate, 1 - 2 * rate]])

    def test_a_gradient_within_the_limit_is_not_clipped(self):
        loose, free = (train(trainer_of(TwoUnits(), *ones(), f"training.clip={clip}"))[0] for clip in (100, 0))
        assert same(loose, free)

    def test_scaler_is_set_to_the_capacity(self):
        # Half width: the first unit alone, h = 1 / 0.5 = 2, z = (2, 0), p₁ = 1 / (1 + e²) = q, dz = (-q, q);
        # db = 2 dz, da = (1 * -q) / 0.5.
        model = TwoUnits(scaler=True)
        after, trained = train(trainer_of(model, *ones(), name="heterofl"), capacity=0.5)
        q = 1 / (1 + E**2)
        close(after["b.weight"], [[1 + 0.2 * q], [-0.2 * q]])
        close(after["a.weight"], [[1 + 0.2 * q]])
        assert trained.loss == pytest.approx(math.log(1 + E**-2), rel=1e-5)

    def test_scaler_can_be_switched_off(self):
        # z = (1, 0)
        trainer = trainer_of(TwoUnits(scaler=True), *ones(), "training.scaler=false", name="heterofl")
        assert train(trainer, capacity=0.5)[1].loss == pytest.approx(math.log(1 + 1 / E), rel=1e-5)

    def test_mask(self):
        # Label 1 is absent: its logit is 0 and gets no gradient; z = (1, 0), dz₀ = -1 / (1 + e).
        after, trained = train(trainer_of(TwoUnits(), *ones(), "training.mask=zero"))
        t = 1 / (1 + E)
        close(after["b.weight"], [[1 + 0.1 * t, 0.2 * t], [0, 1]])
        close(after["a.weight"], [[1 + 0.1 * t], [2]])
        assert trained.loss == pytest.approx(math.log(1 + 1 / E), rel=1e-6)

    def test_label_rows_travel_with_the_update(self):
        on, off = (
            train(trainer_of(TwoUnits(), *ones(), f"server.label_rows={on}"))[1].update for on in ("true", "false")
        )
        assert on.labels.tolist() == [0]
        assert off.labels is None


class TestFjord:
    def test_the_drawn_prefix_learns_and_nothing_else(self):
        # Widths of a half only: a client of full width trains the first unit alone.
        model = TwoUnits()
        after, _ = train(trainer_of(model, *ones(), "training.steps=3", name="fjord", widths=[0.5]))
        assert torch.equal(after["a.weight"][1], model.a.weight[1])
        assert torch.equal(after["b.weight"][:, 1], model.b.weight[:, 1])
        assert (after["a.weight"][0] != model.a.weight[0]).all()
        assert (after["b.weight"][:, 0] != model.b.weight[:, 0]).all()

    def test_no_width_above_the_capacity_is_drawn(self):
        # Losses by width of the untrained model: log(1 + 1/e) at 1/2, log(1 + e) at 1. A client of 1/2 meets the first.
        trainer = trainer_of(TwoUnits(), *ones(), "training.steps=8", "training.lr=0", name="fjord", widths=[0.5, 1.0])
        assert train(trainer, capacity=0.5)[1].loss == pytest.approx(math.log(1 + 1 / E), rel=1e-5)
        assert math.log(1 + 1 / E) < train(trainer, capacity=1.0)[1].loss < math.log(1 + E)

    def test_distillation(self):
        # Teacher z = (1, 2), student (1, 0), label 0. Cross entropies log(1 + e) and log(1 + 1/e).
        # KL(teacher | student) = -1 * 1 / (1 + e) + 1 * e / (1 + e).
        trainer = trainer_of(TwoUnits(), *ones(), name="fjord", widths=[0.5], distil=True)
        kl = (E - 1) / (E + 1)
        expected = math.log(1 + E) + 0.5 * math.log(1 + 1 / E) + 0.5 * kl
        assert train(trainer)[1].loss == pytest.approx(expected, rel=1e-5)

    def test_scalers_of_both_widths_where_the_layer_is_too_small_to_differ(self):
        # A quarter and a half of two units are one unit each: h = 1/0.25 or 1/0.5, losses log(1 + e^-4), log(1 + e^-2).
        changes = ["training.steps=20", "training.lr=0"]
        trainer = trainer_of(TwoUnits(scaler=True), *ones(), *changes, name="fjord", widths=[0.25, 0.5])
        draws = numpy_generator(trainer.settings.seed, "width", 0, 0)
        drawn = [float(draws.choice([0.25, 0.5])) for _ in range(20)]
        assert set(drawn) == {0.25, 0.5}
        expected = sum(math.log(1 + E ** (-1 / width)) for width in drawn) / 20
        assert train(trainer, capacity=0.5)[1].loss == pytest.approx(expected, rel=1e-5)

    def test_every_width_of_a_convolutional_net_gets_gradients_through_its_own_prefix(self):
        data = load("digits")
        partition = make_partition(data, "iid", 10, 1)
        model = Cnn(data_shape=(1, 8, 8), widths=[8, 8])
        trainer = trainer_of(model, data, partition, "training.batch_size=50", name="fjord", widths=[0.25])
        after, _ = train(trainer)
        name = "features.0.weight"
        before = model.get_parameter(name)
        assert (after[name][:2] != before[:2]).any()
        assert torch.equal(after[name][2:], before[2:])


class TestBuffers:
    def test_what_stands_in_place_of_buffers_is_written_into_them(self):
        module = nn.Module()
        module.register_buffer("one", torch.tensor([1.0, 2.0]))
        module.register_buffer("two", torch.tensor([3.0, 4.0]))
        module.register_buffer("none", torch.tensor(5.0))
        own, buffers = dict(module.named_buffers()), Buffers(module)
        module.one, module.two, module.none = module.two, module.one.flip(0), None
        buffers.settle()
        assert [own[name].tolist() for name in own] == [[3.0, 4.0], [2.0, 1.0], 5.0]
        assert module.one is own["one"]
        module.two = own["two"].double().requires_grad_() * 2
        buffers.settle()
        assert (own["two"].tolist(), own["two"].dtype, own["two"].requires_grad) == ([4.0, 2.0], torch.float32, False)

    def test_narrower_models_of_other_clients_leave_nothing_behind(self):
        settings = small("method.name=fjord", "training.batch_size=16", "training.epochs=2")
        found = []
        for order in ([4], [1, 2, 4]):
            trainer = Experiment(settings, model=Counting()).trainer
            for client in order:
                result, _ = train(trainer, client=client, capacity=1.0, round=2)
            found.append(result)
        assert same(*found)


class Counting(nn.Sequential):
    """Answers less in every training step that its modules remember."""

    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
        self.steps = 0
        with torch.no_grad():
            for tensor in self.parameters():
                tensor.fill_(0.1)

    def forward(self, x):
        self.steps += self.training
        return super().forward(x) / (1 + self.steps)


class TestRandomness:
    def trained(self, round=0, client=0, seed=1):
        data, partition = ones(clients=2, per_client=4)
        trainer = trainer_of(TwoUnits(dropout=0.5), data, partition, f"seed={seed}", "training.epochs=8")
        return train(trainer, round=round, client=client)[0]

    def test_dropout_comes_from_seed_round_and_client(self):
        once = self.trained()
        assert same(once, self.trained())
        for other in ({"round": 1}, {"client": 1}, {"seed": 2}):
            assert not same(once, self.trained(**other))

    def test_the_callers_randomness_is_not_disturbed(self):
        trainer = trainer_of(TwoUnits(dropout=0.5), *ones())
        before = torch.get_rng_state()
        train(trainer)
        assert torch.equal(before, torch.get_rng_state())

    @pytest.mark.parametrize(
        "changes",
        [
            ["training.optimiser=adam", "training.lr=0.01"],
            ["method.name=fjord", "method.options.distil=true"],
            ["training.momentum=0.9"],
        ],
    )
    def test_a_client_does_not_depend_on_who_was_trained_before(self, changes):
        settings = small("model.name=cnn", "model.options={widths=[8, 8]}", *changes)
        results = []
        for order in ([4], [1, 2, 4], [4, 4]):
            trainer = Experiment(settings).trainer
            for client in order:
                result, _ = train(trainer, client=client, capacity=0.5, round=2)
            results.append(result)
        assert same(results[0], results[1])
        assert same(results[0], results[2])

    def test_buffers_come_back_with_the_update(self):
        trainer = Experiment(small("model.name=cnn", "model.options={widths=[8]}")).trainer
        assert train(trainer)[0].keys() == fedwidth.state_of(trainer.model).keys()


class Volume(Cnn):
    """Has a tensor of five dimensions, which cannot lie with its channels last as images do."""

    def __init__(self):
        super().__init__(data_shape=(3, 8, 8), classes=4, widths=(4, 8))
        self.register_buffer("volume", torch.ones(1, 1, 1, 1, 1))

    def forward(self, x):
        return super().forward(x) * self.volume.flatten()


def test_a_model_with_a_tensor_of_five_dimensions_keeps_its_order():
    x, y = torch.randn(20, 3, 8, 8), torch.arange(20) % 4
    data = fedwidth.data.from_tensors(x, y, x, y, kind="images")
    trainer = trainer_of(Volume(), data, make_partition(data, "iid", 1, 1))
    assert not trainer.channels_last
    train(trainer, capacity=0.5)


def test_channels_last_in_memory_changes_nothing_but_rounding():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20, 3, 8, 8, generator=generator, dtype=torch.float64)
    y = torch.arange(20) % 4
    data = fedwidth.data.from_tensors(x, y, x, y, kind="images")
    partition = make_partition(data, "iid", 1, 1)
    found = []
    for channels_last in (True, False):
        trainer = trainer_of(Cnn(data_shape=(3, 8, 8), classes=4, widths=(4, 8)).double(), data, partition)
        with torch.no_grad():
            for name, parameter in trainer.model.named_parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(name))) / 3)
        assert trainer.channels_last
        trainer.channels_last = channels_last
        tensors, trained = train(trainer, capacity=0.5)
        assert tensors["features.0.weight"].is_contiguous(memory_format=torch.channels_last) == channels_last
        found.append((tensors, trained.loss))
    (one, loss), (other, other_loss) = found
    assert loss == pytest.approx(other_loss, rel=1e-12)
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "before", [[], [nn.Conv2d(4, 4, 1).requires_grad_(False)]], ids=["first", "after a frozen layer"]
)
def test_group_norms_whose_input_needs_no_gradient_train_with_channels_first(before):
    """With channels last, PyTorch ends the whole process in their backward pass."""
    layers = [*before, nn.GroupNorm(2, 4), nn.Conv2d(4, 8, 3), nn.GroupNorm(2, 8), nn.Flatten(), nn.Linear(288, 3)]
    inputs, targets = torch.randn(24, 4, 8, 8), torch.arange(24) % 3
    data = from_tensors(inputs, targets, inputs, targets, classes=3)
    settings = Settings(
        rounds=1, data=DataSettings(clients=4), devices=DeviceSettings("a1", per_round=2), engine="serial"
    )
    run = Experiment(settings, model=nn.Sequential(*layers), data=data)
    assert not run.trainer.channels_last
    assert run.run().summary["rounds"] == 1
    plain = Experiment(settings, model=nn.Sequential(*layers[len(before) + 1 :]), data=data)
    assert plain.trainer.channels_last


class Shortcut(nn.Module):
    """A strided 1x1 convolution, as in residual networks, called by names."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 4)
        self.weight = nn.Parameter(torch.randn(8, 8, 1, 1))

    def forward(self, x):
        x = nn.functional.conv2d(input=self.first(x).relu(), weight=self.weight, stride=2)
        return self.head(x.mean((2, 3)))


def test_strided_shortcuts_train_with_channels_first_where_there_are_several_threads():
    """With channels last, PyTorch ends the whole process in their backward pass."""
    x, y = torch.randn(33, 3, 32, 32), torch.arange(33) % 4
    data = fedwidth.data.from_tensors(x, y, x, y, kind="images")
    partition, before = make_partition(data, "iid", 1, 1), torch.get_num_threads()
    try:
        for threads in (2, 1):
            torch.set_num_threads(threads)
            trainer = trainer_of(Shortcut(), data, partition, "training.batch_size=33", "training.epochs=8")
            trainer.threads = threads
            assert trainer.channels_last == (threads == 1)
            train(trainer, capacity=0.5)
    finally:
        torch.set_num_threads(before)
