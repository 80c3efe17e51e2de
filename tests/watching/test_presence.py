"""Who is in, late, refused, gone, in quarantine: from files alone."""

from deployment_folder import LINES, write_deployment

from fedwidth.watching.figures import Deployment
from fedwidth.watching.presence import enrolled_in, read_devices


def by_client(devices):
    return {device.client: device for device in devices}


def test_every_device_is_what_its_last_round_made_of_it(tmp_path):
    folder = write_deployment(tmp_path / "fed")
    found = by_client(read_devices(LINES, enrolled_in(folder)))
    assert {client: device.state for client, device in found.items()} == {
        0: "in",
        1: "gone",
        2: "late",
        3: "quarantined",
        4: "not seen yet",
    }
    assert found[3].until == 13
    assert found[3].why == "its change has norm 90, above the bound 8"
    assert (found[0].trained, found[0].missed, found[0].last_round) == (3, 0, 3)
    assert (found[3].trained, found[3].missed) == (1, 2)
    assert found[2].capacity == 1.0


def test_quarantine_ends_and_revoked_devices_are_named(tmp_path):
    later = {"round": 14, "clients": [0, 3], "capacities": [1.0, 0.25]}
    found = by_client(read_devices([*LINES, later], [0, 1, 3]))
    assert found[3].state == "in"
    assert found[3].until is None
    assert found[2].state == "revoked"


def test_nonsense_in_the_metrics_is_no_error():
    for line in (
        {"round": 1, "clients": 7},
        {"round": 1, "absent": [1]},
        {"round": 1, "cohort": [[1]], "clients": None},
    ):
        assert read_devices([line], [5])[-1].client == 5


def test_figures_are_what_the_folder_says(tmp_path):
    deployment = Deployment(write_deployment(tmp_path / "fed"))
    found = {figure.name: figure for figure in deployment.figures()}

    def value(name, **labels):
        return {tuple(sorted(own.items())): v for own, v in found[name].values}[tuple(sorted(labels.items()))]

    assert value("fedwidth_round") == 3
    assert value("fedwidth_devices", state="quarantined") == 1
    assert value("fedwidth_devices", state="in") == 1
    assert value("fedwidth_bytes", direction="down") == 1900
    assert value("fedwidth_bytes", direction="up") == 1600
    assert value("fedwidth_absent", client="3") == 2
    assert value("fedwidth_round_seconds") == 8
    assert value("fedwidth_updates") == 7
    assert value("fedwidth_global_accuracy") == 0.7
    assert value("fedwidth_audit_events", event="refused") == 1
    assert value("fedwidth_finished") == 0


def test_only_new_lines_are_read_and_a_rollback_is_noticed(tmp_path):
    folder = write_deployment(tmp_path / "fed")
    deployment, path = Deployment(folder), folder / "run" / "metrics.jsonl"
    assert len(deployment.lines()) == 3
    with open(path, "a") as file:
        file.write('{"round": 4, "clients": [0], "capacities": [1.0]}\n{"round": 5')
    assert [line["round"] for line in deployment.lines()] == [1, 2, 3, 4]
    with open(path, "a") as file:
        file.write(', "clients": []}\n')
    assert deployment.lines()[-1]["round"] == 5
    path.write_text(path.read_text().splitlines()[0] + "\n")
    assert [line["round"] for line in deployment.lines()] == [1]
