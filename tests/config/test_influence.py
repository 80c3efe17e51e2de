"""When two runs are the same: one definition for checkpoints, run folders, reports and published tables."""

from dataclasses import asdict

import pytest

from fedwidth.analysis.experiment_key import experiment_key
from fedwidth.config.influence import MEASURING, PRECISION, ROUNDING, WITHOUT_INFLUENCE, identity, settings_hash
from fedwidth.config.schema import keys
from fedwidth.config.write import settings_toml
from fedwidth.errors import StateError
from fedwidth.experiment import Experiment
from fedwidth.report import read_runs
from fedwidth.report.entries import group_runs
from fedwidth.reproduce.running import reproduce
from fedwidth.reproduce.table_runs import list_table_runs
from fedwidth.run import folder
from fedwidth.run.checkpoint import write_whole
from small_runs import small, write_recipe

OTHER = {
    "name": "x",
    "answers": "12.3",
    "checkpoint_every": 2,
    "checkpoint_seconds": 5.0,
    "client_memory": "disk",
    "workers": 3,
    "slots": 4,
    "data.root": "elsewhere",
    "data.cache": 64,
    "ray.address": "auto",
    "ray.cpus": 2,
    "engine": "vectorised",
    "device": "cuda:1",
    "ray.engine": "serial",
    "ray.gpus": 0.5,
    "precision": "bf16",
    "evaluation.every": 1,
    "evaluation.also": "[1]",
    "evaluation.test": "false",
    "evaluation.local": "false",
    "evaluation.capacities": "[0.5]",
    "evaluation.capacities_every": 6,
    "evaluation.draws": 3,
    "evaluation.alarm": 5,
    "checkpoint_history": 4,
}
RAY = "engine=ray"
ALSO = {"evaluation.test": ["data.validation=0.2"]}
"""What a setting is refused without."""


def changed(name, *more):
    return small(*more, f"{name}={OTHER[name]}")


def write_config(place, settings):
    place.mkdir(parents=True)
    write_whole(place / folder.CONFIG, settings_toml(settings))
    return place


def entries(tmp_path, *runs):
    folders = [write_config(tmp_path / str(number), settings) for number, settings in enumerate(runs)]
    return len(group_runs(read_runs(folders)))


def test_every_setting_named_exists_and_is_of_one_kind():
    named = (*WITHOUT_INFLUENCE, *ROUNDING, *PRECISION, *MEASURING)
    assert set(named) <= set(keys())
    assert len(set(named)) == len(named)
    assert set(OTHER) == set(named)
    assert {name for name in keys() if name.startswith("ray.")} <= set(named)


@pytest.mark.parametrize("engine", ["engine=serial", RAY])
@pytest.mark.parametrize("name", WITHOUT_INFLUENCE)
def test_what_has_no_influence_is_the_same_run_everywhere(tmp_path, name, engine):
    one, other = small(engine), changed(name, engine)
    assert one != other
    assert identity(one) == identity(other)
    folder.check_same(write_config(tmp_path / "there", one), other)
    assert experiment_key(asdict(one)) == experiment_key(asdict(other))
    if name != "name":  # runs that are called differently are told apart
        assert entries(tmp_path, one, changed(name, engine, "seed=2")) == 1


@pytest.mark.parametrize("name", ROUNDING)
def test_another_engine_or_processor_is_the_same_experiment_but_other_bits(tmp_path, name):
    one, other = small(RAY), changed(name, RAY)
    assert identity(one) != identity(other)
    with pytest.raises(StateError, match="holds a run with other settings: "):
        folder.check_same(write_config(tmp_path / "there", one), other)
    assert experiment_key(asdict(one)) == experiment_key(asdict(other))
    assert entries(tmp_path, one, changed(name, RAY, "seed=2")) == 1


@pytest.mark.parametrize("name", ["ray.engine", "ray.gpus"])
def test_settings_of_ray_mean_nothing_where_it_does_not_train(tmp_path, name):
    one, other = small(), changed(name)
    assert identity(one) == identity(other)
    folder.check_same(write_config(tmp_path / "there", one), other)
    more = small(RAY, "ray.gpus=0.25"), small(RAY, "ray.gpus=1")
    assert identity(more[0]) == identity(more[1]), "how many GPUs is no matter"


@pytest.mark.parametrize("name", [*PRECISION, *MEASURING])
def test_precision_and_measuring_fill_the_same_cell_but_are_other_lines_of_a_report(tmp_path, name):
    also = ALSO.get(name, [])
    one, other = small(*also), changed(name, *also)
    assert identity(one) != identity(other)
    assert experiment_key(asdict(one)) == experiment_key(asdict(other))
    assert entries(tmp_path, one, changed(name, *also, "seed=2")) == 2


OTHERWISE = ("training.lr=0.2", "rounds=4", "method.name=heterofl", "evaluation.norm=batch", "data.validation=0.1")


@pytest.mark.parametrize("change", OTHERWISE)
def test_everything_else_is_another_experiment(tmp_path, change):
    one, other = small(), small(change)
    assert settings_hash(one) != settings_hash(other)
    with pytest.raises(StateError, match="holds a run with other settings: "):
        folder.check_same(write_config(tmp_path / "there", one), other)
    assert experiment_key(asdict(one)) != experiment_key(asdict(other))
    assert entries(tmp_path, one, small(change, "seed=2")) == 2


def test_a_run_of_a_version_without_a_setting_is_a_repetition_of_one_with_its_default(tmp_path):
    folders = [write_config(tmp_path / str(seed), small(f"seed={seed}")) for seed in (1, 2)]
    text = (folders[1] / folder.CONFIG).read_text()
    assert "\nlr_decay = 1.0" in text
    (folders[1] / folder.CONFIG).write_text(text.replace("\nlr_decay = 1.0", ""))
    assert len(group_runs(read_runs(folders))) == 1


def test_fingerprints_of_earlier_versions_hold():
    """As 0.2.0 computed them before there were the settings that `ADDED` names."""
    assert identity(small()).startswith("bdd93d4af52bc677")
    assert identity(small("data.validation=0.1")) != identity(small())


def test_a_cell_is_filled_by_runs_on_any_number_of_ray_cpus(tmp_path):
    recipe, results = write_recipe(tmp_path), tmp_path / "results"
    reproduce([recipe], changes=["ray.cpus=2"], results=results, work=tmp_path / "work", say=lambda _: None)
    outcome = reproduce([recipe], results=results, work=tmp_path / "work", say=lambda _: None)
    assert (outcome.skipped, outcome.remaining) == (1, ())
    (job,) = list_table_runs([recipe], only=[], seeds=[], changes=["data.root=elsewhere"], work=tmp_path)
    (plain,) = list_table_runs([recipe], only=[], seeds=[], changes=[], work=tmp_path)
    assert job.folder == plain.folder


def test_a_run_goes_on_with_the_data_at_another_place(tmp_path):
    one = Experiment(small())
    one.run(tmp_path)
    assert Experiment(small("data.root=elsewhere"), data=one.data).run(tmp_path, resume=True).metrics
