"""What clients send in place of models is taken whole or refused, and never added up."""

import pytest
import torch

from fedwidth.core.answers import ANSWERS, AnswerSum
from fedwidth.core.updates import Update
from fedwidth.errors import SelectionError, UpdateError


def update(client=3, **answers):
    return Update({}, None, 2.0, client=client, reports={ANSWERS: answers})


def test_answers_are_copied_and_counted():
    samples, said = torch.arange(4), torch.rand(4, 3)
    found = AnswerSum()
    found.add(update(samples=samples, said=said))
    said.zero_()
    assert found.answers["said"].sum() > 0
    assert (found.rows, found.bytes, found.clients, found.weight) == (4, 4 * 8 + 12 * 4, 1, 2.0)


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ({"a": torch.zeros(2)}, r"client 3 must say under 'samples' what it answers for, not only \['a'\]"),
        ({}, r"not only \[\]"),
        (
            {"samples": torch.arange(2), "a": torch.tensor([1.0, float("nan")])},
            "client 3 sent a value in 'a' that is not finite",
        ),
    ],
)
def test_bad_answers_are_refused_and_leave_nothing_behind(answers, why):
    found = AnswerSum()
    with pytest.raises(UpdateError, match=why):
        found.add(update(**answers))
    assert (found.clients, found.answers, found.rows) == (0, {}, 0)


def test_a_second_client_is_refused():
    found = AnswerSum()
    found.add(update(samples=torch.zeros(2)))
    with pytest.raises(SelectionError, match="client 4 answers where another client has"):
        found.add(update(client=4, samples=torch.ones(2)))
