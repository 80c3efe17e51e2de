"""Files of models: what is loaded from them in a fresh process answers as the model of the run did."""

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from export_runs import finished

import fedwidth
from fedwidth.cli.entry import run_command
from fedwidth.data import from_tensors, load
from fedwidth.errors import OptionError, PlanError, StateError
from fedwidth.experiment import Experiment
from fedwidth.export import export_run
from fedwidth.export.formats import export
from fedwidth.export.load import take
from fedwidth.run.folder import FILES
from small_runs import small

LOADERS = {
    "torch": "program = torch.export.load(file).module()\nanswer = program(inputs)",
    "safetensors": "import fedwidth\nanswer = fedwidth.load(file)(inputs)",
}
FRESH = """
import sys, torch
torch.set_num_threads(1)
real = torch.load
def load(*given, weights_only=None, **named):
    assert weights_only is not False, "a pickle was loaded"
    return real(*given, weights_only=True, **named)
torch.load = load
from safetensors.torch import load_file, save_file
file, inputs = sys.argv[1], load_file(sys.argv[2])["inputs"]
with torch.no_grad():
    {}
save_file({{"answer": answer.contiguous()}}, sys.argv[3])
"""


def digits():
    data = load("digits")
    return data.batch(data.test, torch.arange(len(data.test)))


@pytest.mark.parametrize("form", ["safetensors", "torch"])
def test_a_fresh_process_gives_the_same_predictions_and_the_reported_accuracy(form, tmp_path):
    from safetensors.torch import load_file, save_file

    folder, out = finished(), tmp_path / "model.safetensors"
    if form == "torch":
        out = out.with_suffix(".pt2")
    taken = take(folder, "1/4")
    export(taken, form, out)
    inputs, targets = digits()
    save_file({"inputs": inputs.contiguous()}, tmp_path / "inputs.safetensors")
    code = FRESH.format(LOADERS[form].replace("\n", "\n    "))
    files = [str(out), str(tmp_path / "inputs.safetensors"), str(tmp_path / "answer.safetensors")]
    subprocess.run([sys.executable, "-c", code, *files], check=True)
    answer = load_file(files[2])["answer"]
    with torch.no_grad():
        own = taken.model(inputs)
    assert torch.equal(answer.argmax(-1), own.argmax(-1))
    assert torch.allclose(answer, own, atol=1e-5)
    reported = json.loads((folder / "summary.json").read_text())["capacity_accuracy"]["0.25"]
    assert float((answer.argmax(-1) == targets).double().mean()) == reported


def test_a_torch_program_holds_no_pickle(tmp_path):
    export(take(finished(), "1/2"), "torch", tmp_path / "model.pt2")
    with zipfile.ZipFile(tmp_path / "model.pt2") as archive:
        for name in archive.namelist():
            content = archive.read(name)
            assert b'use_pickle": true' not in content
            if name.endswith((".pt", ".pkl")):
                assert content == b"", name
        assert not any(name.endswith(".pkl") for name in archive.namelist())


def test_the_card_says_where_the_model_comes_from_and_what_it_is_worth(tmp_path):
    out = tmp_path / "phone.safetensors"
    assert export(take(finished(), "1/4"), "safetensors", out)[0] == out
    card = (tmp_path / "phone.safetensors.md").read_text()
    reported = json.loads((finished() / "summary.json").read_text())["capacity_accuracy"]["0.25"]
    for said in (
        "FedRolex",
        "digits, 6 clients",
        "1/4 of the run's model",
        f"{reported:.2%}".replace("%", " %"),
        "158",
    ):
        assert said in card, said
    recipe = json.loads((tmp_path / "phone.safetensors.json").read_text())
    assert recipe["capacity"] == 0.25
    assert recipe["counts"] == {"features.0": 2, "features.4": 4}
    assert str(finished()) not in json.dumps(recipe), "no path of this machine"


def test_a_width_the_run_did_not_measure_is_measured_for_the_card(tmp_path):
    folder = finished("evaluation.capacities=[]")
    export(take(folder, "1/4"), "safetensors", tmp_path / "a.safetensors")
    assert "measured on the test set when it was exported" in (tmp_path / "a.safetensors.md").read_text()


def test_parts_that_are_no_slices_are_exported_as_programs(tmp_path):
    taken = take(finished("method.name=fedhm"), "1/4")
    with pytest.raises(OptionError, match="no slices"):
        export(taken, "safetensors", tmp_path / "a.safetensors")
    export(taken, "torch", tmp_path / "a.pt2")
    inputs, _ = digits()
    with torch.no_grad():
        assert torch.allclose(torch.export.load(tmp_path / "a.pt2").module()(inputs), taken.model(inputs), atol=1e-4)
    assert not list(tmp_path.glob("a.safetensors*"))


def test_a_width_that_no_device_holds_is_refused_before_anything_is_written(tmp_path, capsys):
    run = finished("method.name=fedavg")
    code, _, error = command(capsys, run, "--capacity", "1/4", "--out", tmp_path / "a.safetensors")
    assert (code, error.count("\n")) == (2, 1)
    assert "has no model of capacity 0.25: with FedAvg every device holds the whole model" in error
    assert not list(tmp_path.iterdir())


def command(capsys, *words):
    code = run_command(["export", *map(str, words)])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_the_command(tmp_path, capsys):
    run, out = finished(), tmp_path / "phone.safetensors"
    code, said, _ = command(capsys, run, "--capacity", "1/4", "--out", out)
    assert code == 0
    assert said.split() == [str(out), f"{out}.md", f"{out}.json"]
    assert [type(m).__name__ for m in fedwidth.load(out).features][:2] == ["Conv2d", "StaticBatchNorm2d"]
    before = out.read_bytes()
    code, _, error = command(capsys, run, "--capacity", "1/2", "--out", out)
    assert (code, error.count("\n"), "--overwrite" in error) == (2, 1, True)
    assert out.read_bytes() == before
    assert command(capsys, run, "--capacity", "1/2", "--out", out, "--overwrite")[0] == 0
    assert out.read_bytes() != before


def test_models_of_several_widths_are_one_program_that_answers_as_the_run_measured_it(tmp_path, capsys):
    run, out = finished("method.name=heterofl", "data.validation=0.2", "seed=2"), tmp_path / "a.pt2"
    found = json.loads((run / "summary.json").read_text())
    chosen = found["chosen_capacities"]
    assert len(chosen) > 1
    inputs, targets = digits()
    for number, (asked, reported) in enumerate(
        {"1, 1/2,1/4": "together_accuracy", "chosen": "chosen_accuracy"}.items()
    ):
        out = tmp_path / f"{number}.pt2"
        assert command(capsys, run, "--capacity", asked, "--format", "torch", "--out", out)[0] == 0
        extra = {"fedwidth.json": ""}
        answer = torch.export.load(out, extra_files=extra).module()(inputs)
        assert float((answer.argmax(-1) == targets).double().mean()) == found[reported]
        own = fedwidth.load(run, [1, "1/2", "1/4"] if number == 0 else "chosen")
        torch.testing.assert_close(answer, own(inputs), atol=1e-5, rtol=0)
        assert json.loads(extra["fedwidth.json"])["together"] == ([1, 0.5, 0.25] if number == 0 else chosen)
        card = out.with_name(f"{out.name}.md").read_text()
        assert f"{found[reported]:.2%}".replace("%", " % (as the run reported") in card
        assert "logarithm of the mean of the probabilities" in card
        parameters = sum(parameter.numel() for parameter in own.parameters())
        assert f"| parameters | {parameters:,} |" in card
    assert ", width 1 + 1/2 + 1/4" in (tmp_path / "0.pt2.md").read_text()
    assert "1 + 1/2 + 1/4 of the run's model, which answer together, " in (tmp_path / "0.pt2.md").read_text()


class Named(torch.nn.Module):
    """Takes what it is given by name."""

    def __init__(self, classes):
        super().__init__()
        self.read, self.kind = torch.nn.Linear(4, 8), torch.nn.Embedding(5, 8)
        self.answer = torch.nn.Linear(8, classes)

    def forward(self, numbers, kind=None):
        return self.answer(torch.relu(self.read(numbers) + self.kind(kind)))


def test_a_torch_program_takes_named_inputs_by_name_in_any_order(tmp_path):
    draw = torch.Generator().manual_seed(0)
    inputs = {"kind": torch.randint(0, 5, (60,), generator=draw), "numbers": torch.randn(60, 4, generator=draw)}
    data, model = from_tensors(inputs, torch.arange(60) % 3, inputs, torch.arange(60) % 3), Named(3)
    Experiment(small("rounds=1", "data.partition=iid", "data.partition_options={}"), model=model, data=data).run(
        tmp_path / "run"
    )
    for batch in (None, 7):
        written = export_run(tmp_path / "run", tmp_path / f"{batch}.pt2", form="torch", model=model, batch=batch)[0]
        program, some = torch.export.load(written).module(), {name: each[:7] for name, each in inputs.items()}
        own = fedwidth.load(tmp_path / "run", model=model)(**some)
        torch.testing.assert_close(program(**some), own)
        torch.testing.assert_close(program(**dict(reversed(some.items()))), own)
        assert "The program takes kind, numbers by name: " in (tmp_path / f"{batch}.pt2.md").read_text()
    assert len(torch.export.load(tmp_path / "None.pt2").module()(**inputs)) == 60


def test_widths_whose_answers_the_run_did_not_measure_together_are_measured_for_the_card(tmp_path):
    taken = take(finished("method.name=heterofl"), ["1/2", "1/4"])
    export(taken, "torch", tmp_path / "a.pt2")
    inputs, targets = digits()
    with torch.no_grad():
        score = float((taken.model(inputs).argmax(-1) == targets).double().mean())
    card = (tmp_path / "a.pt2.md").read_text()
    assert f"{score:.2%}".replace("%", " % (measured on the test set when it was exported") in card


OF_MODEL = "devices.relative_to=model"
NARROWER = ("method.name=heterofl", "model.width=1/2", OF_MODEL, "devices.capacities='1:2 1/4:4'")
"""A server's model of 1/2 for devices that can hold 1 and 1/4 of the model at full width: 1 and 1/2 of it."""


def test_beside_a_narrower_server_both_shares_are_said(tmp_path, capsys):
    out = tmp_path / "phone.safetensors"
    code, said, aside = command(capsys, finished(*NARROWER), "--capacity", "1/2", "--out", out)
    assert (code, said.split()[0]) == (0, str(out))
    assert "capacities are shares of the run's model, 1/2 of the model at full width" in aside
    card = out.with_name(f"{out.name}.md").read_text()
    assert "| width | 1/2 of the run's model, " in card
    assert "| of full width | 1/4, as the run's model is itself 1/2 of the model at full width |" in card
    assert command(capsys, finished(), "--out", tmp_path / "whole.safetensors")[2] == ""
    assert "full width" not in (tmp_path / "whole.safetensors.md").read_text()


def test_a_share_of_the_model_at_full_width_is_not_taken_for_one_of_a_narrower_server(tmp_path, capsys):
    run = finished(*NARROWER, "evaluation.capacities=[1, 0.5, 0.25, 0.125]")  # it has measured 1/4 of its own model
    code, _, error = command(capsys, run, "--capacity", "1/4", "--out", tmp_path / "phone.safetensors")
    assert (code, error.count("\n")) == (2, 1)
    assert f"no device of {run} holds 1/4 of its model, which is itself 1/2 of the model at full width" in error
    assert "name one of the shares 1 (1/2), 1/2 (1/4), in brackets those of the model at full width" in error
    assert not list(tmp_path.iterdir())
    for capacity in (0.25, [1, "1/4"]):
        with pytest.raises(OptionError, match=r"no device of .* holds 1/4 of its model"):
            fedwidth.load(run, capacity)


def test_all_devices_that_a_narrower_server_had_are_loaded_as_its_metrics_name_them():
    run = finished(*NARROWER[:1], "model.width=3/8", OF_MODEL, "evaluation.capacities=[1, 0.25]")
    named = json.loads((run / "summary.json").read_text())["capacity_accuracy"]
    assert list(named) == ["1", "0.666667"]
    assert take(run, "0.666667").capacity == take(run, "2/3").capacity == 0.25 / 0.375
    whole = finished("method.name=fedavg", "model.width=1/2", OF_MODEL)
    with pytest.raises(OptionError, match="with FedAvg every device holds the whole model"):
        fedwidth.load(whole, "1/4")


@pytest.mark.parametrize("out", ["", ".", "/"])
def test_a_file_has_a_name(out):
    with pytest.raises(OptionError, match="a folder; give the name of a file in it"):
        export_run(finished(), out)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--capacity", "1,1/4"), "export them as torch, onnx or executorch, or each run and width by itself"),
        (("--capacity", "1,1/4", "--format", "executorch", "--training"), "a program that trains holds one model"),
        (("--capacity", "1,2"), "above 0 and at most 1"),
        (("--capacity", "1,"), "a capacity is a number such as 0.25 or 1/4, not ''"),
        (("--capacity", "chosen"), "has chosen no capacities"),
        (("--format", "keras"), "unknown format 'keras'"),
        (("--capacity", "2"), "above 0 and at most 1"),
        (("--capacity", "fedprox"), "capacity"),
        (("--capacity", "chozen"), "a capacity is a number such as 0.25 or 1/4, or 'chosen', not 'chozen'"),
        (("--capacity", "1,chosen"), "a capacity is a number such as 0.25 or 1/4, not 'chosen'"),
        (("--batch", "4"), "--batch is for formats that hold a program"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(words, said, tmp_path, capsys):
    code, _, error = command(capsys, finished(), "--out", tmp_path / "a.safetensors", *words)
    assert code == 2
    assert said in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_file_of_another_kind_is_not_loaded(tmp_path):
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(StateError, match="was not written by `fedwidth export`"):
        fedwidth.load(tmp_path / "other.safetensors")
    with pytest.raises(StateError, match="there is no file"):
        fedwidth.load(tmp_path / "none.safetensors")


def test_a_file_may_have_any_name(tmp_path):
    written = export_run(finished(), tmp_path / "p.st", capacity="1/4")[0]
    assert isinstance(fedwidth.load(written), torch.nn.Module)
    with pytest.raises(StateError, match="is no file of safetensors, or damaged"):
        fedwidth.load(finished() / "config.toml")


def test_folders_that_are_not_there_are_made_as_for_runs(tmp_path, capsys):
    out = tmp_path / "out" / "models" / "a.safetensors"
    with pytest.raises(OptionError, match="has no model of capacity"):
        export_run(finished("method.name=fedavg"), out, capacity="1/4")
    assert not list(tmp_path.iterdir()), "none is made for what is refused"
    assert command(capsys, finished(), "--out", out)[0] == 0
    assert isinstance(fedwidth.load(out), torch.nn.Module)
    code, _, said = command(capsys, finished(), "--out", out / "deeper" / "a.safetensors")
    assert (code, said.count("\n")) == (2, 1)
    assert f"but {out} is no folder" in said


def test_a_torch_program_says_what_opens_it(tmp_path):
    written = export_run(finished(), tmp_path / "a.pt2", form="torch")[0]
    with pytest.raises(
        StateError, match=r"no file of safetensors.*; torch.export.load\('.*a.pt2'\).module\(\) opens it"
    ):
        fedwidth.load(written)


@pytest.mark.parametrize("form", ["safetensors", "torch"])
@pytest.mark.parametrize(
    "name", [*FILES, ".lock", "about.json", "history/round-1.safetensors", "clients/0.safetensors"]
)
def test_files_of_a_run_are_not_written_over(name, form, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    shutil.copytree(finished(), folder)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    (folder / name).parent.mkdir(exist_ok=True)
    monkeypatch.chdir((folder / name).parent)
    for out in (folder / name, Path(name).name):  # as seen from there it has no folder
        with pytest.raises(OptionError, match=f"{name} is a file of the run in that folder, which is never replaced"):
            export_run(folder, out, form=form, overwrite=True)
    assert all(path.read_bytes() == content for path, content in before.items())
    shutil.copy(folder / "config.toml", tmp_path)  # as it stands beside a program of one's own
    export_run(folder, tmp_path / "model.safetensors", overwrite=True)


def test_what_is_written_beside_a_model_is_no_file_of_a_run_either():
    with pytest.raises(OptionError, match=r"summary.json is a file of the run"):
        export_run(finished(), finished() / "summary", overwrite=True)


def test_what_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("an operator there is no word for")

    monkeypatch.setattr(torch.export, "export", fails)
    with pytest.raises(PlanError, match="an operator there is no word for"):
        export(take(finished(), "1/4"), "torch", tmp_path / "a.pt2")
    assert not list(tmp_path.iterdir())


def test_a_format_whose_package_is_missing_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.setitem(sys.modules, "executorch.exir", None)
    for form, remedy in (("onnx", r"fedwidth\[onnx\]"), ("executorch", "pip install executorch")):
        with pytest.raises(OptionError, match=remedy):
            export(take(finished(), "1/4"), form, tmp_path / "a.bin")
