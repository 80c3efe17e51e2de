import base64
import zlib
from dataclasses import replace

import pytest
import torch
from run_folders import CAPACITIES, lines, write_run

from fedwidth.analysis.coverage import measure_coverage
from fedwidth.core.submodel import put, take
from fedwidth.engines.serial import SerialEngine
from fedwidth.experiment import Experiment
from fedwidth.methods import methods
from fedwidth.report import read_runs
from fedwidth.report.coverage_view import Frame, best_layer, count_training, frame_rounds, layers, pack, pool
from fedwidth.report.rebuild import ModelRebuilder, Rebuilt
from small_runs import small

FORESEEN = sorted(n for n, m in methods().items() if m.slices and "state" not in m.reads and not m.adapters)
"""Methods that hand out slices which do not depend on the trained weights."""


@pytest.fixture(scope="module")
def rebuilder():
    return ModelRebuilder()


@pytest.mark.parametrize("name", FORESEEN)
def test_counts_agree_with_the_coverage_of_the_same_devices(tmp_path, rebuilder, name):
    """Where every round has the same cohort, what the run trained is what `measure_coverage` predicts."""
    (run,) = read_runs([write_run(tmp_path / "a", method=name, seed=4, rounds=9)])
    built = rebuilder.rebuild(run)
    assert isinstance(built, Rebuilt)
    frames = count_training(run, built)
    for frame in (frames[0], frames[-1]):
        expected = measure_coverage(built.plan, built.method, CAPACITIES, frame.round, seed=4)
        assert frame.share == pytest.approx(expected.share())
        assert frame.evenness == pytest.approx(expected.evenness)
        assert frame.updates == 3 * frame.round
        counts = {t.name: t.counts for t in expected.tensors}
        for layer, grid in frame.grids.items():
            assert torch.equal(grid.double(), counts[layer].double().expand(*grid.shape))


class Forgetful(SerialEngine):
    """Devices of which one does not answer in most rounds; counts how often each weight of a layer was trained."""

    def __init__(self, trainer, layer):
        super().__init__(trainer)
        self.layer, self.counts = layer, torch.zeros(trainer.plan.shapes[layer])

    def run(self, state, tasks, round, **_):
        lost = [task.client for task in tasks if task.client == round % 4]
        here = [task for task in tasks if task.client not in lost]
        for task in here:
            put(self.counts, take(self.counts, task.index, self.layer) + 1, task.index, self.layer)
        sums, report = super().run(state, here, round)
        return sums, replace(report, absent=dict.fromkeys(lost, "it is late"))


@pytest.mark.parametrize("name", FORESEEN)
def test_absent_clients_keep_their_place_and_train_nothing(tmp_path, rebuilder, name):
    """A device that did not answer was given a sub-model as well, and the others theirs with it in mind."""
    experiment = Experiment(small(f"method.name={name}", "model.options={hidden=[12, 6]}", "rounds=6", "seed=3"))
    engine = Forgetful(experiment.trainer, "hidden.3.weight")
    capacities = (0.5, 0.25, 0.5, 0.25)
    experiment.run(tmp_path, engine=engine, cohort=lambda round: list(enumerate(capacities)))
    (run,) = read_runs([tmp_path])
    last = count_training(run, rebuilder.rebuild(run))[-1]
    assert last.updates == 18
    assert torch.equal(last.grids[engine.layer], engine.counts)
    assert run.metrics[1]["cohort"] == [[client, capacity] for client, capacity in enumerate(capacities)]


def test_a_round_in_which_all_were_excluded_leaves_the_memory_as_it_was(tmp_path, rebuilder):
    experiment = Experiment(small("method.name=fedminoccurances", "model.options={hidden=[12, 6]}", "rounds=3"))
    engine = Forgetful(experiment.trainer, "hidden.3.weight")
    experiment.run(tmp_path, engine=engine, cohort=lambda round: [] if round == 1 else [(4, 0.5), (5, 0.25)])
    (run,) = read_runs([tmp_path])
    assert torch.equal(count_training(run, rebuilder.rebuild(run))[-1].grids[engine.layer], engine.counts)


def test_runs_of_earlier_versions_do_not_say_where_absent_clients_were(tmp_path, rebuilder):
    metrics = [line | {"absent": {"5": "it is late"}} for line in lines(6)]
    (run,) = read_runs([write_run(tmp_path / "a", metrics=metrics)])
    assert count_training(run, rebuilder.rebuild(run))[-1].updates == 18


@pytest.mark.parametrize("cohort", [None, "0", [3], [[0, 1.0, 2]], [[0, 7]], [["a", 1.0]]])
def test_counting_stops_at_a_cohort_that_makes_no_sense(tmp_path, rebuilder, cohort):
    metrics = lines(6)
    metrics[3]["cohort"] = cohort
    (run,) = read_runs([write_run(tmp_path / "a", metrics=metrics)])
    assert count_training(run, rebuilder.rebuild(run))[-1].round == 3


def unpack(layer):
    return zlib.decompress(base64.b64decode(layer["frames"]))


def test_grids_shrink_to_cells_of_means_and_bytes(tmp_path, rebuilder):
    (run,) = read_runs([write_run(tmp_path / "a", method="heterofl")])
    built = rebuilder.rebuild(run)
    frames = count_training(run, built)
    (view,) = pack([(0, built.plan, frames)])
    assert view["rounds"] == [frame.round for frame in frames]
    for layer in view["layers"].values():
        rows, columns = layer["cells"]
        assert max(rows, columns) <= 64
        assert len(unpack(layer)) == rows * columns * len(frames)
    # HeteroFL trains the first quarter of the units in every update and the last half in one of three.
    two_way = next(layer for layer in view["layers"].values() if layer["shape"] == [6, 12])
    last = unpack(two_way)[-72:]
    assert (last[0], last[-1]) == (255, 85)


def test_pooling_keeps_the_mean():
    grid = torch.arange(128 * 256).reshape(128, 256)
    assert pool(grid, 64).shape == (64, 64)
    assert pool(grid, 64).mean() == pytest.approx(float(grid.double().mean()))
    assert pool(torch.ones(3, 5), 64).shape == (3, 5)
    # blocks of 3, 3, 3, 4 columns; the page tells the reader the same bounds
    assert pool(torch.arange(13.0)[None], 4).tolist() == [[1.0, 4.0, 7.0, 10.5]]


def test_however_many_layers_and_entries_the_grids_fit(tmp_path, rebuilder):
    """Noise cannot be compressed: grids shrink until they fit."""
    (run,) = read_runs([write_run(tmp_path / "a")])
    plan = rebuilder.rebuild(run).plan
    noise = torch.Generator().manual_seed(0)
    (name,) = layers(plan, 1)
    frames = [Frame(r, 255, 1.0, 1.0, {name: torch.randint(1, 256, (64, 64), generator=noise)}) for r in range(1, 201)]
    for entries, side in ((1, 64), (8, 32)):
        views = pack([(place, plan, frames) for place in range(entries)])
        assert {tuple(view["layers"][name]["cells"]) for view in views} == {(side, side)}
        assert sum(len(view["layers"][name]["frames"]) for view in views) < 3_000_000


def test_the_stops_of_a_run_in_progress_stay_where_they_are(tmp_path, rebuilder):
    def stops(done):
        (run,) = read_runs([write_run(tmp_path / str(done), rounds=400, finished=False, done=done)])
        return [frame.round for frame in count_training(run, rebuilder.rebuild(run))]

    early, later = stops(40), stops(90)
    assert early[-1] == 40
    assert later[-1] == 90
    assert set(early[:-1]) <= set(later)


@pytest.mark.parametrize("rounds", [1, 2, 24, 25, 2500])
def test_the_slider_goes_from_the_first_round_to_the_last(rounds):
    stops = frame_rounds(rounds)
    assert (stops[0], stops[-1]) == (1, rounds)
    assert len(stops) <= 24
    assert stops == sorted(set(stops))


def test_layers_sliced_both_ways_come_first(tmp_path, rebuilder):
    (run,) = read_runs([write_run(tmp_path / "a")])
    plan = rebuilder.rebuild(run).plan
    (only,) = layers(plan, 1)
    assert plan.shapes[only] == (6, 12)
    assert best_layer(plan, layers(plan)) == only  # although the first layer, 12 x 64, is larger
    assert len(layers(plan)) == 3


def test_counting_stops_where_the_metrics_do_not_say_who_trained(tmp_path, rebuilder):
    metrics = lines(6)
    del metrics[3]["clients"]
    (run,) = read_runs([write_run(tmp_path / "a", metrics=metrics)])
    assert count_training(run, rebuilder.rebuild(run))[-1].round == 3
    (run,) = read_runs([write_run(tmp_path / "b", metrics=[{"round": 1, "clients": [1], "capacities": [7]}])])
    assert count_training(run, rebuilder.rebuild(run)) == []


def test_code_named_by_a_config_is_not_imported_unasked(tmp_path):
    folder = write_run(tmp_path / "a")
    text = (folder / "config.toml").read_text().replace('"mlp"', '"somewhere.else:factory"')
    (folder / "config.toml").write_text(text)
    (run,) = read_runs([folder])
    assert "does not import" in ModelRebuilder().rebuild(run)
    assert "somewhere" in ModelRebuilder(own_models=True).rebuild(run)


def test_a_checkpoint_of_another_model_is_noticed(tmp_path):
    from safetensors.torch import save_file

    folder = write_run(tmp_path / "a")
    save_file({"state.layer.weight": torch.zeros(2, 2)}, folder / "checkpoint.safetensors")
    (run,) = read_runs([folder])
    assert ModelRebuilder().rebuild(run) == "the checkpoint holds another model than the settings name"
    (folder / "checkpoint.safetensors").write_bytes(b"damaged")
    assert isinstance(ModelRebuilder().rebuild(run), Rebuilt)
