"""How a batch reaches a model, and which part of its answer counts."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch

from fedwidth.errors import PlanError
from fedwidth.objectives import arguments, call
from fedwidth.objectives.output import Pick, each_of, logits_of

ONE, TWO = torch.ones(1), torch.full((1,), 2.0)


def test_a_batch_is_one_argument_several_or_named_ones():
    def model(*args, **kwargs):
        return args, kwargs

    assert call(model, ONE) == ((ONE,), {})
    assert call(model, (ONE, TWO)) == ((ONE, TWO), {})
    assert call(model, {"a": ONE}) == ((), {"a": ONE})
    for batch in (ONE, (ONE, TWO), {"a": ONE}):
        args, kwargs = arguments(batch)
        assert model(*args, **kwargs) == call(model, batch)


@pytest.mark.parametrize(
    ("result", "counts"),
    [
        (TWO, TWO),
        ((TWO, ONE), TWO),
        ([TWO], TWO),
        ({"loss": None, "logits": TWO, "hidden": ONE}, TWO),
        ({"scores": TWO}, TWO),
        (OrderedDict(loss=None, start=TWO), TWO),
    ],
)
def test_what_counts_by_itself(result, counts):
    assert logits_of(result) is counts


@pytest.mark.parametrize("result", [{"a": ONE, "b": ONE}, (), "text", None])
def test_what_does_not_say(result):
    with pytest.raises(PlanError, match="say which counts with objective.output|no tensor is found"):
        logits_of(result)


def test_a_part_by_name_or_number():
    class Answer(OrderedDict):
        hidden = TWO

    assert Pick("1")((ONE, TWO)) is TWO
    assert Pick("b")({"a": ONE, "b": TWO}) is TWO
    assert Pick("hidden")(Answer(a=ONE)) is TWO
    assert Pick("all")((ONE, TWO)) == (ONE, TWO)
    for name, result in (("2", (ONE, TWO)), ("c", {"a": ONE}), ("logits", (ONE,)), ("0", ONE)):
        with pytest.raises(PlanError, match=f"objective.output is '{name}', but the model returns "):
            Pick(name)(result)


def test_the_outputs_of_several_models():
    outputs = {"a": torch.arange(6).view(2, 3), "b": torch.arange(2)}
    first, second = each_of(outputs)
    assert first["a"].tolist() == [0, 1, 2]
    assert int(second["b"]) == 1


def test_hugging_faces_outputs():
    outputs = pytest.importorskip("transformers").modeling_outputs
    found = outputs.SequenceClassifierOutput(loss=None, logits=TWO, hidden_states=(ONE,))
    assert logits_of(found) is TWO
    assert Pick("hidden_states")(found) == (ONE,)
