"""The roster that a run takes along: the public keys of those who are enrolled, in the app that the operator signs."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedwidth[flower]'")

from fedwidth.config.read import read_settings
from fedwidth.deployment.access.keys import make_node_key
from fedwidth.deployment.folder.admission import enrol
from fedwidth.deployment.folder.app_folder import ENROLLED, PACKAGE, write_deployment
from fedwidth.deployment.folder.launch import enrolled_of, launch
from fedwidth.deployment.folder.roster import NAME, write_roster
from fedwidth.deployment.folder.setup import Setup
from fedwidth.deployment.node.secure_sums import read_roster, read_signing_key
from fedwidth.errors import OptionError
from small_runs import RECIPE

SECURE = RECIPE + "secure.enabled = true\nsecure.min_clients = 3\n"


@pytest.fixture
def folder(tmp_path):
    setup, made = Setup(nodes=3, port=21000), tmp_path / "d"
    write_deployment(made, setup, read_settings(SECURE).main)
    for client in range(3):
        key = made / "nodes" / f"client-{client}" / "key"
        make_node_key(key, f"client-{client}")
        enrol(made, setup, key.with_name("key.pub"))
    return made


def test_the_roster_holds_the_keys_of_all_who_are_enrolled(folder):
    app = folder / "app"
    assert enrolled_of(app, []) == str(folder / ENROLLED)
    write_roster(app, enrolled_of(app, []))
    roster = read_roster((app / PACKAGE / NAME).read_text())
    assert sorted(roster) == [0, 1, 2]
    for client, key in roster.items():
        own = read_signing_key(folder / "nodes" / f"client-{client}" / "key")
        assert own.public_key() == key


def test_where_nobody_is_enrolled_here_the_roster_of_the_app_stays(folder):
    app = folder / "app"
    with pytest.raises(OptionError, match="secure.enabled needs the roster of the devices") as caught:
        write_roster(app, "")
    assert "\n" not in str(caught.value)
    write_roster(app, str(folder / ENROLLED))
    before = (app / PACKAGE / NAME).read_text()
    write_roster(app, str(folder / "elsewhere"))
    assert (app / PACKAGE / NAME).read_text() == before


def test_a_recipe_without_secure_sums_has_no_roster(folder):
    app = folder / "app"
    write_roster(app, str(folder / ENROLLED))
    (app / PACKAGE / "recipe.toml").write_text(RECIPE)
    write_roster(app, str(folder / ENROLLED))
    assert not (app / PACKAGE / NAME).exists()


def test_a_run_without_a_roster_is_not_started(folder, capsys):
    config = folder / "app" / "pyproject.toml"
    config.write_text(config.read_text().replace(f'enrolled = "{folder / ENROLLED}"', 'enrolled = ""'))
    assert launch(str(folder / "app"), "link", [], flwr=lambda *_: ["false"]) == 2
    assert "needs the roster of the devices" in capsys.readouterr().err
