"""A real Ray: the embedded engines' results on one node and three, and after workers, nodes or the run were killed.

Slow (each test starts Ray or trains through it): `make test-ray`.
"""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from weakref import WeakKeyDictionary

import pytest
import torch
from torch import nn

from fedwidth.data import from_tensors
from fedwidth.engines import make_engine
from fedwidth.engines.ray.engine import MAX_LOSSES, RayEngine
from fedwidth.engines.ray.watcher import ENDED
from fedwidth.errors import ClientError, OptionError, UpdateError
from fedwidth.experiment import Experiment
from fedwidth.settings import DataSettings, DeviceSettings, RaySettings, Settings
from small_runs import contents, same, small, write_recipe

ray = pytest.importorskip("ray", reason="Ray is not installed: make test-ray")
pytestmark = pytest.mark.slow

TESTS = str(Path(__file__).parents[2])
METHODS = ("fedrolex", "heterofl", "fedbrb", "fedmosaic", "scaffold", "own_method:METHOD")
MANY = ("devices.per_round=6", "rounds=3")


def start_cluster():
    from ray.cluster_utils import Cluster

    return Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})


@pytest.fixture(scope="module", params=[1, 3], ids=["one node", "three nodes"])
def cluster(request):
    """So many emulated nodes: each has processes and an object store of its own, and finds the modules of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([TESTS, *filter(None, [os.environ.get("PYTHONPATH")])]))
        made = start_cluster()
        for _ in range(request.param - 1):
            made.add_node(num_cpus=1)
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def address(cluster):
    yield f"ray.address={cluster.address}"
    ray.shutdown()


@pytest.mark.parametrize("name", METHODS)
def test_the_same_state_as_embedded_bit_for_bit(tmp_path, address, name):
    changes = (f"method.name={name}", "server.weighting=samples", *MANY)
    Experiment(small(*changes, "engine=serial")).run(tmp_path / "serial")
    Experiment(small(*changes, "engine=ray", "ray.engine=serial", address)).run(tmp_path / "ray")
    assert contents(tmp_path / "ray") == contents(tmp_path / "serial")


@pytest.mark.parametrize("name", ["fedrolex", "fedbrb"])
def test_5_secure_sums_are_those_of_the_embedded_engine_bit_for_bit(tmp_path, address, name):
    """With clients that drop out, so that some shells stay closed."""
    secure = ("secure.enabled=true", "secure.min_clients=3", "devices.dropout=0.1")
    changes = (f"method.name={name}", *secure, *MANY)
    Experiment(small(*changes, "engine=serial")).run(tmp_path / "serial")
    Experiment(small(*changes, "engine=ray", "ray.engine=serial", address)).run(tmp_path / "ray")
    assert contents(tmp_path / "ray") == contents(tmp_path / "serial")


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("inner", ["vectorised", "cuda"])
def test_fast_engines_inside_agree_within_the_stated_tolerance(address, name, inner):
    changes = (f"method.name={name}", *MANY)
    embedded = Experiment(small(*changes, f"engine={inner}")).run()
    found = Experiment(small(*changes, "engine=ray", f"ray.engine={inner}", address)).run()
    for tensor, other in zip(embedded.server.state.values(), found.server.state.values(), strict=True):
        assert torch.allclose(tensor, other, rtol=1e-6, atol=1e-6)


def test_workers_share_a_round_and_all_of_them_report(address, cluster):
    experiment = Experiment(small("devices.per_round=6", "engine=ray", "ray.engine=serial", address))
    seen, puts, real = [], [], ray.put
    engine = make_engine(experiment.trainer)
    WATCHING[engine] = lambda done, clients: seen.append((done, clients))
    ray.put = lambda value: puts.append(value) or real(value)
    try:
        worked, nodes, rounds = set(), len([node for node in ray.nodes() if node["Alive"]]), 0
        deadline = time.monotonic() + 90  # on a busy machine some workers are not up before many rounds are over
        while rounds < 3 or (len(worked) < nodes and time.monotonic() < deadline):
            run_once(experiment, engine, rounds)
            rounds += 1
            assert seen[-6:] == [(n, 6) for n in range(1, 7)]
            worked |= {id(worker) for worker in engine.workers if worker.busy > 0}
        assert len(worked) == len(engine.workers) == nodes
        assert set(engine.costs.measured) == {1.0, 0.5, 0.25}
        assert len(puts) == rounds, "the state once a round, data and model not again"
    finally:
        ray.put = real
        engine.close()


WATCHING = WeakKeyDictionary()
"""Who is told of the answers of an engine."""


def run_once(experiment, engine, round=0):
    tasks = experiment.method.assign(experiment.plan, experiment.cohort(round), round, None, 1)
    return engine.run(experiment.first_state, tasks, round, watch=WATCHING.get(engine))


def after(experiment, engine, round=0):
    sums, report = run_once(experiment, engine, round)
    assert sum(cohort.clients for cohort in sums) == 6, "each client once"
    return experiment.method.aggregate(experiment.first_state, sums, experiment.plan), report


def at_first_answer(engine, act):
    """Call `act` with a worker that still holds work, as soon as one has answered."""
    done = []

    def watch(*_):
        busy = [worker for worker in engine.workers if worker.held]
        if busy and not done:
            done.append(busy[0])
            act(busy[0])

    WATCHING[engine] = watch
    return done


def test_a_killed_worker_is_replaced_and_nobody_counts_twice():
    """Ray started for the run alone, two workers on this machine."""
    experiment = Experiment(small("devices.per_round=6", "engine=ray", "ray.engine=serial", "workers=2"))
    engine = make_engine(experiment.trainer)
    try:
        expected, report = after(experiment, engine)
        killed = at_first_answer(engine, lambda worker: os.kill(worker.info.process, signal.SIGKILL))
        with pytest.warns(UserWarning, match="a Ray worker was lost"):
            found, again = after(experiment, engine)
        assert killed
        assert engine.lost == 1
        assert same(found, expected)
        assert again == report
        del WATCHING[engine]
        assert same(after(experiment, engine)[0], expected), "and the next round is as before"
        assert len(engine.workers) == 2
    finally:
        engine.close()
    assert not ray.is_initialized()


def have_begun(experiment, engine, workers):
    """Train until so many workers have begun: on a busy machine that takes a while, and only such a one can be lost."""
    deadline = time.monotonic() + 120

    def done():
        return [worker.info is not None for worker in engine.workers] == [True] * workers

    while not done() and time.monotonic() < deadline:
        after(experiment, engine)
    return done()


def test_a_killed_node_takes_nothing_with_it():
    cluster = start_cluster()
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    try:
        address = f"ray.address={cluster.address}"
        experiment = Experiment(small("devices.per_round=6", "engine=ray", "ray.engine=serial", address))
        engine = make_engine(experiment.trainer)
        expected, _ = after(experiment, engine)
        assert have_begun(experiment, engine, 3)
        killed = at_first_answer(engine, lambda _: cluster.remove_node(nodes[0], allow_graceful=False))
        with pytest.warns(UserWarning, match="a Ray worker was lost"):
            found = [after(experiment, engine)[0] for _ in range(4)]  # its worker may have held nothing at first
        assert killed
        assert engine.lost
        assert all(same(state, expected) for state in found)
        cluster.add_node(num_cpus=1)
        assert have_begun(experiment, engine, 3), "a new node is taken in"
        engine.close()
    finally:
        ray.shutdown()
        cluster.shutdown()


def own(model, **changes):
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    data = from_tensors(x, (x[:, 0] > 0).long(), x, (x[:, 0] > 0).long())
    settings = Settings(
        rounds=1,
        devices=DeviceSettings("a1", per_round=2),
        data=DataSettings(clients=4),
        engine="ray",
        ray=RaySettings(engine="serial"),
        workers=1,
    )
    return Experiment(replace(settings, **changes), model=model, data=data)


class Fails(nn.Module):
    """Works while it is traced and evaluated, fails in training: a worker's process ends, that of the run does not."""

    def __init__(self, how):
        super().__init__()
        self.how, self.home = how, os.getpid()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))

    def forward(self, x):
        if self.training and torch.is_grad_enabled():
            if self.how == "raise":
                raise RuntimeError("out of luck")
            if os.getpid() != self.home:
                os._exit(1)
        return self.net(x)


def test_a_failing_client_is_named():
    with pytest.raises(ClientError, match=r"round 0, client \d+, capacity 1, stage train: RuntimeError: out of luck"):
        own(Fails("raise")).run()


@pytest.mark.filterwarnings("ignore:a Ray worker was lost")
def test_a_client_that_kills_every_worker_is_named():
    message = rf"round 0, client \d+, capacity 1, stage train: {MAX_LOSSES} Ray workers were lost"
    with pytest.raises(ClientError, match=message):
        own(Fails("exit")).run()


def test_a_model_that_the_nodes_do_not_have_is_refused(address):
    """This file is not on their path; where Ray is started for the run alone it is."""
    with pytest.raises(
        OptionError, match=r"No module named 'test_ray_engine'\); what they are made of must be installed"
    ):
        own(Fails("raise"), ray=RaySettings(address=address.partition("=")[2], engine="serial")).run()


def test_a_refused_update_is_one_sentence():
    with pytest.raises(UpdateError, match=r"client \d+ .* not finite"):
        Experiment(small("training.lr=1e30", "training.clip=0", "engine=ray", "ray.engine=serial")).run()


def test_what_cannot_be_joined_or_placed_is_refused():
    with pytest.raises(OptionError, match=r"no Ray cluster could be joined at ray.address = '127.0.0.1:9'"):
        Experiment(small("engine=ray", "ray.address=127.0.0.1:9")).run()
    with pytest.raises(OptionError, match=r"ray.gpus = 0.5 fits on no node of the cluster: .* 0 GPUs"):
        Experiment(small("engine=ray", "ray.gpus=0.5")).run()
    assert not ray.is_initialized()


def test_a_cluster_joined_before_stays_joined():
    ray.init(address="local", num_cpus=1, include_dashboard=False)
    try:
        RayEngine(Experiment(small("engine=ray")).trainer).close()
        assert ray.is_initialized()
    finally:
        ray.shutdown()


def start(tmp_path, name, *more):
    recipe = write_recipe(tmp_path)
    changes = ["--set", "rounds=12", "--set", "ray.engine=serial", "--set", "evaluation.every=12", "--set", "workers=2"]
    command = [
        sys.executable,
        "-c",
        "from fedwidth.cli.entry import main; main()",
        "run",
        recipe,
        "--out",
        str(tmp_path / name),
        *changes,
        *more,
    ]
    with (tmp_path / "said").open("w") as said:
        return subprocess.Popen(command, start_new_session=True, stdout=said, stderr=said)


def wait_for_rounds(folder, rounds):
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        if (folder / "metrics.jsonl").exists() and len((folder / "metrics.jsonl").read_text().splitlines()) >= rounds:
            return
        time.sleep(0.05)
    raise TimeoutError


@pytest.mark.parametrize(
    ("how", "send", "saves"),
    [
        (signal.SIGKILL, os.killpg, False),
        (signal.SIGTERM, os.killpg, False),  # Ray's own processes end too, and may take the run with them
        (signal.SIGTERM, os.kill, True),
        (signal.SIGINT, os.killpg, True),  # as Ctrl-C in a terminal does; Ray's processes ignore it
    ],
)
def test_a_run_that_was_killed_or_stopped_goes_on_with_the_same_bits(tmp_path, how, send, saves):
    Experiment(small("rounds=12", "evaluation.every=12", "engine=serial")).run(tmp_path / "whole")
    run = start(tmp_path, "cut", "--engine", "ray")
    wait_for_rounds(tmp_path / "cut", 3)
    send(run.pid, how)
    run.wait(120)
    said = (tmp_path / "said").read_text()
    if saves:
        assert run.returncode == 1, said
        assert "everything is saved" in said
    assert start(tmp_path, "cut", "--engine", "ray", "--resume").wait(240) == 0, (tmp_path / "said").read_text()
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")
    lines = [json.loads(line)["round"] for line in (tmp_path / "cut" / "metrics.jsonl").read_text().splitlines()]
    assert lines == list(range(1, 13))


def children(process: int) -> dict[int, str]:
    """A process and all it started, with their command lines."""
    parents, lines = {}, {}
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parents[int(place.name)] = int((place / "stat").read_text().rsplit(")", 1)[1].split()[1])
            lines[int(place.name)] = (place / "cmdline").read_text().replace("\0", " ")
    found, new = {process}, {process}
    while new:
        new = {child for child, parent in parents.items() if parent in new} - found
        found |= new
    return {one: lines[one] for one in found if one in lines}


def listening(processes: dict[int, str]) -> dict[str, str]:
    """Addresses on which these processes listen, as the kernel writes them, and who does."""
    sockets = {}
    for process, line in processes.items():
        for descriptor in Path(f"/proc/{process}/fd").glob("*"):
            with suppress(OSError):
                sockets[os.readlink(descriptor)] = line
    found = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and (owner := sockets.get(f"socket:[{fields[9]}]")):
                found[fields[1]] = owner
    return found


LOOPBACK = ("0100007F:", "0000000000000000FFFF00000100007F:", "00000000000000000000000001000000:")
"""127.0.0.1, the same as IPv6 writes it, and ::1."""


def test_a_cluster_of_the_runs_own_listens_on_loopback_only():
    token = Path.home() / ".ray" / "auth_token"
    before = children(os.getpid())  # of tests before, some of which start a cluster in another way
    engine = make_engine(Experiment(small("engine=ray", "ray.engine=serial", "workers=2")).trainer)
    try:
        run_once(Experiment(small("devices.per_round=6")), engine)
        started = {process: line for process, line in children(os.getpid()).items() if process not in before}
        found = listening(started)
        assert len(found) >= 5, "raylet, the cluster's store, workers"
        assert {address: owner for address, owner in found.items() if not address.startswith(LOOPBACK)} == {}
        assert not token.exists() or token.stat().st_mode & 0o077 == 0
    finally:
        engine.close()
    assert ray._private.ray_constants.ENABLE_RAY_CLUSTER, "a cluster at an address is still joined as before"


def test_a_killed_raylet_is_one_line_and_the_run_is_resumed(tmp_path):
    Experiment(small("rounds=100", "evaluation.every=100", "engine=serial")).run(tmp_path / "whole")
    longer = ("--engine", "ray", "--set", "rounds=100", "--set", "evaluation.every=100")
    run = start(tmp_path, "cut", *longer)
    wait_for_rounds(tmp_path / "cut", 3)
    (raylet,) = (process for process, line in children(run.pid).items() if "raylet/raylet" in line)
    os.kill(raylet, signal.SIGKILL)
    assert run.wait(120) != 0
    deadline, own = time.monotonic() + 10, []
    while not own and time.monotonic() < deadline:
        own = [line for line in (tmp_path / "said").read_text().splitlines() if line.startswith("error:")]
    assert own == [f"error: {ENDED}"]
    assert start(tmp_path, "cut", *longer, "--resume").wait(240) == 0, (tmp_path / "said").read_text()
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")
