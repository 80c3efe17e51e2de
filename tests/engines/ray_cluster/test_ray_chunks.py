"""What the Ray engine is made of, without Ray: chunks, records, worker and merge give the serial engine's bits."""

import random
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedwidth.cli.entry import main
from fedwidth.core.aggregation import finalise
from fedwidth.core.tensor_bytes import TensorBytes
from fedwidth.engines import SerialEngine, make_engine
from fedwidth.engines.choice import choose_for_ray
from fedwidth.engines.ray.chunks import MAX_CHUNKS, split_round
from fedwidth.engines.ray.cluster import count_fitting
from fedwidth.engines.ray.merging import OrderedMerge
from fedwidth.engines.ray.messages import ChunkTasks
from fedwidth.engines.ray.worker import Worker, own_device
from fedwidth.engines.ray.worker_setup import WorkerSetup
from fedwidth.engines.transfer import EncodedIndex, encode
from fedwidth.errors import OptionError
from fedwidth.experiment import Experiment
from fedwidth.objectives import OBJECTIVES
from fedwidth.settings import RaySettings
from small_runs import same, small, write_recipe

CPU = torch.device("cpu")
METHODS = ("fedrolex", "heterofl", "fedbrb", "feddropout")


def experiment_of(*changes):
    return Experiment(small("devices.per_round=6", *changes))


def tasks_of(experiment, round=0):
    return experiment.method.assign(experiment.plan, experiment.cohort(round), round, None, 1)


def train_parcels(experiment, inner, *, workers=1, order=0):
    """A round by the Ray engine's own parts: chunks trained by workers in any order, answers entered in any order."""
    state, tasks = experiment.first_state, tasks_of(experiment)
    team = [Worker() for _ in range(workers)]
    for worker in team:
        worker.prepare(WorkerSetup.of(experiment.trainer), inner, "cpu")
    draw = random.Random(order)
    merge = OrderedMerge(tasks, split_round(tasks, inner), CPU)
    encoded = encode({name: tensor for name, tensor in state.items() if name not in experiment.plan.tied})
    for chunk in draw.sample(merge.chunks, len(merge.chunks)):
        work = ChunkTasks.of([tasks[n] for n in chunk.tasks], 0, 1)
        merge.add(chunk, draw.choice(team).train(encoded, work))
    assert merge.complete
    return merge.sums(), merge.report()


def new_state(experiment, sums):
    return experiment.method.aggregate(experiment.first_state, sums, experiment.plan)


@pytest.mark.parametrize("name", METHODS)
def test_up_to_64_clients_are_summed_as_the_serial_engine_sums_them(name):
    experiment = experiment_of(f"method.name={name}", "devices.capacities=a1-b1-c2", "server.weighting=samples")
    expected, report = SerialEngine(experiment.trainer).run(experiment.first_state, tasks_of(experiment), 0)
    for workers, order in ((1, 0), (3, 1)):
        sums, found = train_parcels(experiment, "serial", workers=workers, order=order)
        assert [s.index.key for s in sums] == [s.index.key for s in expected]
        assert [s.clients for s in sums] == [s.clients for s in expected]
        assert all(same(a.mean, b.mean) for a, b in zip(sums, expected, strict=True))
        assert same(new_state(experiment, sums), new_state(experiment, expected))
        assert found == report


@pytest.mark.parametrize("inner", ["serial", "vectorised", "cuda"])
def test_neither_workers_nor_their_order_change_a_bit_of_large_rounds(inner, monkeypatch):
    monkeypatch.setitem(MAX_CHUNKS, inner, 4)  # so that 24 clients are already many
    changes = ("data.clients=24", "devices.per_round=24", "devices.capacities=a1-b1", "model.options={hidden=[4]}")
    experiment = experiment_of(*changes)
    first, _ = train_parcels(experiment, inner)
    again, _ = train_parcels(experiment, inner, workers=3, order=5)
    assert all(same(a.mean, b.mean) for a, b in zip(first, again, strict=True))
    serial, _ = SerialEngine(experiment.trainer).run(experiment.first_state, tasks_of(experiment), 0)
    expected, found = new_state(experiment, serial), new_state(experiment, first)
    for name, tensor in expected.items():  # the stated tolerance: another order of sums in single precision
        assert torch.allclose(tensor, found[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", METHODS)
def test_fast_engines_inside_agree_with_themselves_outside(name):
    for inner in ("vectorised", "cuda"):
        experiment = experiment_of(f"method.name={name}", f"engine={inner}")
        sums, _ = make_engine(experiment.trainer).run(experiment.first_state, tasks_of(experiment), 0)
        found, _ = train_parcels(experiment, inner, workers=2)
        expected = experiment.method.aggregate(experiment.first_state, sums, experiment.plan)
        for tensor, other in zip(expected.values(), new_state(experiment, found).values(), strict=True):
            assert torch.allclose(tensor, other, rtol=1e-6, atol=1e-6)


@given(st.lists(st.sampled_from([1.0, 0.5, 0.25]), min_size=1, max_size=150), st.sampled_from(sorted(MAX_CHUNKS)))
@settings(deadline=None, max_examples=40)
def test_every_task_is_in_one_parcel_and_equal_indexes_in_one_lane(capacities, inner):
    experiment = shared_experiment()
    tasks = experiment.method.assign(experiment.plan, list(enumerate(capacities)), 0)
    chunks = split_round(tasks, inner)
    assert sorted(n for chunk in chunks for n in chunk.tasks) == list(range(len(tasks)))
    lanes, last = {}, {}
    for chunk in chunks:
        assert chunk.tasks[0] > last.get(chunk.merge_group, -1)
        last[chunk.merge_group] = chunk.tasks[-1]
        for number in chunk.tasks:
            assert lanes.setdefault(tasks[number].index.key, chunk.merge_group) == chunk.merge_group
    if len(tasks) <= 64 and inner == "serial":
        assert all(len(chunk.tasks) == 1 for chunk in chunks)
    assert len(chunks) <= MAX_CHUNKS[inner] + len(last)


_shared = []


def shared_experiment():
    if not _shared:
        _shared.append(experiment_of())
    return _shared[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_packed_tensors_keep_dtype_shape_and_bits(dtype, shape):
    tensor = (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 3).to(dtype)
    again = TensorBytes.of(tensor.t() if shape == (2, 3) else tensor).tensor()
    assert again.dtype == dtype
    assert torch.equal(again, tensor.t() if shape == (2, 3) else tensor)


@pytest.mark.parametrize("name", METHODS)
def test_an_index_travels_without_its_plan(name):
    experiment = experiment_of(f"method.name={name}")
    for task in tasks_of(experiment):
        again = EncodedIndex.of(task.index).index(experiment.plan)
        assert again.key == task.index.key
        assert all(torch.equal(a, b) for n in again for a, b in zip(again[n], task.index[n], strict=True))


def test_classes_a_client_lacks_weigh_nothing_also_where_a_flat_engine_sums():
    """A flat engine keeps a weight for every element; on the way one number per class is left."""
    experiment = experiment_of("data.partition_options={per_client=2}")
    for inner in ("serial", "vectorised"):
        sums, _ = train_parcels(experiment, inner)
        for cohort in sums:
            weights = {n: w for n, w in cohort.weight.items() if isinstance(w, torch.Tensor)}
            assert weights
            for name, weight in weights.items():
                dims = [d for n, d in experiment.plan.label_axes if n == name]
                assert [n for d, n in enumerate(weight.shape) if d not in dims] == [1] * (weight.dim() - len(dims))
                assert weight.shape[dims[0]] == 10
                assert float(weight.min()) == 0.0
        finalise(experiment.first_state, sums, experiment.plan)


def test_how_many_workers_fit_on_a_node():
    assert count_fitting({"CPU": 2.0}, 1.0, 0.0) == 2
    assert count_fitting({"CPU": 2.0}, 0.1, 0.0) == 20
    assert count_fitting({"CPU": 16.0, "GPU": 1.0}, 1.0, 0.25) == 4
    assert count_fitting({"CPU": 16.0}, 1.0, 0.25) == 0


def test_the_engine_inside():
    assert choose_for_ray(experiment_of("engine=ray").trainer) == ("vectorised", "cpu")
    assert choose_for_ray(experiment_of("engine=ray", "ray.engine=serial").trainer) == ("serial", "cpu")
    assert choose_for_ray(experiment_of("engine=ray", "ray.gpus=0.5").trainer) == ("cuda", "cuda")
    many = experiment_of("engine=ray", "ray.gpus=0.5", "devices.per_round=6", "devices.capacities=a1").trainer
    assert choose_for_ray(many) == ("cuda", "cuda")  # without a trial, for which the driver might have no GPU
    with pytest.warns(UserWarning, match="one client at a time"):
        found = choose_for_ray(experiment_of("engine=ray", "ray.engine=vectorised", "method.name=fjord").trainer)
    assert found == ("serial", "cpu")
    with pytest.raises(OptionError, match=r"ray.gpus is 2, but a worker trains on one GPU: give at most 1"):
        choose_for_ray(experiment_of("engine=ray", "ray.gpus=2").trainer)


class Recurrent(torch.nn.Module):
    """Slots train it on a processor, but not on a GPU."""

    def __init__(self):
        super().__init__()
        self.cells = torch.nn.GRU(6, 8, batch_first=True)
        self.head = torch.nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.cells(x[:, None])[0][:, -1])


def test_what_only_a_gpu_cannot_do_is_seen_where_the_driver_has_none():
    trainer = experiment_of("engine=ray").trainer
    asked = {gpus: replace(trainer.settings, ray=RaySettings(gpus=gpus, engine="cuda")) for gpus in (0.0, 0.5)}
    model = Recurrent()
    assert choose_for_ray(replace(trainer, model=model, settings=asked[0.0])) == ("cuda", "cpu")
    with pytest.warns(UserWarning, match="'cells' needs its weights in cuDNN's own order"):
        assert choose_for_ray(replace(trainer, model=model, settings=asked[0.5])) == ("serial", "cuda")


def test_a_worker_trains_on_the_gpu_it_was_given(monkeypatch):
    """Ray hides all others, so it is the first a worker sees. Without any, one sentence says which, where and why."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert own_device("cpu") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert own_device("cuda") == torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(OptionError, match=r"^Ray gave a worker GPU 3 of .* finds no GPU there: .* set ray.gpus = 0"):
        own_device("cuda")


def test_without_ray_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(OptionError, match=r"needs the package ray: pip install 'fedwidth\[ray\]'"):
        make_engine(experiment_of("engine=ray").trainer)


def test_an_address_belongs_to_ray(capsys):
    with pytest.raises(SystemExit, match="^2$"):
        main(["run", "--engine", "serial", "--ray-address", "auto"])
    assert "--ray-address belongs to --engine ray" in capsys.readouterr().err


def test_ray_and_flower_are_not_imported_unless_used(tmp_path):
    for name in ("ray", "flwr"):  # also where they are not installed they could be
        (tmp_path / f"{name}.py").touch()
    code = (
        f"import sys; sys.path.append({str(tmp_path)!r})\n"
        "from fedwidth.cli.entry import main\n"
        f"try: main(['run', {write_recipe(tmp_path)!r}, '--set', 'engine=auto', '--out', {str(tmp_path / 'run')!r}])\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "print({name.split('.')[0] for name in sys.modules} & {'ray', 'flwr'})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "set()"


def test_workers_train_for_the_objective_of_the_run():
    trainer = replace(experiment_of().trainer, objective=OBJECTIVES["regression"])
    assert WorkerSetup.of(trainer).trainer(CPU).objective == OBJECTIVES["regression"]
