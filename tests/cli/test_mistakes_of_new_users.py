"""What new users got wrong when fedwidth was tried on them: each is one clear line, before anything is trained."""

from __future__ import annotations

import sys
from importlib import invalidate_caches

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from fedwidth.cli.entry import run_command
from fedwidth.config.write import settings_toml
from fedwidth.core.cost import cost
from fedwidth.data import from_tensors
from fedwidth.errors import FedwidthError
from fedwidth.experiment import Experiment
from fedwidth.models import build, example_inputs
from fedwidth.plan import trace
from fedwidth.settings import Settings
from small_runs import small, write_recipe


class Words(nn.Module):
    """Takes numbers of words."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.hidden, self.head = nn.Embedding(50, 16), nn.Linear(16, 32), nn.Linear(32, 5)

    def forward(self, words):
        return self.head(torch.relu(self.hidden(self.embed(words))))


class Plain(nn.Module):
    """Pictures of 8 x 8 to ten classes."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(64, 32), nn.Linear(32, classes)

    def forward(self, x):
        return self.head(torch.relu(self.hidden(x.flatten(1))))


class Pair(Plain):
    """Returns a tuple."""

    def forward(self, x):
        return super().forward(x), x.mean()


class ListOfLists(Plain):
    """Returns something in which nobody finds logits."""

    def forward(self, x):
        return {"found": [super().forward(x)]}


class FailsInTraining(Plain):
    """Has code that only training runs, and that fails."""

    def forward(self, x):
        y = super().forward(x)
        return y @ torch.ones(11, 10) if self.training else y


class Lazy(nn.Sequential):
    """Has a layer whose size nobody has said."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.LazyLinear(32), nn.Linear(32, 10))


class AllFrozen(Plain):
    """Has nothing to train."""

    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)


def no_number(output, targets):
    return output.sum() * float("nan")


class Pictures(Dataset):
    """Files, of which one cannot be read; their labels are listed."""

    def __init__(self, broken: int | None) -> None:
        self.broken, self.targets = broken, [number % 10 for number in range(60)]

    def __len__(self) -> int:
        return 60

    def __getitem__(self, number):
        if number == self.broken:
            raise OSError("the disk is gone")
        return torch.full((1, 8, 8), number / 60), self.targets[number]


def broken_files():
    return Pictures(7), Pictures(None)


HERE = "test_mistakes_of_new_users"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["plan", f"{HERE}:Plain"], "give --shape, e.g. 3x32x32, or --tokens"),
        (["cost", f"{HERE}:Words", "--shape", "6"], "the model failed on the example inputs: Expected tensor"),
        (
            ["partition", "digits", "--kind", "dirichlet", "--clients", "1000", "--set", "alpha=0.1"],
            'say what becomes of small ones: small = "fill" or "drop", or equal = true',
        ),
        (["sweep", "RECIPE", "--over", "method.name=fedrolex,nonsense"], "unknown method 'nonsense'"),
        (["run", "RECIPE", "--set", f"model.name={HERE}:ListOfLists"], "must return one tensor of logits"),
        (["run", "RECIPE", "--set", f"model.name={HERE}:FailsInTraining"], "failed on the example inputs in training"),
        (
            ["run", "RECIPE", "--set", f"model.name={HERE}:Lazy"],
            "'1.weight' has no shape yet; run the model once",
        ),
        (
            ["run", "RECIPE", "--set", f"model.name={HERE}:AllFrozen"],
            "requires_grad is False for all of its parameters",
        ),
        (
            ["run", "RECIPE", "--set", "model.options.classes=4"],
            "model option 'classes' comes from the data, which says 10: leave it out",
        ),
        (
            ["run", "RECIPE", "--set", f"model.name={HERE}:Plain", "--set", "model.options={classes = 4}"],
            "model option 'classes' comes from the data, which says 10: leave it out",
        ),
        (
            ["run", "RECIPE", "--set", "model.options.data_shape=[1, 8, 8]"],
            "model option 'data_shape' comes from the data, which says (1, 8, 8): leave it out",
        ),
        (["run", "RECIPE", "--set", "model.options.seed=4"], "model option 'seed' is the run's own (seed)"),
        (["run", "RECIPE", "--set", f"objective.loss={HERE}:no_number"], "is nan on the first samples"),
        (
            ["run", "RECIPE", "--set", f"data.name={HERE}:broken_files", "--set", "data.partition_options={}"],
            "sample 7 of the training data set could not be read: OSError: the disk is gone",
        ),
        (["run", "RECIPE", "--set", "method.name=nowhere:METHOD", "--engine", "processes"], "method 'nowhere:METHOD'"),
        (["run", "RECIPE", "--set", f"method.name={HERE}"], f"is a module: did you mean '{HERE}:METHOD', with"),
        (["run", "RECIPE", "--set", f"method.name={HERE}.py"], f"is a module: did you mean '{HERE}:METHOD', with"),
        (["run", "RECIPE", "--set", "method.name=json"], "unknown method 'json'; allowed: cocofl, dsfl"),
        (["run", "RECIPE", "--set", "objective.loss=nowhere:loss"], "loss 'nowhere:loss'"),
        (["run", "RECIPE", "--set", "objective.name=regresion"], "did you mean 'regression'"),
        (["run", "RECIPE", "--set", "objective.metric=mse"], "metric for classification 'mse'"),
        (["run", "RECIPE", "--set", "model.weights=nowhere.safetensors"], "nowhere.safetensors"),
        (["run", "RECIPE", "--set", "data.cache=64"], "data.cache is for data sets of your own"),
    ],
)
def test_one_line(command, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = write_recipe(tmp_path, '\n[[compare]]\nlabel = "b"\nmethod.name = "heterofl"\n')
    out = ["--out", "out"] if command[0] in ("run", "sweep") else []
    assert run_command([recipe if word == "RECIPE" else word for word in command] + out) == 2
    (said,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("error: "))
    assert message in said
    assert not (tmp_path / "out").exists()


OWN = """from torch import nn
class Builds(nn.Module):
    def __init__(self): super().__init__(); self.layer = nn.Liner(64, 10)
class Answers(nn.Sequential):
    def __init__(self): super().__init__(nn.Flatten(), nn.Linear(64, 10))
    def forward(self, x): return super().forward(x.unsqueez(1))
class Trains(Answers):
    def forward(self, x): return nn.Sequential.forward(self, x.view(-1, 32) if self.training else x)
class Narrow(nn.Sequential):
    def __init__(self): super().__init__(nn.Flatten(), nn.Linear(32, 10))
def data(): return open("nowhere")
def deal(data, clients, seed): return 1 / 0
def loss(output, targets): return output[targets["class"]]
"""


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("model.name=own_code:Builds", "has no attribute 'Liner' (own_code.py, line 3)"),
        ("model.name=own_code:Answers", "has no attribute 'unsqueez' (own_code.py, line 6)"),
        ("model.name=own_code:Trains", "(4x32 and 64x10) (own_code.py, line 8)"),
        ("model.name=own_code:Narrow", "mat1 and mat2 shapes cannot be multiplied (2x64 and 32x10)"),
        ("data.name=own_code:data", "No such file or directory: 'nowhere' (own_code.py, line 11)"),
        ("data.partition=own_code:deal", "ZeroDivisionError: division by zero (own_code.py, line 12)"),
        ("objective.loss=own_code:loss", " (own_code.py, line 13)"),
        ("model.name=imports_it:Net", "cannot import 'imports_it': division by zero (imports_it.py, line 2)"),
    ],
)
def test_what_code_of_ones_own_raises_says_where(setting, said, tmp_path, capsys, monkeypatch):
    """But no line of fedwidth or PyTorch."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_code.py").write_text(OWN)
    (tmp_path / "imports_it.py").write_text("import own_code\n1 / 0\n")
    monkeypatch.delitem(sys.modules, "own_code", raising=False)
    invalidate_caches()
    recipe = small("model.options={}", f"model.name={HERE}:Plain", "data.partition=iid", "data.partition_options={}")
    (tmp_path / "own.toml").write_text(settings_toml(recipe))
    assert run_command(["run", "own.toml", "--set", setting, "--out", "out"]) == 2
    error = capsys.readouterr().err
    assert error.endswith(f"{said}\n"), error


@pytest.mark.parametrize(
    "command",
    [
        ["plan", f"{HERE}:Words", "--tokens", "6"],
        [
            "partition",
            "digits",
            "--kind",
            "dirichlet",
            "--clients",
            "1000",
            "--set",
            "alpha=0.1",
            "--set",
            "small=fill",
        ],
        [
            "partition",
            "digits",
            "--kind",
            "dirichlet",
            "--clients",
            "1000",
            "--set",
            "alpha=0.1",
            "--set",
            "small=drop",
        ],
        [
            "partition",
            "digits",
            "--kind",
            "dirichlet",
            "--clients",
            "1000",
            "--set",
            "alpha=0.1",
            "--set",
            "equal=true",
        ],
        ["sweep", "RECIPE", "--over", "method.name=fedrolex,heterofl", "--set", "rounds=1", "--out", "out"],
        ["run", "RECIPE", "--set", f"model.name={HERE}:Pair", "--set", "rounds=1", "--out", "out"],
    ],
)
def test_what_did_not_work_works(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = write_recipe(tmp_path, '\n[[compare]]\nlabel = "b"\nmethod.name = "heterofl"\n')
    assert run_command([recipe if word == "RECIPE" else word for word in command]) == 0


@pytest.mark.parametrize("engine", ["serial", "processes"])
def test_a_sample_that_cannot_be_read_is_named_by_whoever_reads_it(engine, tmp_path, capsys, monkeypatch):
    """Read as it is needed, that is in the middle of training, by a worker where there are some."""
    monkeypatch.chdir(tmp_path)
    data = ["--set", f"data.name={HERE}:broken_files", "--set", "data.cache=1", "--set", "data.partition=iid"]
    more = ["--set", "data.partition_options={}", "--set", "devices.per_round=6", "--set", "model.options={hidden=[8]}"]
    command = ["run", write_recipe(tmp_path), *data, *more, "--engine", engine, "--out", "out"]
    assert run_command(command) in (1, 2)
    (said,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("error: "))
    assert "sample 7 of the training data set could not be read: OSError: the disk is gone" in said
    assert "stage train" in said


def test_targets_with_a_fraction_ask_for_an_objective():
    x, y = torch.randn(200, 64), torch.randn(200)
    with pytest.raises(FedwidthError, match="no class numbers: say what they are for with objective.name, one of"):
        Experiment(Settings(rounds=1), model=Plain(1), data=from_tensors(x, y, x, y))


@pytest.mark.parametrize("capacities", [0.5, "1/2"])
def test_one_capacity_is_no_list_of_them(capacities):
    model, inputs = build("mlp"), example_inputs("mlp")
    with pytest.raises(FedwidthError, match="capacities are a list"):
        cost(model, trace(model, inputs), inputs, capacities)
