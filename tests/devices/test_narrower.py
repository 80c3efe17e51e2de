"""A server narrower than its devices: the same clients, the same sizes, and clear words where that has no meaning."""

from dataclasses import replace

import pytest
from torch import nn

from fedwidth.analysis.yardsticks import yardsticks
from fedwidth.config.read import read_settings
from fedwidth.devices.capacity import Capacities
from fedwidth.devices.narrower import as_shares_of_server, with_narrower_server
from fedwidth.errors import OptionError
from fedwidth.experiment import Experiment
from small_runs import same, small

OF_MODEL = "devices.relative_to=model"


@pytest.mark.parametrize("width", [1, 1 / 2, 1 / 4, 3 / 8, 1 / 16])
@pytest.mark.parametrize("mix", ["a1-b1-c1-d1-e1", "household", "1:2 1/3:1 1/4:2"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_every_client_keeps_its_size(mix, width, dynamic):
    settings = small(f"devices.capacities={mix}")
    narrower = with_narrower_server(settings, width)
    for seed in (1, 2):
        for client in range(100):
            before, after = (
                Capacities.parse(each.devices.capacities).of_client(client, 100, round=3, seed=seed, dynamic=dynamic)
                for each in (settings, narrower)
            )
            assert after == pytest.approx(min(1, before / width))


def test_devices_listed_one_by_one():
    settings = small("data.clients=3", "devices.per_round=2", "devices.capacities=[1, 0.5, 0.125]")
    assert with_narrower_server(settings, 0.25).devices.capacities == [1, 1, 0.5]


def test_profiles_become_shares_of_the_narrower_server_too():
    profiles = "devices.profiles={'1/2'={'hidden.1'=0.75},'1/8'={'hidden.1'=0.125,'hidden.3'=0.5}}"
    settings = small("devices.capacities=1/2:1 1/8:2", profiles)
    narrower = with_narrower_server(settings, 0.5).devices
    assert narrower.profiles == {"1/4": {"hidden.1": 0.25, "hidden.3": 1.0}}
    assert yardsticks(settings)["capped"].devices.profiles == narrower.profiles


def test_a_recipe_and_an_experiment_run_what_can_be_written_out():
    changes = ["model.width=1/2", "evaluation.capacities=[1, 0.5, 0.25]", "rounds=2"]
    written = small(*changes[::2], "devices.capacities=a2-b1-c1-d1", "evaluation.capacities=[1, 0.5]")
    asked = small(*changes, OF_MODEL, "devices.capacities=a1-b1-c1-d1-e1")
    assert asked == written
    unread = replace(
        asked,
        devices=replace(asked.devices, relative_to="model", capacities="a1-b1-c1-d1-e1"),
        evaluation=replace(asked.evaluation, capacities=[1.0, 0.5, 0.25]),
    )
    one, other = Experiment(unread), Experiment(written)
    assert one.settings == other.settings
    assert one.identity == other.identity
    assert same(one.run().server.state, other.run().server.state)


def test_weak_devices_can_be_left_out_beside():
    settings = small(
        "model.width=1/4", OF_MODEL, "devices.capacities=a1-b1-c1-d1-e1", "devices.excluded=[0.125, 0.0625]"
    )
    assert settings.devices.excluded == [0.5, 0.25]
    assert Capacities.parse(settings.devices.capacities).enrolled(settings.devices.excluded) == (1.0,)


def test_at_full_width_nothing_changes():
    assert small(OF_MODEL) == small()
    assert as_shares_of_server(small()) == small()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["devices.capacities=1/16:1 1:1"], "from the widest to the narrowest"),
        (["devices.excluded=[0.5]"], "leaves out some of 1, 0.5, 0.25, who all train the whole"),
        (["devices.rates={all = 1e9}"], "devices.rates are of the server's model"),
        (["devices.budgets={phone = {memory = '1GB'}}"], "devices.budgets are of the server's model"),
        (["devices.correlate=labels", "devices.correlate_strength=0.5"], "correlate_strength is 0 or 1"),
        (["adapter.rank=4"], "capacities are shares of adapter.rank"),
        (["method.name=hetlora"], "capacities are shares of adapter.rank"),
        (["models=[{name='mlp', capacities=[0.5]}]", "method.name=dsfl"], "`models` go by shares"),
    ],
)
def test_what_has_no_meaning_is_refused(changes, words):
    with pytest.raises(OptionError, match=words):
        read_settings("quickstart", ["model.width=1/4", OF_MODEL, *changes], main=True)


def test_networks_given_in_python_are_refused_too():
    unread = replace(small("model.width=1/2"), devices=replace(small().devices, relative_to="model"))
    with pytest.raises(OptionError, match="`models` go by shares"):
        Experiment(replace(unread, method=replace(unread.method, name="dsfl")), models={0.5: nn.Linear(64, 10)})


def test_a_wrong_width_gets_its_own_line():
    unread = replace(small(), devices=replace(small().devices, relative_to="model"))
    with pytest.raises(OptionError, match="model.width must be"):
        Experiment(replace(unread, model=replace(unread.model, width=0.0)))


def test_what_nobody_has_is_not_taken_for_another_size():
    """Without a device of full width, leaving out 1 leaves out nobody, also beside a narrower server."""
    changes = ["devices.capacities=b1-c1-d1", "devices.excluded=[1]"]
    settings = small(*changes, "model.width=1/4", OF_MODEL)
    assert settings.devices.excluded == []
    capped = yardsticks(small("method.name=fedrolex", *changes))["capped"]
    assert Capacities.parse(capped.devices.capacities).enrolled(capped.devices.excluded) == (1.0, 0.5, 0.25)


def test_sizes_that_nobody_has_may_stand_anywhere():
    assert small("devices.capacities=1/16:0 1:1 1/2:1", "model.width=1/2", OF_MODEL).devices.capacities == "a2"


def test_other_words_are_refused():
    with pytest.raises(OptionError, match='devices.relative_to must be one of server, model, not "phone"'):
        small("devices.relative_to=phone")


def test_only_devices_that_hold_the_whole_of_the_servers_model_train():
    """As if those that cannot were named, in a recipe and in an experiment, whatever the server's width."""
    whole = small("devices.capacities=a1-b1-c1", "devices.whole_only=true")
    assert whole == small("devices.capacities=a1-b1-c1", "devices.excluded=[0.5, 0.25]")
    narrower = small("devices.capacities=a1-b1-c1", "devices.whole_only=true", "model.width=1/2", OF_MODEL)
    assert (narrower.devices.capacities, narrower.devices.excluded) == ("a2-b1", [0.5])
    unread = replace(whole, devices=replace(whole.devices, excluded=[], whole_only=True))
    one, other = Experiment(unread), Experiment(whole)
    assert one.settings == other.settings
    assert one.identity == other.identity
    assert {capacity for round in range(5) for _, capacity in one.cohort(round)} == {1.0}


def test_who_is_left_out_needs_no_rate():
    """In Python as in a recipe, where it is settled who trains before rates are looked at."""
    settings = small("devices.capacities=a1-b1")
    devices = replace(settings.devices, whole_only=True, rates={"1": 4e9})
    assert Experiment(replace(settings, devices=devices)).settings.devices.excluded == [0.5]
    with pytest.raises(OptionError, match="devices.rates gives nothing for capacity 1"):
        Experiment(replace(settings, devices=replace(devices, rates={"1/2": 4e9})))


def test_real_devices_are_not_left_out_by_settings():
    asked = Experiment(small("devices.capacities=a1-b1", "devices.whole_only=true"))
    with pytest.raises(OptionError, match="devices.excluded and whole_only are for simulated devices"):
        asked.run(cohort=lambda _: [(0, 1.0), (1, 0.5)])


def test_what_is_left_out_besides_stays_so():
    devices = small("devices.capacities=1:1 1/2:1 1/4:0", "devices.whole_only=true", "devices.excluded=[0.25]").devices
    assert devices.excluded == [0.5, 0.25], "of 1/4 there is nobody, but it was named"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["devices.capacities=b1-c1"], "leaves nobody: the widest device holds 0.5 of the server's model"),
        (["devices.excluded=[1]"], "lets only those of capacity 1 train, and devices.excluded leaves them out"),
        (["devices.budgets={phone={memory='512MB'}}"], "not by devices.budgets: leave one out"),
        (["models=[{name='mlp', capacities=[0.5]}]", "method.name=dsfl"], r"not by \[\[models\]\]: leave one out"),
    ],
)
def test_where_nobody_can_be_told_to_hold_the_whole_it_is_refused(changes, words):
    with pytest.raises(OptionError, match=words):
        read_settings("quickstart", ["devices.whole_only=true", *changes], main=True)
