"""Settings: what is read, what is refused and in which words, and that writing and reading are inverse."""

import dataclasses
import tomllib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from fedwidth.config.check import check_settings
from fedwidth.config.influence import identity, settings_hash
from fedwidth.config.read import read_settings, recipe_names
from fedwidth.config.schema import build, keys
from fedwidth.config.write import explain_settings, settings_toml
from fedwidth.errors import OptionError
from fedwidth.settings import ArchitectureSettings, Settings


def main(text="", *overrides):
    return read_settings(text, overrides).main


def test_an_empty_text_gives_the_defaults():
    assert main() == Settings()


def test_whole_numbers_are_numbers_and_fractions_are_shares():
    read = main('training.lr = 1\nmodel.width = "1/16"\nevaluation.capacities = ["1/4", 1, 0.5]')
    assert isinstance(read.training.lr, float)
    assert read.model.width == 0.0625
    assert read.evaluation.capacities == [0.25, 1.0, 0.5]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("training.lrr = 1", ["'training.lrr'", "'training.lr'", "batch_size"]),
        ("trainning.lr = 1", ["'trainning'", "'training'"]),
        ("lr = 1", ["'lr'", "'training.lr'", "'server.lr'"]),
        ("rounds = true", ["rounds", "a whole number", "true"]),
        ("rounds = 2.0", ["rounds", "a whole number", "2.0"]),
        ("rounds = 0", ["rounds", "at least 1", "0"]),
        ('training.lr = "fast"', ["training.lr", "a number", '"fast"']),
        ("training.lr = nan", ["training.lr", "a number"]),
        ("training.lr = inf", ["training.lr", "a number"]),
        (f"training.lr = 1{'0' * 400}", ["training.lr", "a number"]),
        ("training.scaler = 1", ["training.scaler", "true or false", "1"]),
        ('training.optimiser = "rmsprop"', ["training.optimiser", "sgd, adam, adamw", '"rmsprop"']),
        ("training.milestones = 3", ["training.milestones", "a list of whole numbers", "3"]),
        ("training.milestones = [3, 2.5]", ["training.milestones", "whole numbers", "2.5"]),
        ("training.milestones = [3, 3]", ["training.milestones", "rising", "[3, 3]"]),
        ("training.milestones = [0, 3]", ["training.milestones", "rising"]),
        ('training.schedule = "multistep"', ["training.schedule", "training.milestones"]),
        ("training = 3", ["training", "a table", "3"]),
        ('method = "fedavg"', ["method", "method.name", '"fedavg"']),
        ('method.name = "fedrolx"', ["'fedrolx'", "'fedrolex'", "heterofl"]),
        ("method.options.stepp = 2", ["'stepp'", "'step'", "fedrolex"]),
        ("method.options.step = -2", ["step", "whole number", "-2"]),
        ("method.options.name = 2", ["'name'", "fedrolex"]),
        ("method.options = 2", ["method.options", "a table", "2"]),
        ("method.options.step = 1979-05-27", ["method.options", "1979-05-27"]),
        ("model.width = 0", ["model.width", "above 0"]),
        ('model.width = "1/0"', ["model.width", '"1/0"']),
        ("evaluation.capacities = [2]", ["evaluation.capacities", "at most 1", "2"]),
        ('model.name = "resnet18"', ["'resnet18'", "'preresnet18'", "package.module:factory"]),
        ('data.name = "cifar"', ["'cifar'", "cifar10"]),
        ("data.options.vocabulary = 3", ["'vocabulary'", "digits"]),
        ('data.partition = "label"', ["'label'", "'labels'", "dirichlet"]),
        ("data.partition_options.alpha = 1", ["'alpha'", "iid"]),
        ("devices.per_round = 101", ["devices.per_round", "100", "101"]),
        ('devices.capacities = "z9"', ["devices.capacities", "'z9'", "household"]),
        ("data.validation = 1", ["data.validation", "below 1", "not 1"]),
        ("data.validation = -0.1", ["data.validation", "at least 0", "-0.1"]),
        ("evaluation.test = false", ["evaluation.test", "data.validation", "above 0"]),
        ("devices.capacities = [1, 0.5]", ["devices.capacities", "2 capacities for 100 clients"]),
        ("devices.capacities = []", ["devices.capacities", "names no client's capacity"]),
        ("devices.capacities = [0]", ["devices.capacities", "text, or a list of numbers", "above 0", "0"]),
        ("devices.capacities = 1", ["devices.capacities", "text, or a list of numbers", "1"]),
        (
            "data.clients = 2\ndevices = {per_round = 1, capacities = [1, 1], dynamic = true}",
            ["devices.capacities lists", "devices.dynamic"],
        ),
        (
            'data.clients = 2\ndevices = {per_round = 1, capacities = [1, 1], correlate = "labels"}',
            ["devices.correlate", "devices.capacities lists"],
        ),
        ('devices = {correlate = "labels", dynamic = true}', ["devices.correlate", "devices.dynamic"]),
        ('devices.correlate = "size"', ["devices.correlate", "few-samples", '"size"']),
        ("devices.correlate_strength = 1.5", ["devices.correlate_strength", "from 0 to 1", "1.5"]),
        ("devices.dropout = 1", ["devices.dropout", "below 1", "1"]),
        ("devices.deadline = 5", ["devices.deadline", "devices.rates", "devices.bandwidth"]),
        ("devices.deadline = -5", ["devices.deadline", "at least 0"]),
        ("devices.rates = 5", ["devices.rates", "a table", "5"]),
        ("devices.rates = {1 = 2e9}", ["devices.rates", "capacity 1/2", "'all'"]),
        ("devices.rates = {all = 0}", ["devices.rates", "multiply-adds per second", "above 0", "'all'"]),
        ("devices.bandwidth = {phones = 1}", ["devices.bandwidth", "'1/4'", "'phones'"]),
        ("devices.bandwidth = {all = true}", ["devices.bandwidth", "bytes per second"]),
        ('device = "gpu"', ["device", "cuda:N", "'gpu'"]),
        ("rounds = \nseed = 1", ["TOML", "line 1"]),
        ("rounds = 1\nrounds = 2", ["TOML"]),
        ("x = " + "[" * 5000, ["TOML"]),
        ("grid = 3", ["[grid]"]),
        ("grid = {rows = [], columns = []}", ["[grid]", "row"]),
        ("compare = 3", ["compare", "3"]),
        ("paper.number = true", ["paper.number", "a number", "true"]),
        ("paper.numbr = 1", ["'paper.numbr'", "'paper.number'"]),
        ("title = 3", ["title", "text", "3"]),
        ("[[compare]]\nrounds = 3", ["label"]),
        ('[[compare]]\nlabel = "x"\nround = 3', ["'x'", "'round'", "'rounds'"]),
        ('[[compare]]\nlabel = "x"\ndevice = "gpu"', ["'x'", "device", "'gpu'"]),
        ('[[compare]]\nlabel = "fedrolex"', ["'fedrolex'", "twice"]),
        ("quickstrt", ["'quickstrt'", "'quickstart'", ".toml"]),
        ("nowhere.toml", ["nowhere.toml"]),
    ],
)
def test_bad_input_is_refused_in_one_sentence_that_names_it(text, words):
    with pytest.raises(OptionError) as caught:
        read_settings(text)
    message = str(caught.value)
    assert "\n" not in message
    assert not [word for word in words if word not in message], message


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("training.lr=0.5", "training.lr", 0.5),
        ("training.lr = 2", "training.lr", 2.0),
        ("training.optimiser=adam", "training.optimiser", "adam"),
        ("training.optimiser='adam'", "training.optimiser", "adam"),
        ("training.scaler=false", "training.scaler", False),
        ("training.milestones=[10, 20]", "training.milestones", [10, 20]),
        ("model.width=1/16", "model.width", 0.0625),
        ("devices.capacities=1:1 1/16:9", "devices.capacities", "1:1 1/16:9"),
        ("devices.capacities=0.25", "devices.capacities", "0.25"),
        ("name=2024", "name", "2024"),
        ("name=a=b", "name", "a=b"),
        ("name=", "name", ""),
        ("method.options.step=3", "method.options", {"step": 3}),
        ("method={name='fedbrb'}", "method.name", "fedbrb"),
    ],
)
def test_overrides(override, key, value):
    found = main("", override)
    for part in key.split("."):
        found = getattr(found, part)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "override", ["training", "=3", ".lr=3", "a..b=3", "training.lrr=3", "training.lr=x", "compare=3"]
)
def test_bad_overrides_are_refused(override):
    with pytest.raises(OptionError):
        read_settings("", [override])


def test_overrides_reach_every_run():
    recipe = read_settings("quickstart", ["rounds=3", "seed=9"])
    assert len(recipe.runs) == 6
    assert {(run.settings.rounds, run.settings.seed) for run in recipe.runs} == {(3, 9)}


def test_a_file_is_read_and_its_faults_are_named(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_bytes("\ufeffrounds = 7\r\n".encode())
    assert main(str(path)).rounds == read_settings(path).main.rounds == 7
    path.write_bytes(b"name = '\xff'")
    with pytest.raises(OptionError, match=r"mine\.toml.*UTF-8"):
        read_settings(path)
    with pytest.raises(OptionError, match="cannot read"):
        read_settings(tmp_path)


RECIPE = """
title = "Two"
rounds = 9
name = "main"
method.options = { step = 2, direction = "backward" }
data.partition = "labels"
data.partition_options = { per_client = 3 }

[paper]
table = "Table 1"
number = 69.4
spread = 1.5

[[compare]]
label = "slow"
method.options.step = 1
paper.number = 60.0

[[compare]]
label = "other"
name = "Other"
method.name = "heterofl"
data.partition = "iid"
paper.note = "none"
"""


def test_a_comparison_has_the_main_settings_but_for_its_own():
    recipe = read_settings(RECIPE)
    assert (recipe.title, recipe.label, recipe.main.name) == ("Two", "fedrolex", "main")
    assert recipe.main.answers == "69.40 ± 1.50 (Table 1)"
    slow, other = recipe.compare
    assert slow.settings.method.options == {"step": 1, "direction": "backward"}
    assert (slow.settings.rounds, slow.settings.name, slow.settings.answers) == (9, "slow", "60.00 (Table 1)")
    assert (slow.paper.table, slow.paper.number, slow.paper.spread) == ("Table 1", 60.0, None)
    assert other.settings.name == "Other"
    assert other.settings.method.options == {}, "another method starts from its own defaults"
    assert other.settings.data.partition_options == {}
    assert (other.paper.number, other.paper.note) == (None, "none")


def test_only_some_runs():
    recipe = read_settings(RECIPE)
    assert recipe.only("slow").main == recipe.compare[0].settings
    assert recipe.only("other", "fedrolex").labels == ("fedrolex", "other")
    assert recipe.only("*o*").labels == ("fedrolex", "slow", "other")
    with pytest.raises(OptionError, match="unknown run 'slo'.*'slow'"):
        recipe.only("slo")


GRID = """
[paper]
table = "Table 2"
best = true
[grid]
columns = [{ label = "quarter", devices.capacities = "1/4:1" }, { label = "full", devices.capacities = "a1" }]
rows = [
  { label = "fedavg", method.name = "fedavg", numbers = ["-", 90.5] },
  { label = "fedcover", method.name = "fedcover", numbers = ["?", 90.5], spreads = [0.1, 0.2], note = "lost" },
]
"""


def test_a_grid_crosses_rows_and_columns():
    recipe = read_settings(GRID)
    assert recipe.labels == ("fedavg/full", "fedcover/quarter", "fedcover/full")
    full, lost, last = recipe.runs
    assert (full.settings.method.name, full.settings.devices.capacities, full.paper.number) == ("fedavg", "a1", 90.5)
    assert (lost.settings.devices.capacities, lost.paper.number, lost.paper.note) == ("1/4:1", None, "lost")
    assert (last.settings.answers, last.paper.best) == ("90.50 ± 0.20 (Table 2)", True)
    with pytest.raises(OptionError, match="list of 2"):
        read_settings(GRID.replace('["-", 90.5]', "[90.5]"))
    with pytest.raises(OptionError, match="not both"):
        read_settings(GRID + '[[compare]]\nlabel = "x"')


SCALARS = st.text() | st.booleans() | st.integers() | st.floats(allow_nan=False)
OPTIONS = st.dictionaries(
    st.text(),
    st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)),
    max_size=4,
)


def values_of(key):
    least = int(key.least or 0)
    shares = st.floats(0, 1, exclude_min=True)
    below = {"max_value": key.below, "exclude_max": True} if key.below else {"allow_infinity": False}
    numbers = shares if key.share else st.floats(key.least or 0, allow_nan=False, **below)
    strategies = {
        str: st.sampled_from(key.choices) if key.choices else st.text(),
        bool: st.booleans(),
        int: st.integers(least),
        float: numbers,
        list[int]: st.lists(st.integers(), max_size=4),
        list[float]: st.lists(numbers, max_size=4),
        str | list[float]: st.text() | st.lists(shares, max_size=4),
        dict[str, Any]: OPTIONS,
        list[ArchitectureSettings]: st.lists(
            st.fixed_dictionaries({"name": st.text(), "capacities": st.lists(shares, max_size=2)}), max_size=2
        ),
    }
    return strategies[key.type]


@st.composite
def any_settings(draw):
    document = {}
    for name in draw(st.lists(st.sampled_from(list(keys())), unique=True)):
        section, _, leaf = name.rpartition(".")
        table = document.setdefault(section, {}) if section else document
        table[leaf] = draw(values_of(keys()[name]))
    return build(Settings, document)


@limits(deadline=None, max_examples=50)
@given(any_settings())
def test_what_is_written_reads_back_equal(settings):
    text = settings_toml(settings)
    assert build(Settings, tomllib.loads(text)) == settings
    assert text.encode()


def test_the_resolved_recipe_reads_back_equal():
    for run in read_settings("quickstart").runs:
        again = read_settings(settings_toml(run.settings))
        assert again.main == run.settings
        assert not again.compare


def test_what_toml_cannot_say_is_refused_by_name():
    settings = Settings()
    settings.method.options["overlap"] = None
    with pytest.raises(OptionError, match=r"method\.options\.overlap"):
        settings_toml(settings)


def test_identity_changes_with_whatever_changes_results():
    settings = Settings()
    for name in ("name", "answers", "checkpoint_every", "checkpoint_seconds", "workers"):
        other = replace(settings, **{name: "x" if isinstance(getattr(settings, name), str) else 3})
        assert identity(other) == identity(settings), name
    elsewhere = replace(settings.ray, address="auto", cpus=0.5)
    on_ray = replace(settings, engine="ray")
    assert identity(replace(on_ray, ray=elsewhere)) == identity(on_ray)
    assert identity(replace(on_ray, ray=replace(elsewhere, engine="serial"))) != identity(on_ray)
    assert identity(replace(on_ray, ray=replace(elsewhere, gpus=0.5))) != identity(on_ray)
    reseeded = replace(settings, seed=2)
    assert identity(reseeded) != identity(settings)
    assert settings_hash(reseeded) == settings_hash(settings)
    for part in dataclasses.fields(settings):
        section = getattr(settings, part.name)
        if dataclasses.is_dataclass(section) and part.name != "ray":
            for inner in dataclasses.fields(section):
                changed = replace(settings, **{part.name: replace(section, **{inner.name: "changed"})})
                is_same = settings_hash(changed) == settings_hash(settings)
                # Options of a local rule mean nothing, and are refused, while none is named. An alarm only speaks.
                alike = (part.name, inner.name) in [("data", "root"), ("evaluation", "alarm"), ("local", "options")]
                assert is_same == alike, (part.name, inner.name)


def test_identity_is_the_same_on_every_machine():
    settings = Settings(method=replace(Settings().method, options={"step": 2, "direction": "forward"}))
    turned = Settings(method=replace(Settings().method, options={"direction": "forward", "step": 2}))
    assert identity(settings) == identity(turned), "the order of options means nothing"
    assert len(identity(settings)) == 64


def test_explain_tells_every_key_its_default_and_what_is_allowed():
    text = explain_settings()
    for key in keys().values():
        assert f"  {key.name} = " in text
        assert key.help in text
        assert key.expected in text
    assert 'training.optimiser = "sgd"' in text


def test_defaults_pass_their_own_checks():
    check_settings(Settings())
    for name, key in keys().items():
        assert key.help, name


def test_recipes_come_with_the_package():
    assert "quickstart" in recipe_names()


def test_with_only_a_change_need_not_make_sense_for_the_other_runs():
    change = ["method.options.broadcast=0.2"]
    with pytest.raises(OptionError, match="unknown option of method 'fedrolex' 'broadcast'"):
        read_settings("quickstart", change)
    recipe = read_settings("quickstart", change, only="fedbrb")
    assert recipe.labels == ("fedbrb",)
    assert recipe.main.method.options == {"broadcast": 0.2}
    with pytest.raises(OptionError, match="run 'largest'|unknown option of method 'fedavg'"):
        read_settings("quickstart", change, only="largest")


def test_excluding_every_capacity_is_refused():
    with pytest.raises(OptionError, match="excluded leaves no capacity of 'a0-b1-e1'"):
        read_settings("quickstart", ["devices.capacities=a0-b1-e1", "devices.excluded=[0.5, 0.0625]"], only="fedrolex")
    read_settings("quickstart", ["devices.capacities=a0-b1-e1", "devices.excluded=[0.5]"], only="fedrolex")


def test_a_change_that_some_runs_refuse_is_made_to_those_that_are_taken():
    change = ["local.name=scaffold", "method.name=fedrolex"]
    text = 'method.name = "heterofl"\n[[compare]]\nlabel = "fedbrb"\nmethod.name = "fedbrb"\ntraining.momentum = 0.5\n'
    with pytest.raises(OptionError, match="run 'fedbrb'"):
        read_settings(text, change)
    assert read_settings(text, change, main=True).labels == ("fedrolex",)
    assert read_settings(text, change, only="fedrolex").main.local.name == "scaffold"
    # Over the method's name: a run that is left out may come to have the same label.
    assert read_settings(text, ["method.name=fedbrb"], main=True).main.method.name == "fedbrb"


def test_the_main_run_of_a_grid_has_to_be_named():
    with pytest.raises(OptionError, match="no main run: name one with --only, such as '2-classes/fedavg/1.00'"):
        read_settings("thesis/table3-1", main=True)
    assert read_settings("thesis/table3-1", only="2-classes/fedavg/1.00", main=True).labels == (
        "2-classes/fedavg/1.00",
    )
    with pytest.raises(OptionError, match="stands for"):
        read_settings("thesis/table3-1", only="2-classes/*", main=True)


def test_whether_a_recipe_wants_its_yardsticks():
    assert not read_settings("rounds = 2").yardsticks
    assert read_settings("yardsticks = true").yardsticks
    with pytest.raises(OptionError, match="yardsticks must be true or false, not .yes."):
        read_settings('yardsticks = "yes"')


def test_where_a_key_is_suggested_the_long_list_at_the_top_is_left_out():
    with pytest.raises(OptionError, match=r"^unknown key 'rond' \(did you mean 'rounds'\?\)$"):
        read_settings("rond = 3")
    with pytest.raises(OptionError, match=r"^unknown key 'xyzzy'; allowed at the top: name, answers, seed, rounds, "):
        read_settings("xyzzy = 3")
