"""FedDF: its target and loss by hand, and the laws that tie it to FedAvg."""

import math
from dataclasses import replace

import pytest
import torch

import fedwidth
from fedwidth.config import build
from fedwidth.config.read import read_settings
from fedwidth.core.architectures import GLOBAL
from fedwidth.core.index import Index
from fedwidth.experiment import Experiment
from fedwidth.methods import Closing, Task, under
from fedwidth.methods.feddf import ensemble
from fedwidth.methods.shared.distillation import Best, Lesson, divergence
from fedwidth.methods.shared.width_models import filled, teachers
from small_runs import same, small

TEACHERS = torch.tensor([[[2.0, 0.0]], [[0.0, 1.0]]])


def test_the_target_is_the_mean_of_logits_or_of_probabilities():
    """Teachers (2, 0) and (0, 1): (0.622459, 0.377541), or (0.574869, 0.425131) where probabilities are averaged."""
    assert ensemble(TEACHERS, "logits", 1.0)[0].tolist() == pytest.approx([0.622459, 0.377541], abs=1e-6)
    assert ensemble(TEACHERS, "probabilities", 1.0)[0].tolist() == pytest.approx([0.574869, 0.425131], abs=1e-6)


def test_the_loss_of_a_student_that_knows_nothing():
    """Student (0, 0): KL = 0.0302999, gradient (-0.122459, 0.122459)."""
    student = torch.zeros(1, 2, requires_grad=True)
    loss = divergence(student, ensemble(TEACHERS, "logits", 1.0), 1.0)
    loss.backward()
    assert loss.item() == pytest.approx(0.0302999, abs=1e-6)
    assert student.grad[0].tolist() == pytest.approx([-0.122459, 0.122459], abs=1e-6)


def test_a_teacher_equal_to_the_student_teaches_nothing():
    student = torch.tensor([[2.0, 0.0, -1.0]], requires_grad=True)
    loss = divergence(student, ensemble(student.detach()[None], "logits", 1.0), 1.0)
    loss.backward()
    assert loss.item() == pytest.approx(0.0, abs=1e-7)
    assert student.grad.abs().max().item() < 1e-7


@pytest.mark.parametrize("method", ["feddf", "fedbe"])
def test_without_steps_and_with_one_architecture_it_is_fedavg(method):
    options = ["devices.capacities=a1", "data.public=0.1", "rounds=3"]
    plain = Experiment(small("method.name=fedavg", *options)).run()
    found = Experiment(small(f"method.name={method}", "method.options={steps=0}", *options)).run()
    assert same(plain.server.state, found.server.state)


def test_every_width_has_a_model_of_its_own_and_only_those_that_took_part_are_averaged():
    settings = small("method.name=feddf", "method.options={steps=2, batch_size=8}", "rounds=2", "devices.per_round=3")
    run = Experiment(settings)
    first = run.rounds.method.first_memory
    assert first is not None
    result = run.run()
    memory = result.server.memory
    widths = {name.split(".")[1] + "." + name.split(".")[2] for name in memory}
    assert len(under(memory, "width.0.5")) == len(under(memory, "width.0.25")) == len(run.plan.shapes)
    assert widths
    assert math.isfinite(result.metrics[-1]["global_loss"])


def test_public_samples_are_nobody_elses():
    run = Experiment(small("method.name=feddf", "rounds=1", "data.validation=0.2"))
    assert run.settings.data.public == 0.1, "where nobody says how much"
    public, held = set(run.partition.public.tolist()), set(run.partition.validation.tolist())
    trained = {sample for client in range(len(run.partition)) for sample in run.partition[client].tolist()}
    assert public
    assert not public & held
    assert not public & trained
    assert len(public) == round(0.1 * len(run.data.train))
    assert len(run.rounds.public.train) == len(public)


@pytest.mark.parametrize("method", ["feddf", "fedbe", "dsfl", "fedet"])
def test_another_data_set_may_be_public_and_then_nobody_gives_up_anything(method):
    run = Experiment(small(f"method.name={method}", "data.public_name=digits", "rounds=1"))
    assert run.settings.data.public == 0
    assert len(run.partition.public) == 0
    assert len(run.rounds.public.train) == 1442
    assert math.isfinite(run.run().metrics[-1]["global_loss"])


def test_another_data_set_is_prepared_as_the_runs_own(monkeypatch):
    """Clients that saw pixels from 0 to 1 are not asked about normalised ones; where a set came from is its own."""
    asked, data = [], build.load_data(small())
    monkeypatch.setattr(build, "load", lambda name, root, **options: asked.append((name, options)) or data)
    own = "data.options={normalise=false, mirror=true, base_url='here'}"
    settings = small("data.name=cifar10", own, "data.public_name=cifar100", "method.name=feddf")
    assert build.public_data(settings, data, None) is data
    assert asked == [("cifar100", {"normalise": False})]


def test_all_runs_of_a_table_give_up_the_same_data():
    recipe = read_settings("quickstart", ["method.name=feddf"])
    assert {run.settings.data.public for run in recipe.runs} == {0.1}
    assert {run.settings.data.public for run in read_settings("quickstart").runs} == {0.0}


def test_data_that_a_recipe_denies_the_server_are_not_taken_all_the_same():
    with pytest.raises(fedwidth.FedwidthError, match=r"FedDF needs data of the server's own, and data\.public is 0"):
        read_settings("quickstart", ["method.name=feddf", "data.public=0"])
    named = read_settings("quickstart", ["method.name=feddf", "data.public=0", "data.public_name=digits"])
    assert named.main.data.public == 0


def test_bad_public_data_is_named():
    with pytest.raises(fedwidth.FedwidthError, match=r"data\.public must be a share from 0 to below 1"):
        Experiment(small("method.name=feddf", "data.public=1.5"))
    with pytest.raises(fedwidth.FedwidthError, match=r"data\.public_name another data set: give one"):
        Experiment(small("data.public=0.1", "data.public_name=mnist"))
    run = Experiment(small("method.name=fedavg"))
    with pytest.raises(fedwidth.FedwidthError, match=r"FedDF needs data of the server's own"):
        Experiment(small("method.name=feddf"), data=run.data, partition=run.partition)
    with pytest.raises(fedwidth.FedwidthError, match=r"holds none out: take a larger share"):
        Experiment(small("method.name=feddf", "data.public=0.0001"))


TAUGHT = ["method.name=feddf", "devices.capacities=a1", "data.public=0.1", "rounds=2"]


def test_teachers_that_all_say_what_the_student_says_teach_nothing():
    """Untrained clients of one width: the average is each of them, and no step moves it by more than rounding.

    Without decay and momentum of their own, Adam's steps are as long for tiny gradients: rounding counts, so the
    gradient itself is looked at.
    """
    run = Experiment(small(*TAUGHT, "training.lr=0.0"))
    index = Index.whole(run.plan)
    sums, tasks = [], []
    for client in range(3):
        total = index.accumulator()
        total.add(fedwidth.Update(run.first_state, index, 1.0, client=client))
        sums.append(total)
        tasks.append(Task(client, 1.0, index, client, single=True))
    closing = Closing(
        run.first_state,
        sums,
        run.plan,
        tasks=tasks,
        model=run.model,
        public=run.rounds.public,
        options=run.method.values,
    )
    lesson = Lesson.of(closing, teachers(closing), lambda z: ensemble(z, "logits", 1.0), steps=1, batch_size=8)
    student = filled(closing, GLOBAL, run.first_state)
    inputs, _ = closing.public.batch(closing.public.train, lesson.batches[0])
    divergence(student(inputs), lesson.wanted[0], 1.0).backward()
    assert max(parameter.grad.abs().max().item() for parameter in student.parameters()) < 1e-6


def test_without_distillation_untrained_clients_change_nothing():
    settings = ["method.name=feddf", "method.options={steps=0}", "rounds=2", "training.lr=0.0", "devices.per_round=6"]
    run = Experiment(small(*settings))
    found = run.run()
    assert same(run.first_state, found.server.state)
    assert same(dict(run.first_server().memory), dict(found.server.memory))


def test_each_public_sample_is_answered_once_by_each_teacher():
    run = Experiment(small(*TAUGHT, "rounds=1", "devices.per_round=3", "method.options={steps=40, batch_size=16}"))
    asked, plain = [], run.rounds.answer
    counted = replace(run.rounds)
    object.__setattr__(
        counted, "answer", lambda model, inputs: asked.append((model.training, len(inputs))) or plain(model, inputs)
    )
    run.rounds = counted
    run.run()
    assert sum(number for training, number in asked if not training) == 3 * len(run.rounds.public.train)
    assert sum(number for training, number in asked if training) == 40 * 16


def scored(*scores):
    """A judge that gives these scores, one after the other."""
    left = iter(scores)
    return lambda student: next(left)


def test_the_student_that_validated_best_is_kept():
    """Scores 1, 3, 2, 2 at steps 2, 4, 6, 8; with a patience of 4 the ninth and tenth step are not taken."""
    student = torch.nn.Linear(1, 1, bias=False)
    best = Best(student, scored(1.0, 3.0, 2.0, 2.0), every=2, patience=4)
    taken = 0
    for step in range(10):
        student.weight.data.fill_(step)
        taken += 1
        if not best.look(step):
            break
    assert taken == 8
    best.restore()
    assert student.weight.item() == 3.0
    untouched = Best(student, None, every=1, patience=0)
    assert untouched.look(0)
    untouched.restore()
    assert student.weight.item() == 3.0


def test_validation_samples_choose_among_students():
    settings = [*TAUGHT, "rounds=1", "data.validation=0.2"]
    looks = "method.options={steps=6, batch_size=16, rate=0.05, look_every=1}"
    seen = []
    run = Experiment(small(*settings, looks))
    validate = run.rounds.validate
    run.rounds = replace(run.rounds, validate=lambda model: seen.append(validate(model)) or seen[-1])
    state = run.run().server.state
    assert len(seen) == 6
    assert len(set(seen)) > 1
    assert validate(filled_with(run, state)) == max(seen)
    assert Experiment(small(*TAUGHT)).rounds.validate is None


def filled_with(run, state):
    run.model.load_state_dict(state)
    return run.model


@pytest.mark.parametrize("engine", ["serial", "vectorised"])
def test_a_teacher_has_every_tensor_its_client_held(engine):
    """Engines on vectors do not add counters up: a norm that has counted nothing must not look as if it had."""
    network = ["model.name=cnn", "model.options={widths=[4, 4]}", f"engine={engine}"]
    run, seen = Experiment(small(*TAUGHT, *network, "rounds=1", "method.options={steps=1}")), []

    def close(closing):
        seen.extend(teachers(closing))
        return dict(closing.state)

    run.rounds = replace(run.rounds, method=replace(run.method, close=close, advance=None))
    run.run()
    counters = [buffer for module in seen for name, buffer in module.named_buffers() if "num_batches" in name]
    assert len(counters) == 2 * len(seen) > 0
    assert not any(counter.item() for counter in counters)
