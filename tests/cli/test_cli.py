"""The command line: what it prints and writes, and that every bad input is one line, exit 2 and nothing written."""

import gzip
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

import fedwidth
from fedwidth.cli.entry import run_command
from fedwidth.data.sets.mnist import FILES
from fedwidth.errors import OptionError
from fedwidth.experiment import Experiment
from fedwidth.run.tracking import tracker as tracking
from small_runs import contents, small, write_recipe

CONTRACT = {"method", "rounds", "global_accuracy", "local_accuracy", "seconds", "seed", "version"}


@pytest.fixture(autouse=True)
def own_place(tmp_path, monkeypatch):
    """Every test in a folder of its own, which is the current one; nobody's data folder is looked into."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDWIDTH_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return tmp_path


@pytest.fixture
def recipe(tmp_path):
    return write_recipe(tmp_path)


def sets(*changes):
    return [part for change in changes for part in ("--set", change)]


def one_line(capsys):
    """The message, which must be one line on standard error and all there is."""
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    assert "Traceback" not in err
    return err


class TestBadSettings:
    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            (["rounds=0"], ["rounds", "at least 1"]),
            (["rounds=many"], ["rounds", "whole number"]),
            (["rounds"], ["key=value"]),
            (["=3"], ["key=value"]),
            (["training.lrr=1"], ["'training.lrr'", "did you mean 'training.lr'"]),
            (["training.lr=fast"], ["training.lr", "a number"]),
            (["training.optimiser=sdg"], ["training.optimiser", "sgd, adam, adamw"]),
            (["method.name=fedrolx"], ["'fedrolx'", "did you mean 'fedrolex'"]),
            (["method.options.stepp=1"], ["'stepp'", "did you mean 'step'"]),
            (["method.options.step=-2"], ["step", "whole number"]),
            (["model.name=resnet"], ["unknown model 'resnet'", "package.module:factory"]),
            (["model.options.hiden=[3]"], ["'hiden'", "did you mean 'hidden'"]),
            (["model.options.hidden=0"], ["hidden"]),
            (["data.name=digit"], ["'digit'", "did you mean 'digits'"]),
            (["data.partition=label"], ["'label'", "did you mean 'labels'"]),
            (["data.partition_options.per_client=11"], ["11", "10"]),
            (["data.partition_options.per_client=0"], ["per_client"]),
            (["data.partition_options.per_client=1"], ["6 clients", "10 classes"]),
            (["data.partition=iid", "data.clients=1443"], ["1443", "1442"]),
            (["data.partition=dirichlet", "data.partition_options.alpha=1e-9", "data.clients=60"], ["without data"]),
            (["data.partition=natural"], ["whose sample is whose"]),
            (["devices.capacities=z9"], ["devices.capacities", "household"]),
            (["devices.capacities=a0"], ["devices.capacities", "weight 0"]),
            (["devices.capacities=2:1"], ["devices.capacities", "at most 1"]),
            (["devices.per_round=7"], ["devices.per_round", "6", "7"]),
            (["evaluation.capacities=[2]"], ["evaluation.capacities"]),
            (["device=tpu"], ["device", "cuda"]),
            (["model.name=preresnet18", "model.options={}", "data.clients=0"], ["data.clients"]),
        ],
    )
    def test_is_one_line(self, changes, words, recipe, capsys, tmp_path):
        assert run_command(["run", recipe, "--out", "out", *sets(*changes)]) == 2
        err = one_line(capsys)
        assert all(word in err for word in words), err
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["run", "quickstrat"], ["unknown recipe 'quickstrat'", "did you mean 'quickstart'"]),
            (["run", "nowhere.toml"], ["nowhere.toml", "No such file"]),
            (["run", "--only", "heterofll"], ["'heterofll'", "did you mean 'heterofl'"]),
            (["run", "--seeds", "1,x"], ["--seeds", "1,2,3", "1,x"]),
            (["run", "--seeds", "1,1"], ["--seeds", "different"]),
            (["run", "--seeds", "-1"], ["--seeds"]),
            (["run", "--track", "mlflw"], ["'mlflw'", "did you mean 'mlflow'"]),
            (["run", "--resume", "--overwrite"], ["one of them"]),
            (["run", "--flux"], ["--flux"]),
            (["sweep"], ["--over"]),
            (["sweep", "--over", "method.name"], ["--over", "key=value"]),
            (["sweep", "--over", "method.name=fedrolex,fedrolx"], ["'fedrolx'"]),
            (["sweep", "--over", "rounds=1,1"], ["the same"]),
            (["run", ""], ["there is an empty text after 'run'", "give a value or leave it out"]),
            (["run", "--seeds", ""], ["there is an empty text after '--seeds'"]),
            (["run", "--seeds="], ["'--seeds=' has no value"]),
            (["sweep", "--over", ""], ["there is an empty text after '--over'"]),
            (["report", ""], ["there is an empty text after 'report'"]),
            (["export", "run", "--out", ""], ["there is an empty text after '--out'"]),
            (["report", "a" * 300], ["the name of a file or folder is too long: aaa"]),
            (["export", "run", "--out", "a" * 300], ["the name of a file or folder is too long: aaa"]),
            (["deploy", "audit", ""], ["there is an empty text after 'audit'"]),
            (["flux"], ["flux"]),
            (["report", "nowhere"], ["nowhere", "does not exist"]),
            (["plan", "mpl"], ["'mpl'", "did you mean 'mlp'"]),
            (["cost", "mlp", "--capacities", "1,x"], ["capacity", "'x'"]),
            (["cost", "mlp", "--capacities", "2"], ["capacity", "2"]),
            (["cost", "mlp", "--shape", "3y3"], ["--shape", "3x32x32"]),
            (["coverage", "mlp", "--method", "fedrolx"], ["'fedrolx'"]),
            (["coverage", "mlp", "--rounds", "many"], ["--rounds", "integer"]),
            (["coverage", "mlp", "--rounds", "0"], ["rounds"]),
            (["coverage", "mlp", "--rounds", "99999999999999999999"], ["rounds must be at most 10,000,000"]),
            (["partition", "digits", "--kind", "labels", "--set", "per_client=11"], ["11", "10"]),
            (["partition", "digits", "--clients", "0"], ["clients"]),
            (["partition", "digits", "--validation", "1"], ["validation must be a share from 0 to below 1"]),
            (["partition", "digits", "--validation", "0.0001"], ["holds none out"]),
            (["partition", "digits", "--kind", "iid", "--set", "alpha=1"], ["'alpha'"]),
        ],
    )
    def test_bad_arguments(self, arguments, words, capsys, tmp_path):
        place = ["--out", "out"] if arguments[0] in ("run", "sweep") else []
        assert run_command([*arguments, *place]) == 2
        err = one_line(capsys)
        assert all(word in err for word in words), err
        assert not list(tmp_path.iterdir())

    def test_a_recipe_file_that_is_no_toml(self, tmp_path, capsys):
        (tmp_path / "bad.toml").write_text("rounds = = 3")
        assert run_command(["run", "bad.toml", "--out", "out"]) == 2
        assert "not valid TOML" in one_line(capsys)

    def test_a_missing_tracker(self, recipe, monkeypatch, capsys, tmp_path):
        monkeypatch.setitem(sys.modules, "mlflow", None)
        assert run_command(["run", recipe, "--out", "out", "--track", "mlflow"]) == 2
        assert "pip install 'fedwidth[mlflow]'" in one_line(capsys)
        assert not (tmp_path / "out").exists()

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
    @pytest.mark.parametrize("device", ["cuda", "cuda:1"])
    def test_cuda_asked_for_and_absent(self, recipe, device, capsys, tmp_path):
        assert run_command(["run", recipe, "--out", "out", "--set", f"device={device}"]) == 2
        err = one_line(capsys)
        assert "no GPU" in err
        assert "cpu" in err
        assert not (tmp_path / "out").exists()

    def test_the_ray_engine_without_ray_clears_nothing(self, recipe, capsys, tmp_path, monkeypatch):
        assert run_command(["run", recipe, "--out", "out", "--seeds", "1,2"]) == 0
        capsys.readouterr()
        before = sorted(path.name for path in (tmp_path / "out").rglob("*"))
        monkeypatch.setitem(sys.modules, "ray", None)  # as where it is not installed
        assert run_command(["run", recipe, "--out", "out", "--seeds", "1,2", "--engine", "ray", "--overwrite"]) == 2
        assert "needs the package ray" in one_line(capsys)
        assert sorted(path.name for path in (tmp_path / "out").rglob("*")) == before

    def test_the_cuda_engine_without_its_device(self, recipe, capsys, tmp_path):
        assert run_command(["run", recipe, "--out", "out", "--engine", "cuda"]) == 2
        assert "engine is cuda, but device is cpu: set device=cuda" in one_line(capsys)
        assert run_command(["sweep", recipe, "--out", "out", "--over", "engine=serial,cuda"]) == 2
        assert "engine is cuda" in one_line(capsys)
        assert not (tmp_path / "out").exists()

    def test_worker_processes_with_a_gpu(self, recipe, capsys, tmp_path):
        assert run_command(["run", recipe, "--out", "out", "--engine", "processes", "--set", "device=cuda:0"]) == 2
        said = (
            "engine is processes, whose workers train on the CPU, but device is cuda:0: set device=cpu, or engine=auto"
        )
        assert said in one_line(capsys)
        assert not (tmp_path / "out").exists()
        with pytest.raises(OptionError, match="whose workers train on the CPU"):
            Experiment(replace(small("engine=processes"), device="cuda"))

    def test_a_tracker_that_refuses(self, recipe, monkeypatch, capsys):
        def refuse(*_):
            raise RuntimeError("no server there")

        monkeypatch.setitem(tracking.BACKENDS, "tensorboard", refuse)
        monkeypatch.setitem(sys.modules, "tensorboard", ModuleType("tensorboard"))
        for more in ([], ["--seeds", "1,2", "--packed"]):
            assert run_command(["run", recipe, "--track", "tensorboard", *sets("engine=auto"), *more]) == 2
            assert "--track tensorboard cannot be used: no server there" in one_line(capsys)

    def test_a_gpu_this_machine_lacks(self, recipe, monkeypatch, capsys):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        assert run_command(["run", recipe, "--out", "out", "--set", "device=cuda:2"]) == 2
        assert "only 2 GPUs, from cuda:0" in one_line(capsys)

    def test_all_runs_are_checked_before_the_first_writes(self, tmp_path, capsys):
        bad = (
            '\n[[compare]]\nlabel = "b"\nname = "b"\n[[compare]]\nlabel = "c"\ndata.partition_options.per_client = 11\n'
        )
        recipe = write_recipe(tmp_path, bad)
        assert run_command(["run", recipe, "--out", "out"]) == 2
        said = one_line(capsys)
        assert "run 'c': 11 labels per client asked for (per_client; in a recipe data.partition_options.per_c" in said
        assert not (tmp_path / "out").exists()

    def test_what_only_a_method_refuses_is_seen_before_the_first_run_writes(self, recipe, tmp_path, capsys):
        measured = ["--set", "evaluation.capacities=[0.125]", "--over", "method.name=fedrolex,flanc", "--seeds", "1,2"]
        assert run_command(["sweep", recipe, "--out", "out", *measured]) == 2
        assert "flanc keeps a model for each enrolled width, and has none of 0.125" in one_line(capsys)
        assert not (tmp_path / "out").exists()

    def test_all_of_a_sweep_is_checked_before_the_first_writes(self, recipe, tmp_path, capsys):
        assert run_command(["sweep", recipe, "--out", "out", "--over", "model.options.hidden=[8],0"]) == 2
        assert "hidden" in one_line(capsys)
        assert not (tmp_path / "out").exists()


class TestBadData:
    mnist = ("data.name=mnist", "data.partition=iid", "data.clients=6")

    def test_a_missing_file(self, recipe, capsys, tmp_path):
        changes = sets(*self.mnist, 'data.options={base_url="http://127.0.0.1:9/"}')
        assert run_command(["run", recipe, "--out", "out", "--data", "here", *changes]) == 2
        err = one_line(capsys)
        assert all(word in err for word in ("mnist/train-images-idx3-ubyte.gz", "here", "--data", "FEDWIDTH_DATA"))
        assert not (tmp_path / "out").exists()

    def test_a_truncated_file(self, recipe, capsys, tmp_path):
        (tmp_path / "here" / "mnist").mkdir(parents=True)
        for remote in FILES:
            (tmp_path / "here" / "mnist" / remote.name).write_bytes(
                gzip.compress(b"\x00\x00\x08\x03" + b"\x00" * 90)[:40]
            )
        assert run_command(["run", recipe, "--out", "out", "--data", "here", *sets(*self.mnist)]) == 2
        err = one_line(capsys)
        assert "truncated or damaged" in err
        assert "train-images" in err
        assert not (tmp_path / "out").exists()

    def test_a_folder_with_odd_characters_is_found(self, recipe, capsys, tmp_path):
        odd = 'a "quoted" folder\\'
        changes = sets(*self.mnist, 'data.options={base_url="http://127.0.0.1:9/"}')
        assert run_command(["run", recipe, "--out", "out", "--data", odd, *changes]) == 2
        assert odd in one_line(capsys)


FACTORIES = """
import torch
from torch import nn

def net(data_shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, classes))

def wrong_classes():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3))

def no_module():
    return 3

def explodes():
    raise RuntimeError("boom\\nand more")

def nothing_to_slice():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

def no_parameters():
    return nn.Flatten()

class Fails(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        raise ValueError("cannot\\ndo this")

value = 3
"""


class TestOwnModels:
    @pytest.fixture
    def module(self, tmp_path):
        """A file of factories in the current folder; the name differs so that no test sees another's."""
        name = f"factories_{abs(hash(str(tmp_path)))}"
        (tmp_path / f"{name}.py").write_text(FACTORIES)
        return name

    def test_a_factory_in_the_current_folder(self, module, recipe, tmp_path):
        changes = sets(f"model.name={module}:net", "model.options={}")
        assert run_command(["run", recipe, "--out", "out", *changes]) == 0
        assert json.loads((tmp_path / "out" / "summary.json").read_text())["rounds"] == 3

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("wrong_classes", ["[2, 3]", "10 classes"]),
            ("no_module", ["torch.nn.Module", "int"]),
            ("explodes", ["could not be built", "boom"]),
            ("nothing_to_slice", ["nothing to slice"]),
            ("no_parameters", ["nothing to slice", "no parameters"]),
            ("Fails", ["cannot do this"]),
            ("value", ["'value'", "not a function or class"]),
            ("other", ["has no 'other'"]),
        ],
    )
    def test_one_that_cannot_be_used(self, name, words, module, recipe, capsys, tmp_path):
        changes = sets(f"model.name={module}:{name}", "model.options={}")
        assert run_command(["run", recipe, "--out", "out", *changes]) == 2
        err = one_line(capsys)
        assert all(word in err for word in words), err
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize("name", ["no_such_module:net", "broken:net", ":net", "a b:net"])
    def test_one_that_cannot_be_imported(self, name, recipe, capsys, tmp_path):
        (tmp_path / "broken.py").write_text("import nonsense_that_is_not_there")
        assert run_command(["run", recipe, "--out", "out", "--set", f"model.name={name}"]) == 2
        err = one_line(capsys)
        assert "cannot import" in err
        assert not (tmp_path / "out").exists()
        sys.modules.pop("broken", None)

    def test_plan_of_a_factory(self, module, capsys):
        assert run_command(["plan", f"{module}:wrong_classes", "--shape", "1x8x8"]) == 0
        assert "1.weight" in capsys.readouterr().out


class TestOutputFolder:
    def test_holds_another_run(self, recipe, capsys, tmp_path):
        assert run_command(["run", recipe, "--out", "out"]) == 0
        before = contents(tmp_path / "out")
        capsys.readouterr()
        assert run_command(["run", recipe, "--out", "out", "--set", "seed=2"]) == 2
        assert "holds a run already; give --resume, --overwrite or another --out" in one_line(capsys)
        assert run_command(["run", recipe, "--out", "out", "--set", "seed=2", "--resume"]) == 2
        said = "seed is 1 there and 2 now; repeat the command you began with, and add --resume"
        assert said in one_line(capsys)
        assert contents(tmp_path / "out") == before

    @pytest.mark.parametrize("place", ["file", "file/deeper"])
    def test_is_a_file(self, recipe, place, capsys, tmp_path):
        (tmp_path / "file").write_text("mine")
        assert run_command(["run", recipe, "--out", place]) == 2
        assert "file is a file; give a folder as --out" in one_line(capsys)
        assert (tmp_path / "file").read_text() == "mine"

    @pytest.mark.parametrize("more", [[], ["--seeds", "1,2"]])
    def test_holds_files_of_something_else(self, recipe, more, capsys, tmp_path):
        for name in ("out", "out/seed-9"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "summary.json").write_text('{"mine": 1}')
        assert run_command(["run", recipe, "--out", "out", "--overwrite", *more]) == 2
        assert "out has summary.json and neither the lock nor the weights of one: give another --out" in one_line(
            capsys
        )
        assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["seed-9", "summary.json"]
        (tmp_path / "out" / "summary.json").unlink()
        for _ in range(2):
            assert run_command(["run", recipe, "--out", "out", "--overwrite", *more]) == 0
            assert (tmp_path / "out" / "seed-9" / "summary.json").read_text() == '{"mine": 1}'

    def test_has_a_name_that_is_too_long(self, recipe, capsys, tmp_path):
        assert run_command(["run", recipe, "--out", "a" * 300]) == 2
        assert "as output folder: File name too long" in one_line(capsys)

    def test_cannot_be_made(self, recipe, capsys):
        assert run_command(["run", recipe, "--out", "/proc/nothing/here"]) == 2
        assert "cannot use /proc/nothing/here as output folder" in one_line(capsys)

    @pytest.mark.parametrize("more", [["--resume"], ["--seeds", "1,2"], ["--seeds", "1,2", "--packed", "--resume"]])
    def test_is_one_line_also_where_the_engine_is_chosen(self, recipe, more, capsys):
        auto = sets("engine=auto")
        assert run_command(["run", recipe, "--out", "/proc/nothing/here", *auto, *more]) == 2
        assert "cannot use /proc/nothing/here" in one_line(capsys)

    def test_holds_a_checkpoint_of_another_model(self, recipe, capsys, tmp_path):
        assert run_command(["run", recipe, "--out", "out", *sets("engine=auto", "rounds=2")]) == 0
        config = tmp_path / "out" / "config.toml"
        config.write_text(
            config.read_text().replace("hidden = [8]", "hidden = [9]").replace("rounds = 2", "rounds = 3")
        )
        capsys.readouterr()
        changes = sets("engine=auto", "model.options={hidden=[9]}")
        assert run_command(["run", recipe, "--out", "out", "--resume", *changes]) == 2
        assert "belongs to a run with other settings or another model" in one_line(capsys)

    def test_several_runs_are_not_mixed_with_one(self, recipe, capsys, tmp_path):
        assert run_command(["run", recipe, "--out", "one"]) == 0
        capsys.readouterr()
        for more in ([], ["--resume"]):
            assert run_command(["run", recipe, "--out", "one", "--seeds", "1,2", *more]) == 2
            assert "holds another run already" in one_line(capsys)
        assert run_command(["run", recipe, "--out", "many", "--seeds", "1,2"]) == 0
        capsys.readouterr()
        for more in ([], ["--resume"]):
            assert run_command(["run", recipe, "--out", "many", *more]) == 2
            one_line(capsys)
        assert run_command(["run", recipe, "--out", "one", "--seeds", "1,2", "--overwrite"]) == 0
        assert not (tmp_path / "one" / "config.toml").exists()
        assert not (tmp_path / "one" / "checkpoint.safetensors").exists()

    @pytest.mark.parametrize("words", [["run", "--seeds", "1"], ["sweep", "--over", "training.lr=0.1"]])
    def test_one_run_in_a_folder_of_runs_is_replaced_like_several(self, recipe, words, tmp_path):
        for more in ([], ["--overwrite"]):
            assert run_command([words[0], recipe, *words[1:], "--out", "few", *more]) == 0
        assert not (tmp_path / "few" / "config.toml").exists()

    def test_a_run_that_explodes_leaves_its_last_good_checkpoint(self, recipe, capsys, tmp_path):
        changes = ["training.lr=0.1", "training.schedule=multistep", "training.milestones=[2]", "training.decay=1e30"]
        assert run_command(["run", recipe, "--out", "out", *sets(*changes, "training.clip=0")]) == 2
        *_, err = capsys.readouterr().err.splitlines()
        assert re.search(r"^error: client \d+ .*'.*(weight|bias)'.* not finite", err)
        names = {path.name for path in (tmp_path / "out").iterdir()}
        assert "checkpoint.safetensors" in names
        assert "summary.json" not in names
        assert len((tmp_path / "out" / "metrics.jsonl").read_text().splitlines()) == 2


class TestMethodsOfOnesOwn:
    """A choice that fails in the third round: before it all is well."""

    TEXT = """
import torch
from fedwidth.methods import Method, per_group

def units(size, kept, at):
    if at.round == 2:
        raise {error}
    return torch.arange(kept)

METHOD = Method("{name}", "Mine", "-", "-", choose=per_group(units))
"""

    def write(self, folder, name, error):
        (folder / f"{name}.py").write_text(self.TEXT.format(name=name, error=error))
        return f"{name}:METHOD"

    def test_a_choice_that_fails_says_where(self, recipe, capsys, tmp_path):
        name = self.write(tmp_path, "failing", "ValueError('boom')")
        for command in (
            ["run", recipe, "--out", "out", *sets(f"method.name={name}")],
            ["coverage", "mlp", "--method", name, "--capacity", "1/2", "--rounds", "3"],
        ):
            assert run_command(command) == 1
            *_, err = capsys.readouterr().err.splitlines()
            assert re.search(r"^error: round 2, .* stage choose: ValueError: boom \(failing\.py, line 7\)$", err)

    @pytest.mark.parametrize("code", ["0", "3", "'gone'"])
    def test_code_that_ends_the_program_is_named(self, code, recipe, capsys, tmp_path):
        name = self.write(tmp_path, f"leaving_{code.strip(chr(39))}", f"SystemExit({code})")
        assert run_command(["run", recipe, "--out", "out", *sets(f"method.name={name}")]) == 1
        *_, err = capsys.readouterr().err.splitlines()
        assert re.search(r"^error: the program was ended from within: SystemExit: .* \(leaving_\w+\.py, line 7\)$", err)


class TestRun:
    def test_a_plain_run(self, recipe, capsys, tmp_path):
        assert run_command(["run", recipe, "--out", "out"]) == 0
        out, err = capsys.readouterr()
        assert "fedrolex" in out
        assert "report: out/report.html" in out
        assert "fedrolex: 3 rounds, accuracy" in err
        assert err.startswith("what a device really has\n  capacity  parameters  multiply-adds  memory to train")
        summary = json.loads((tmp_path / "out" / "summary.json").read_text())
        assert summary.keys() >= CONTRACT
        assert "runs" not in summary
        assert (tmp_path / "out" / "report.html").stat().st_size > 1000
        Experiment(small()).run(tmp_path / "python")
        assert contents(tmp_path / "out") == contents(tmp_path / "python")

    @pytest.mark.parametrize(
        ("changes", "width"),
        [
            (["devices.capacities=1/4"], "0.25"),
            (["devices.capacities=b1-c1", "model.width=1/2"], "0.25"),
            (["devices.capacities=c1-d1", "model.width=1/2", "devices.relative_to=model"], "0.25"),
            (["devices.capacities=b1-c1", "model.width=1/2", "devices.relative_to=model"], None),
            (["devices.capacities=a1-c1"], None),
            (["devices.capacities=1/4", "method.name=fedavg"], None),
            (["devices.capacities=1/4", "method.name=fedhm"], None),
        ],
    )
    def test_a_server_model_that_no_device_holds_is_said_once(self, changes, width, recipe, capsys):
        assert run_command(["run", recipe, "--out", "out", "--seeds", "1,2", *sets("rounds=1", *changes)]) == 0
        said = [line for line in capsys.readouterr().err.splitlines() if "no device holds" in line]
        assert len(said) == (width is not None)
        assert all(f"as wide as the widest device (width {width}) is better; --yardsticks" in line for line in said)

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            (
                ["secure.enabled=true"],
                "secure.min_clients is 8, and of the 9 clients of a round about 3 hold as much as",
            ),
            (["secure.min_clients=3"], "what [secure] says has no effect: secure.enabled is false"),
            (["privacy.clip=0.1"], "what [privacy] says has no effect: privacy.noise is 0"),
            (["adapter.rank=2"], "the model is frozen with new weights, of which adapters learn little"),
            (["secure.enabled=true", "secure.min_clients=3"], None),
        ],
    )
    def test_settings_that_do_little_are_said(self, changes, said, recipe, capsys):
        many = ("rounds=1", "data.clients=12", "devices.per_round=9", "devices.capacities=a1-b1-c1")
        assert run_command(["run", recipe, "--out", "out", *sets(*many, *changes)]) == 0
        told = [
            line for line in capsys.readouterr().err.splitlines() if line.startswith(("secure.", "what [", "the mod"))
        ]
        assert [line for line in told if said is None or not line.startswith(said)] == []
        assert len(told) == (said is not None)

    def test_progress_on_a_terminal(self, recipe, monkeypatch, capsys):
        monkeypatch.setenv("FORCE_COLOR", "1")  # rich then writes as to a terminal
        monkeypatch.setenv("COLUMNS", "120")
        assert run_command(["run", recipe, "--out", "out", "--set", "name=[my] run"]) == 0
        screen = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err)
        assert re.search(r"\[my\] run .* 3/3 accuracy \d\d\.\d\d % 0:00:00", screen)

    def test_default_folder(self, recipe, tmp_path):
        assert run_command(["run", recipe]) == 0
        assert (tmp_path / "runs" / "small" / "summary.json").exists()

    def test_compared_runs(self, tmp_path, capsys):
        more = (
            '\n[[compare]]\nlabel = "other one"\nmethod.name = "heterofl"\n[[compare]]\nlabel = "other-one"\nseed = 3\n'
        )
        recipe = write_recipe(tmp_path, more)
        assert run_command(["run", recipe, "--out", "out"]) == 0
        out = capsys.readouterr().out
        assert "other one" in out
        summary = json.loads((tmp_path / "out" / "summary.json").read_text())
        assert summary.keys() >= CONTRACT
        assert summary["method"] == "fedrolex"
        assert [run["folder"] for run in summary["runs"]] == [".", "compare/other-one", "compare/other-one-2"]
        assert [run["method"] for run in summary["runs"]] == ["fedrolex", "heterofl", "fedrolex"]
        for run in summary["runs"]:
            alone = json.loads((tmp_path / "out" / run["folder"] / "summary.json").read_text())
            assert run["global_accuracy"] == alone["global_accuracy"]

    def test_runs_of_one_name_are_still_different_runs(self, tmp_path, capsys):
        recipe = write_recipe(tmp_path, '\n[[compare]]\nlabel = "b"\nmethod.name = "heterofl"\n')
        assert run_command(["run", recipe, "--out", "out", "--set", "name=all alike"]) == 0
        assert "±" not in capsys.readouterr().out

    def test_only_one_of_them(self, tmp_path):
        recipe = write_recipe(tmp_path, '\n[[compare]]\nlabel = "b"\nmethod.name = "heterofl"\n')
        assert run_command(["run", recipe, "--out", "out", "--only", "b"]) == 0
        assert json.loads((tmp_path / "out" / "summary.json").read_text())["method"] == "heterofl"
        assert not (tmp_path / "out" / "compare").exists()

    def test_only_some_of_them(self, tmp_path):
        others = "".join(f'\n[[compare]]\nlabel = "{label}"\nmethod.name = "heterofl"\n' for label in "bcd")
        assert run_command(["run", write_recipe(tmp_path, others), "--out", "out", "--only", "c", "--only", "b"]) == 0
        assert [path.name for path in (tmp_path / "out" / "compare").iterdir()] == ["c"]

    def test_a_change_need_not_make_sense_for_runs_left_out(self, tmp_path, capsys):
        recipe = write_recipe(tmp_path, '\n[[compare]]\nlabel = "b"\nmethod.name = "heterofl"\n')
        change = ["--out", "out", *sets("method.options.step=2")]
        assert run_command(["run", recipe, *change]) == 2
        assert "run 'b': unknown option of method 'heterofl' 'step'" in one_line(capsys)
        assert run_command(["run", recipe, *change, "--only", "b"]) == 2
        assert "'step'" in one_line(capsys)
        assert run_command(["run", recipe, *change, "--only", "fedrolex"]) == 0

    def test_seeds(self, recipe, capsys, tmp_path):
        assert run_command(["run", recipe, "--out", "out", "--seeds", "1,2,3"]) == 0
        out, err = capsys.readouterr()
        assert all(err.count(f", seed {seed}: 3 rounds, accuracy") == 1 for seed in (1, 2, 3))
        assert re.search(r"\d\d\.\d\d ± \d", out)
        assert "Seeds: 1, 2, 3." in out
        alone = [json.loads((tmp_path / "out" / f"seed-{n}" / "summary.json").read_text()) for n in (1, 2, 3)]
        assert [summary["seed"] for summary in alone] == [1, 2, 3]
        summary = json.loads((tmp_path / "out" / "summary.json").read_text())
        assert summary.keys() >= CONTRACT
        accuracies = [one["global_accuracy"] for one in alone]
        assert [run["global_accuracy"] for run in summary["runs"]] == accuracies
        assert summary["global_accuracy"] == pytest.approx(sum(accuracies) / 3)
        (row,) = summary["table"]
        mean = sum(accuracies) / 3
        deviation = (sum((a - mean) ** 2 for a in accuracies) / 2) ** 0.5
        assert row["global_accuracy_std"] == pytest.approx(deviation)
        assert row["seeds"] == summary["seed"] == [1, 2, 3]

    def test_seeds_go_on_after_a_kill_between_them(self, recipe, tmp_path, capsys):
        assert run_command(["run", recipe, "--out", "whole", "--seeds", "1,2"]) == 0
        assert run_command(["run", recipe, "--out", "cut", "--seeds", "1"]) == 0
        assert run_command(["run", recipe, "--out", "cut", "--seeds", "1,2", "--resume"]) == 0
        said = capsys.readouterr().err
        assert "1 run not begun in cut yet will be trained, too: fedrolex\n" in said
        assert "nothing to resume" not in said
        for seed in (1, 2):
            assert contents(tmp_path / "cut" / f"seed-{seed}") == contents(tmp_path / "whole" / f"seed-{seed}")
        summaries = [json.loads((tmp_path / name / "summary.json").read_text()) for name in ("whole", "cut")]
        assert summaries[0]["runs"] == summaries[1]["runs"]

    def test_resume_before_there_is_anything(self, recipe, tmp_path, capsys):
        assert run_command(["run", recipe, "--out", "out", "--resume"]) == 0
        assert "nothing to resume in out yet: started from the beginning" in capsys.readouterr().err
        assert (tmp_path / "out" / "summary.json").exists()

    def test_resume_a_finished_run(self, recipe, tmp_path, capsys):
        assert run_command(["run", recipe, "--out", "out"]) == 0
        before = contents(tmp_path / "out")
        table = capsys.readouterr().out
        assert run_command(["run", recipe, "--out", "out", "--resume"]) == 0
        assert contents(tmp_path / "out") == before
        assert capsys.readouterr().out == table

    def test_sweep(self, recipe, capsys, tmp_path):
        grid = ["--over", "method.name=fedrolex,heterofl", "--over", "training.lr=0.05,0.1"]
        assert run_command(["sweep", recipe, "--out", "out", *grid]) == 0
        out = capsys.readouterr().out
        summary = json.loads((tmp_path / "out" / "summary.json").read_text())
        labels = [f"method.name={name} training.lr={lr}" for name in ("fedrolex", "heterofl") for lr in ("0.05", "0.1")]
        assert [run["label"] for run in summary["runs"]] == labels
        assert [row["label"] for row in summary["table"]] == labels
        assert all(f"{method}, lr {lr}" in out for method in ("FedRolex", "HeteroFL") for lr in ("0.05", "0.1"))
        for run in summary["runs"]:
            alone = json.loads((tmp_path / "out" / run["folder"] / "summary.json").read_text())
            assert alone["method"] == run["method"]
            assert alone["global_accuracy"] == run["global_accuracy"]
        assert (tmp_path / "out" / "report.html").exists()

    def test_sweep_with_seeds(self, recipe, tmp_path):
        command = ["sweep", recipe, "--out", "out", "--over", "training.lr=0.05,0.1", "--seeds", "4,5"]
        assert run_command(command) == 0
        summary = json.loads((tmp_path / "out" / "summary.json").read_text())
        assert [(row["label"], row["seeds"]) for row in summary["table"]] == [
            ("training.lr=0.05", [4, 5]),
            ("training.lr=0.1", [4, 5]),
        ]

    def test_runs_are_compared_in_words_and_in_the_summary(self, tmp_path, capsys):
        recipe = write_recipe(tmp_path, '\n[[compare]]\nlabel = "b"\nmethod.name = "heterofl"\n')
        assert run_command(["run", recipe, "--out", "out", "--seeds", "1,2,3"]) == 0
        out = capsys.readouterr().out
        (found,) = json.loads((tmp_path / "out" / "summary.json").read_text())["comparisons"]
        assert (found["first"], found["second"]) == ("fedrolex", "b")
        runs = json.loads((tmp_path / "out" / "summary.json").read_text())["runs"]
        by = {(run["label"], run["seed"]): 100 * run["global_accuracy"] for run in runs}
        assert found["values"] == pytest.approx([by["fedrolex", s] - by["b", s] for s in (1, 2, 3)])
        low, high = found["interval"]
        assert (low + high) / 2 == pytest.approx(found["mean"]) == pytest.approx(sum(found["values"]) / 3)
        assert f"{abs(found['mean']):.1f}" in out
        assert "95 %:" in out
        assert "three seeds" in out

    def test_yardsticks_are_run_beside_and_give_a_gain(self, recipe, capsys, tmp_path):
        assert run_command(["run", recipe, "--out", "out", "--yardsticks"]) == 0
        out = capsys.readouterr().out
        assert re.search(r"│ +gain\n|┃ +gain", out)
        assert "yardstick: exclude" in out
        assert "1 of a1-b1-c1" in out
        assert "seed by seed; one seed: no interval." in out
        assert "The yardsticks that were added took" in out
        assert "tuned ones may reach more: docs/benchmark/server-width.md." in out
        assert "gain over" not in out, "with one seed nothing is decided"
        summary = json.loads((tmp_path / "out" / "summary.json").read_text())
        accuracies = {run["label"]: 100 * run["global_accuracy"] for run in summary["runs"]}
        assert list(accuracies)[1:] == [
            f"yardstick: {kind}" for kind in ("exclude", "smallest for all", "full for all")
        ]
        best = max(("exclude", "smallest for all"), key=lambda kind: accuracies[f"yardstick: {kind}"])
        gain = summary["table"][0]["gain"]
        assert gain["over"] == best
        assert gain["mean"] == pytest.approx(accuracies["fedrolex"] - accuracies[f"yardstick: {best}"])
        assert gain["interval"] is None
        alone = contents(tmp_path / "out")
        assert run_command(["run", recipe, "--out", "plain"]) == 0
        assert contents(tmp_path / "plain")[1:] == alone[1:], "what runs beside it changes no bit"

    def test_where_whoever_trains_holds_the_whole_model_a_line_says_why_no_yardsticks_are_added(self, recipe, capsys):
        whole = ["--set", "devices.whole_only=true", "--set", "rounds=1"]
        assert run_command(["run", recipe, "--out", "out", "--yardsticks", *whole]) == 0
        assert capsys.readouterr().out.startswith(
            "No yardsticks are added: every device that takes part holds the whole"
        )
        assert not Path("out/compare").exists()
        assert run_command(["run", recipe, "--out", "plain", *whole]) == 0
        assert "No yardsticks" not in capsys.readouterr().out

    def test_a_recipe_asks_for_its_yardsticks_and_may_be_told_not_to(self, tmp_path):
        (tmp_path / "mine.toml").write_text("yardsticks = true\n" + Path(write_recipe(tmp_path)).read_text())
        assert run_command(["run", "mine.toml", "--out", "with"]) == 0
        assert run_command(["run", "mine.toml", "--out", "without", "--no-yardsticks"]) == 0
        assert run_command(["run", "mine.toml", "--out", "one", "--only", "fedrolex"]) == 0
        assert [(tmp_path / name / "compare").exists() for name in ("with", "without", "one")] == [True, False, False]

    def test_a_sweep_takes_the_main_run_alone(self, tmp_path, capsys):
        more = '\n[[compare]]\nlabel = "heterofl"\nmethod.name = "heterofl"\ntraining.momentum = 0.5\n'
        recipe = write_recipe(tmp_path, more)
        assert run_command(["sweep", recipe, "--out", "a", "--over", "method.name=fedrolex,heterofl"]) == 0
        assert run_command(["sweep", recipe, "--out", "b", "--over", "local.name=scaffold"]) == 0
        assert run_command(["sweep", recipe, "--out", "c", "--only", "heterofl", "--over", "training.lr=0.1"]) == 0
        summary = json.loads((tmp_path / "c" / "summary.json").read_text())
        assert summary["method"] == "heterofl"
        assert summary["best"] == {"label": "training.lr=0.1", "by": "test"}
        capsys.readouterr()
        assert run_command(["sweep", "thesis/table3-1", "--out", "d", "--over", "training.lr=0.1,0.2"]) == 2
        assert "name one with --only" in one_line(capsys)

    def test_the_title_of_a_recipe_is_told(self, tmp_path, capsys):
        (tmp_path / "mine.toml").write_text('title = "All of it"\n' + Path(write_recipe(tmp_path)).read_text())
        assert run_command(["run", "mine.toml", "--out", "out"]) == 0
        assert "All of it" in capsys.readouterr().out
        assert "<title>All of it · fedwidth</title>" in (tmp_path / "out" / "report.html").read_text()


class TestLooking:
    def test_explain(self, capsys):
        assert run_command(["run", "--explain"]) == 0
        out = capsys.readouterr().out
        assert all(key in out for key in ("training.lr = 0.1", "devices.capacities", "server.optimiser"))

    def test_recipes(self, capsys):
        assert run_command(["run", "--recipes"]) == 0
        assert "quickstart" in capsys.readouterr().out.splitlines()

    def test_version_and_help(self, capsys):
        assert run_command(["--version"]) == 0
        assert capsys.readouterr().out == f"fedwidth {fedwidth.__version__}\n"
        assert run_command([]) == 2
        assert run_command(["run", "--help"]) == 0

    def test_methods(self, capsys):
        assert run_command(["methods"]) == 0
        assert "FedRolex" in capsys.readouterr().out
        assert run_command(["methods", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert {"fedavg", "heterofl", "fjord", "feddropout", "fedrolex", "fedbrb"} <= found.keys()
        assert found["fedrolex"]["options"]["step"]["default"] == 1

    def test_plan(self, capsys):
        assert run_command(["plan", "mlp"]) == 0
        assert "hidden.1.weight" in capsys.readouterr().out

    def test_cost(self, capsys):
        assert run_command(["cost", "mlp", "--capacities", "1,1/2"]) == 0
        capsys.readouterr()
        assert run_command(["cost", "mlp", "--capacities", "1,1/2", "--json"]) == 0
        costs = json.loads(capsys.readouterr().out)["costs"]
        # 784-128-32-10 and 784-64-16-10, weights and biases
        full, half = 784 * 128 + 128 + 128 * 32 + 32 + 320 + 10, 784 * 64 + 64 + 64 * 16 + 16 + 160 + 10
        assert [c["parameters"] for c in costs] == [full, half, (full + half) / 2]
        assert [c["bytes"] for c in costs[:2]] == [4 * full, 4 * half]

    def test_coverage(self, capsys):
        arguments = ["coverage", "mlp", "--method", "fedrolex", "--capacity", "1/4", "--rounds", "128"]
        assert run_command(arguments) == 0
        assert "trained" in capsys.readouterr().out
        assert run_command([*arguments, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["method"] == "fedrolex"
        assert found["rounds"] == 128
        assert 0 < found["share"] <= 1

    def test_partition(self, capsys):
        assert run_command(["partition", "digits", "--kind", "labels", "--clients", "5", "--set", "per_client=2"]) == 0
        assert len(capsys.readouterr().out.splitlines()) > 5

    def test_partition_with_validation_samples(self, capsys):
        """144 of 1,442 training samples are held out, and 1,298 are dealt to five clients."""
        assert run_command(["partition", "digits", "--clients", "5", "--validation", "0.1"]) == 0
        out = capsys.readouterr().out
        assert "validation samples:      144" in out
        assert "samples per client:      min 259, median 260, max 260" in out
        assert "100.0 % of the data used" in out
        assert run_command(["partition", "digits", "--clients", "5"]) == 0
        assert "validation" not in capsys.readouterr().out

    def test_report(self, recipe, capsys, tmp_path):
        assert run_command(["run", recipe, "--out", "out"]) == 0
        (tmp_path / "out" / "report.html").unlink()
        capsys.readouterr()
        assert run_command(["report", "out", "--figures", "figures"]) == 0
        assert (tmp_path / "out" / "report.html").stat().st_size > 1000
        assert list((tmp_path / "figures").glob("*.png"))

    @pytest.mark.parametrize(("words", "first"), [("run --explain", "Settings of a run"), ("methods", "method")])
    def test_a_closed_pipe_is_nothing_to_tell(self, words, first):
        """The second prints a table, where Rich ends the program."""
        command = f"'{sys.executable}' -m fedwidth {words} | head -1"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        found = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=environment, check=False)
        assert found.stdout.startswith(first)
        assert found.stderr == ""


class TestValidation:
    def test_a_column_of_its_own(self, recipe, capsys, tmp_path):
        main = ["run", recipe, "--set", "data.validation=0.1", "--seeds", "1,2", "--out", str(tmp_path / "a")]
        assert run_command(main) == 0
        out = capsys.readouterr().out
        assert "validation %" in out
        summary = json.loads((tmp_path / "a" / "summary.json").read_text())
        runs = [run["validation_accuracy"] for run in summary["runs"]]
        assert summary["validation_accuracy"] == pytest.approx(sum(runs) / 2)

    def test_without_the_test_set(self, recipe, capsys, tmp_path):
        changes = ["--set", "data.validation=0.1", "--set", "evaluation.test=false"]
        assert run_command(["run", recipe, *changes, "--out", str(tmp_path / "a")]) == 0
        said = capsys.readouterr()
        assert "validation " in said.err
        assert "accuracy nan" not in said.err + said.out
        assert "–" in said.out
        assert json.loads((tmp_path / "a" / "summary.json").read_text())["global_accuracy"] is None
        assert (tmp_path / "a" / "report.html").exists()
        published = [*changes, "--set", "answers=84.5 (a table)"]
        place = ["--results", str(tmp_path / "results"), "--work", str(tmp_path / "work")]
        assert run_command(["reproduce", recipe, *published, *place]) == 2
        assert "published accuracies are of the test set" in capsys.readouterr().err


class TestTarget:
    def test_what_an_accuracy_took(self, recipe, capsys, tmp_path):
        changes = ["--set", "devices.rates={all=1e3}", "--seeds", "1,2"]
        assert run_command(["run", recipe, *changes, "--out", str(tmp_path / "a")]) == 0
        assert "device time" in capsys.readouterr().out
        for target, reached in (("0.01", "2 of 2"), ("100%", "0 of 2")):
            assert run_command(["report", str(tmp_path / "a"), "--target", target]) == 0
            out = capsys.readouterr().out
            assert reached in out
            assert ("min" in out or " s" in out.rsplit(reached)[1]) == (reached == "2 of 2")

    def test_a_mean_is_over_all_seeds_or_not_told(self, recipe, capsys, tmp_path):
        assert run_command(["run", recipe, "--seeds", "1,2", "--out", "out"]) == 0
        path = tmp_path / "out" / "seed-2" / "metrics.jsonl"  # of a seed that never gets there
        path.write_text(re.sub(r'"global_accuracy": [\d.]+', '"global_accuracy": 0.001', path.read_text()))
        capsys.readouterr()
        assert run_command(["report", "out", "--target", "0.01"]) == 0
        out = capsys.readouterr().out
        (row,) = (line for line in out.splitlines() if "1 of 2" in line)
        assert [cell.strip() for cell in row.split("│")][1:] == ["1 of 2", "–", "–", "–"]
        assert "Means are over seeds, and only told where all of them reach it." in out

    @pytest.mark.parametrize("target", ["0", "much", "nan", "120%"])
    def test_no_accuracy(self, target, capsys, tmp_path):
        assert run_command(["report", str(tmp_path), "--target", target]) == 2
        assert "--target must be an accuracy such as 0.8 or 80%" in capsys.readouterr().err
