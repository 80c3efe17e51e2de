"""Runs that begin with weights: of a file, or of an earlier run."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fedwidth.config.influence import identity
from fedwidth.errors import OptionError, StateError
from fedwidth.experiment import Experiment
from fedwidth.run.checkpoint import NAME
from small_runs import same, small


@pytest.fixture(scope="module")
def earlier(tmp_path_factory):
    """The folder of a run, and its last state."""
    folder = tmp_path_factory.mktemp("runs") / "first"
    return folder, Experiment(small()).run(folder).server.state


def test_a_run_begins_where_another_ended(earlier):
    folder, state = earlier
    for source in (folder, folder / NAME):
        experiment = Experiment(small(f"model.weights={source}"))
        assert same(experiment.first_server().state, state)
    assert experiment.run().server.round == 3


def test_a_file_of_weights(earlier, tmp_path):
    _, state = earlier
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, tmp_path / "w.safetensors")
    found = Experiment(small(f"model.weights={tmp_path / 'w.safetensors'}"))
    assert same(found.first_server().state, state)
    assert identity(found.settings) != identity(small())
    narrow = Experiment(small(f"model.weights={tmp_path / 'w.safetensors'}", "model.width=0.5"))
    assert torch.equal(narrow.first_server().state["classifier.weight"], state["classifier.weight"][:, :4])


def test_weights_that_are_not_finite_are_refused(earlier, tmp_path):
    _, state = earlier
    bad = {name: tensor.clone() for name, tensor in state.items()}
    bad["classifier.bias"][3] = torch.nan
    save_file(bad, tmp_path / "w.safetensors")
    with pytest.raises(StateError, match=r"w\.safetensors has a value in 'classifier\.bias' that is not finite"):
        Experiment(small(f"model.weights={tmp_path / 'w.safetensors'}"))
    Experiment(small(f"model.weights={tmp_path / 'w.safetensors'}", "model.fresh=classifier.*"))


def test_weights_as_narrow_as_the_server(tmp_path):
    state = Experiment(small("model.width=0.5")).run(tmp_path).server.state
    assert same(Experiment(small(f"model.weights={tmp_path}", "model.width=0.5")).first_server().state, state)


def test_some_tensors_begin_anew(earlier):
    folder, state = earlier
    found = Experiment(small(f"model.weights={folder}", "model.fresh=classifier.*")).first_server().state
    new = Experiment(small()).first_server().state
    for name in state:
        assert torch.equal(found[name], (new if name.startswith("classifier.") else state)[name])


def test_tensors_with_two_names_are_stored_once(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(64, 8)
            self.middle = nn.Linear(8, 8)
            self.again = self.middle
            self.last = nn.Linear(8, 10)

        def forward(self, x):
            return self.last(self.again(torch.relu(self.middle(self.first(x.flatten(1))))))

    one, other = Tied(), Tied()
    stored = {name: tensor for name, tensor in one.state_dict().items() if not name.startswith("again.")}
    save_file(stored, tmp_path / "tied.safetensors")
    found = Experiment(small(f"model.weights={tmp_path / 'tied.safetensors'}"), model=other).first_server().state
    assert same(found, one.state_dict())


def test_a_model_of_ones_own_is_not_changed(earlier):
    folder, state = earlier
    model = Experiment(small()).model
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert same(Experiment(small(f"model.weights={folder}"), model=model).first_server().state, state)
    assert same(model.state_dict(), before)


def test_mistakes(earlier, tmp_path):
    folder, state = earlier
    whole = {name: tensor.contiguous() for name, tensor in state.items()}
    files = {
        "less": {name: tensor for name, tensor in whole.items() if name != "classifier.bias"},
        "more": {**whole, "head.weight": torch.zeros(2)},
        "wide": {**whole, "classifier.weight": torch.zeros(10, 9)},
    }
    for name, tensors in files.items():
        save_file(tensors, tmp_path / f"{name}.safetensors")
    (tmp_path / "text.safetensors").write_text("these are no tensors")
    (tmp_path / "empty").mkdir()
    said = {
        "less.safetensors": "lacks 'classifier.bias' of the model: .* say so with model.fresh",
        "more.safetensors": "holds 'head.weight', which the model does not have",
        "wide.safetensors": r"another shape for 'classifier.weight': \[10, 9\], in the model \[10, 8\]",
        "text.safetensors": "which is no file of safetensors",
        "empty": "a folder without checkpoint.safetensors",
        "nowhere": "there is no such file or folder",
    }
    for name, message in said.items():
        with pytest.raises(StateError, match=message):
            Experiment(small(f"model.weights={tmp_path / name}"))
    with pytest.raises(StateError, match=r"model.fresh names 'head.\*', but the model has no such tensor"):
        Experiment(small(f"model.weights={folder}", "model.fresh=head.*"))
    with pytest.raises(OptionError, match="model.fresh names tensors that are not read from model.weights"):
        small("model.fresh=classifier.*")
