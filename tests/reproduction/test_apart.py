"""Models of several runs that answer together: the mean of their probabilities, chosen by validation samples."""

import json

import pytest
import torch
from reproduction.apart import main, measure

import fedwidth
from fedwidth.config.build import load_data
from fedwidth.errors import OptionError
from fedwidth.experiment import Experiment
from small_runs import small


def trained(folder, *changes):
    run = Experiment(small("method.name=fedavg", "devices.capacities=a1", "data.validation=0.1", *changes))
    run.run(folder)
    return run


def test_two_models_answer_with_the_mean_of_their_probabilities(tmp_path):
    whole = trained(tmp_path / "whole", "rounds=5")
    trained(tmp_path / "half", "rounds=5", "model.width=1/2")
    found = measure([tmp_path / "whole", tmp_path / "half"], torch.device("cpu"))
    test = whole.data.test
    inputs = whole.data.transform(test.inputs, False)
    with torch.no_grad():
        odds = [fedwidth.load(tmp_path / name)(inputs).softmax(-1) for name in ("whole", "half")]
    right = [100 * float((each.argmax(-1) == test.labels).double().mean()) for each in (*odds, odds[0] + odds[1])]
    assert [*found["each"], found["all"]] == pytest.approx(right, abs=0.01)
    assert found["each"][0] != found["each"][1], "two models that answer alike show nothing"
    best = [found["widths"].index(width) for width in found["chosen_widths"]]
    assert found["chosen"] == (found["all"] if len(best) == 2 else found["each"][best[0]])


def test_measurements_gather_in_one_file(tmp_path):
    for seed in (1, 2):
        for width in ("1", "1/2"):
            trained(tmp_path / f"{seed}-{width[0]}{width[-1]}", "rounds=1", f"model.width={width}", f"seed={seed}")
        main(str(tmp_path / "out.json"), str(tmp_path / f"{seed}-11"), str(tmp_path / f"{seed}-12"))
    assert [each["seed"] for each in json.loads((tmp_path / "out.json").read_text())] == [1, 2]


def test_what_was_measured_before_stands_once(tmp_path):
    places = [str(tmp_path / name) for name in ("one", "other")]
    for name in ("one", "other"):
        trained(tmp_path / name, "rounds=1")
    for _ in range(2):
        main(str(tmp_path / "out.json"), *places)
    assert len(json.loads((tmp_path / "out.json").read_text())) == 1


def test_what_cannot_be_measured_is_said(tmp_path):
    with pytest.raises(OptionError, match="name a JSON file for the numbers, and at least two runs"):
        main()
    trained(tmp_path / "one", "rounds=1")
    (tmp_path / "one" / "summary.json").unlink()
    with pytest.raises(OptionError, match="holds no finished run"):
        main(str(tmp_path / "out.json"), *[str(tmp_path / "one")] * 2)
    (tmp_path / "out.json").write_text("[")
    with pytest.raises(OptionError, match=r"out\.json cannot be read as JSON"):
        main(str(tmp_path / "out.json"), *[str(tmp_path / "one")] * 2)


def test_the_data_are_read_once_and_from_the_folder_of_the_first_run(tmp_path, monkeypatch):
    for name in ("one", "other"):
        trained(tmp_path / name, "rounds=1", f"data.root={tmp_path / name}")
    read = []
    monkeypatch.setattr("fedwidth.run.cache.load_data", lambda settings: read.append(settings) or load_data(settings))
    measure([tmp_path / "one", tmp_path / "other"], torch.device("cpu"))
    assert [settings.data.root for settings in read] == [str(tmp_path / "one")]


def test_runs_of_other_splits_do_not_answer_together(tmp_path):
    trained(tmp_path / "one", "rounds=1")
    trained(tmp_path / "other", "rounds=1", "seed=2")
    with pytest.raises(OptionError, match="one seed and one split"):
        measure([tmp_path / "one", tmp_path / "other"], torch.device("cpu"))


def test_without_validation_samples_nothing_is_chosen(tmp_path):
    trained(tmp_path / "one", "rounds=1", "data.validation=0")
    with pytest.raises(OptionError, match=r"data\.validation is 0"):
        measure([tmp_path / "one"] * 2, torch.device("cpu"))
