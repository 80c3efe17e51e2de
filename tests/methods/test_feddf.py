"""FedDF: its target and loss by hand, and the laws that tie it to FedAvg."""

import math

import pytest
import torch

import fedwidth
from fedwidth.config.read import read_settings
from fedwidth.experiment import Experiment
from fedwidth.methods import under
from fedwidth.methods.feddf import ensemble
from fedwidth.methods.shared.distillation import divergence
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


def test_all_runs_of_a_table_give_up_the_same_data():
    recipe = read_settings("quickstart", ["method.name=feddf"])
    assert {run.settings.data.public for run in recipe.runs} == {0.1}
    assert {run.settings.data.public for run in read_settings("quickstart").runs} == {0.0}


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
