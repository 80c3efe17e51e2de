"""What clients do before they train, on vectors."""

from dataclasses import replace

import pytest
import torch

from fedwidth.experiment import Experiment
from fedwidth.methods import Local, method
from small_runs import small


def before(client):
    """Every client learns something else."""
    with torch.no_grad():
        for parameter in client.network().parameters():
            parameter.add_(client.task.client * 0.01)
    return client.task.client


@pytest.mark.parametrize("engine", ["vectorised", "cuda"])
def test_clients_that_begin_with_the_same_part_take_lessons_of_their_own(engine):
    own = replace(method("feddf").with_options(steps=1, batch_size=16), local=Local(before=before))
    changes = ["data.public=0.2", "devices.per_round=6", "rounds=1"]
    one, other = (Experiment(small(*changes, f"engine={each}"), method=own).run() for each in ("serial", engine))
    torch.testing.assert_close(dict(other.server.state), dict(one.server.state), rtol=0, atol=1e-5)
    assert other.metrics[-1]["train_loss"] == pytest.approx(one.metrics[-1]["train_loss"], abs=1e-5)


def pulled(gradient, weights, start, sent, moment):
    """FedProx' gradient."""
    del sent, moment
    return gradient + 0.5 * (weights - start)


@pytest.mark.parametrize("engine", ["vectorised", "cuda"])
def test_a_client_starts_where_its_lesson_has_brought_it(engine):
    own = replace(method("feddf").with_options(steps=1, batch_size=16), local=Local(before=before, gradient=pulled))
    changes = ["data.public=0.2", "devices.per_round=6", "rounds=1"]
    one, other = (Experiment(small(*changes, f"engine={each}"), method=own).run() for each in ("serial", engine))
    torch.testing.assert_close(dict(other.server.memory), dict(one.server.memory), rtol=0, atol=1e-5)
