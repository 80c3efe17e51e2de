"""Workers with shares of GPUs. Ray counts GPUs that are only stated, so placement is tested without any.

What needs real ones is skipped where there are none; on a machine with Ray and a GPU, run it with
`pytest -m slow -rs tests/engines/ray_cluster/test_ray_gpu.py`. Slow: `make test-ray`.
"""

from collections import Counter

import pytest
import torch

from fedwidth.engines import make_engine
from fedwidth.engines.ray.engine import RayEngine
from fedwidth.errors import OptionError
from fedwidth.experiment import Experiment
from small_runs import same, small

ray = pytest.importorskip("ray", reason="Ray is not installed: make test-ray")
pytestmark = pytest.mark.slow

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU on this machine")
METHODS = ("fedrolex", "heterofl", "fedbrb")
HALVES = ("devices.per_round=6", "engine=ray", "ray.gpus=0.5", "ray.cpus=0.5")


@pytest.fixture
def two_gpus():
    """A cluster that says it has two GPUs and two processors."""
    ray.init(address="local", num_cpus=2, num_gpus=2, include_dashboard=False, logging_level="WARNING")
    yield
    ray.shutdown()


def run_once(experiment, engine):
    tasks = experiment.method.assign(experiment.plan, experiment.cohort(0), 0, None, 1)
    sums, report = engine.run(experiment.first_state, tasks, 0)
    return experiment.method.aggregate(experiment.first_state, sums, experiment.plan), report


def wait_for(engine, experiment, workers):
    """Train until so many workers are there; the state of the last round."""
    for _ in range(40):
        state, _ = run_once(experiment, engine)
        if sum(worker.info is not None for worker in engine.workers) >= workers:
            return state
    raise TimeoutError


def test_half_a_gpu_each_puts_four_workers_on_two(two_gpus):
    """Scheduled by Ray as on real GPUs; they train on processors, since the GPUs are only stated."""
    experiment = Experiment(small(*HALVES))
    expected, _ = run_once(experiment, make_engine(Experiment(small("devices.per_round=6")).trainer))
    engine = RayEngine(experiment.trainer, inner=("serial", "cpu"))
    try:
        assert same(wait_for(engine, experiment, 4), expected)
        assert len(engine.workers) == 4
        assert Counter(worker.info.gpu for worker in engine.workers) == {"0": 2, "1": 2}
        assert len({worker.info.process for worker in engine.workers}) == 4
        assert ray.available_resources().get("GPU", 0) == 0
    finally:
        engine.close()


@pytest.mark.skipif(torch.cuda.is_available(), reason="PyTorch finds a GPU on this machine")
def test_a_node_whose_pytorch_finds_no_gpu_is_one_sentence(two_gpus):
    with pytest.raises(
        OptionError, match=r"Ray gave a worker GPU [01] of .* finds no GPU there: .* ray.gpus = 0"
    ) as why:
        Experiment(small(*HALVES)).run()
    assert "\n" not in str(why.value)


@needs_gpu
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("device", ["cpu", "cuda"], ids=["driver on the cpu", "driver on the gpu"])
def test_slots_inside_workers_that_share_a_gpu_agree_with_the_cuda_engine(name, device):
    """Two workers on one GPU, the cuda engine with captured steps in each, against that engine without Ray."""
    base = (f"method.name={name}", "devices.per_round=6", "precision=float32", "rounds=3")
    embedded = Experiment(small(*base, "engine=cuda", "device=cuda")).run()
    shared = ("engine=ray", "ray.gpus=0.5", "ray.cpus=0.5", "workers=2", f"device={device}")
    found = Experiment(small(*base, *shared)).run()
    for tensor, other in zip(embedded.server.state.values(), found.server.state.values(), strict=True):
        assert other.device.type == device, "sums are merged where the driver's state is"
        assert torch.allclose(tensor.cpu(), other.cpu(), rtol=1e-5, atol=1e-6)


@needs_gpu
def test_workers_on_gpus_train_there():
    experiment = Experiment(small("devices.per_round=6", "engine=ray", "ray.gpus=0.5", "ray.cpus=0.5", "workers=2"))
    engine = make_engine(experiment.trainer)
    try:
        assert (engine.inner, engine.device) == ("cuda", "cuda")
        first = wait_for(engine, experiment, 2)
        assert all(worker.info.gpu for worker in engine.workers)
        assert same(first, run_once(experiment, engine)[0]), "who trained what changes no bit"
    finally:
        engine.close()
