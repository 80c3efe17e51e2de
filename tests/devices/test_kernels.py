"""What kernels say they take is counted as they say it; by hand where there is no GPU, and measured where there is."""

import threading

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import fedwidth
from fedwidth.devices.budget import DeviceClass
from fedwidth.devices.kernels import Answer, Form, Kernels, Result, block_of, lay_flat
from fedwidth.devices.memory import cross_entropy, training_memory
from fedwidth.devices.peak import Living, Peak, peak_of_step
from fedwidth.errors import OptionError

aten = torch.ops.aten
CPU = torch.device("cpu")
MIB = 2**20
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


def nothing(operator, args, kwargs):
    return Answer()


def total(output):
    return output.sum()


def test_what_a_kernel_takes_passes_or_stays():
    # Inputs of 128 x 256 numbers are A bytes, the weight of 256 x 256 is 2 A. The highest point is the backward pass's
    # product: the inputs, the gradient of the weight, the loss and its gradient (a block of 512 bytes each), what this
    # product takes while it lasts, and what the first one has kept for good.
    inputs, passing, kept = 4 * 128 * 256, 3_000_000, 1_000_000
    asked = []

    def ask(operator, args, kwargs):
        asked.append(operator)
        if operator is not aten.mm.default:
            return Answer()
        return Answer(passing, kept if asked.count(operator) == 1 else 0)

    linear = nn.Linear(256, 256, bias=False)
    assert peak_of_step(linear, torch.zeros(2, 256), 128, total, ask=ask) == Peak(
        step=inputs + 2 * inputs + 2 * 512 + passing + kept, gradients=2 * inputs, kept=kept
    )
    assert asked.count(aten.mm.default) == 2
    assert aten.t.default not in asked, "views take nothing"


def test_what_stays_is_there_before_the_next_step_begins():
    # The highest point is the first product, with 9 MB beside its tensors. All later ones (one forward, three back)
    # keep 1 MB each for good, which in the second step is there when the first product is made.
    kept, passing = 1_000_000, 9_000_000

    def ask(operator, args, kwargs):
        if operator is not aten.mm.default:
            return Answer()
        return Answer(passing) if args[0].shape[-1] == 64 else Answer(0, kept)

    def first_alone(operator, args, kwargs):
        return ask(operator, args, kwargs)._replace(kept=0)

    layers = nn.Sequential(nn.Linear(64, 256, bias=False), nn.Linear(256, 256, bias=False))
    alone = peak_of_step(layers, torch.zeros(2, 64), 128, total, ask=first_alone)
    found = peak_of_step(layers, torch.zeros(2, 64), 128, total, ask=ask)
    assert found.kept == 4 * kept
    assert found.step == alone.step + found.kept


def test_gradients_are_added_up_in_place():
    # Where tensors have values, autograd adds a gradient to one that nobody else holds; without, it makes a third.
    block = 4 * 1024
    with FakeTensorMode(), Living(nothing) as living:
        one, other = torch.zeros(1024), torch.zeros(1024)
        living.going_back = True
        one = one + other
        assert (living.bytes, living.peak) == (2 * block, 2 * block)
        held = one + other
        assert living.bytes == 3 * block, "the summand lives on: the next call counts it"
        last = held.exp()
        assert living.peak == 4 * block
        del last


def test_blocks():
    assert [block_of(size) for size in (0, 1, 512, 513)] == [0, 512, 512, 1024]
    assert block_of(9 * MIB + 1) == 9 * MIB + 512
    assert block_of(13 * MIB) == 14 * MIB, "a rest of one is not given away"
    assert block_of(12 * MIB + 512) == 12 * MIB + 512, "a rest of nearly two is"


def recurrent():
    """An LSTM's arguments for cuDNN: five steps of two samples, three inputs, four hidden."""
    weights = [torch.zeros(shape) for shape in ((16, 3), (16, 4), (16,), (16,))]
    state = torch.zeros(1, 2, 4)
    flat = torch.zeros(16 * 9)
    return torch.zeros(5, 2, 3), weights, 4, flat, state, state.clone(), 2, 4, 0, 1, False, 0.0, True, False, [], None


def test_results_have_the_size_that_the_kernel_says():
    # What cuDNN keeps of a forward pass is empty without values.
    reserve = Result(Form((5000,), (1,), torch.uint8, CPU), 5000)

    def ask(operator, args, kwargs):
        return Answer(results=(None, None, None, reserve, None))

    with FakeTensorMode():
        given = recurrent()
        living = Living(ask)
        living.know(given)
        with living:
            made = aten._cudnn_rnn.default(*given)
        assert made[3].shape == (5000,)
        # Output of 5 x 2 x 4 numbers and two states of 2 x 4: a block each. The weights that come back were there.
        assert living.bytes == 3 * 512 + block_of(5000)
        del made
        assert living.bytes == 0


def test_results_lie_where_the_kernel_puts_them():
    seed = Result(Form((), (), torch.int64, torch.device("meta")), 8)
    with FakeTensorMode(), Living(lambda operator, args, kwargs: Answer(results=(seed,))):
        assert torch.zeros((), dtype=torch.int64).device.type == "meta"


def test_what_cannot_be_played_is_made_as_the_kernel_says():
    form = Form((3, 4), (4, 1), torch.float32, CPU)
    _, structure = torch.utils._pytree.tree_flatten((0, 0, 0, [0]))
    results = (Result(form, 48), Result(form, 48), Result(form, 48, given=True), Result(form, 48))
    answer = Answer(results=results, structure=structure)
    operator = aten._cudnn_rnn_backward.default

    def ask(asked, args, kwargs):
        return answer if asked is operator else Answer()

    with FakeTensorMode(), Living(ask) as living:
        inputs, weights, stride, flat, state, cell, *rest = recurrent()
        living.bytes = 0
        options = [*rest[:-1], None, torch.zeros(10, dtype=torch.uint8), [True] * 4]
        made = operator(inputs, weights, stride, flat, state, cell, inputs, inputs, None, None, *options)
        assert made[0].shape == (3, 4)
        assert made[3][0].shape == (3, 4)
        assert living.bytes == (1 + 3) * 512, "the reserve that was made for it, and three of the four results"


def test_weights_of_recurrent_layers_lie_in_one_tensor():
    layer = nn.GRU(3, 4, 2, bidirectional=True, bias=False)
    before = [weight.shape for weight in layer.parameters()]
    lay_flat(layer)
    assert [weight.shape for weight in layer.parameters()] == before
    assert len({weight.untyped_storage().data_ptr() for weight in layer.parameters()}) == 1
    room = sum(weight.numel() for weight in layer.parameters()) + 2 * 3 * 4 * 2 * 2
    assert layer.weight_hh_l0.untyped_storage().nbytes() == 4 * room, "with room for the biases it does not have"
    assert not layer._weights_have_changed()


@pytest.fixture
def gauges(monkeypatch):
    """A GPU's statistics: before, after the call, when its results are gone; and the highest."""
    taken = [1000, 3000, 1500] * 2
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: taken.pop(0))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 5000)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    return taken


@pytest.mark.filterwarnings("ignore:.*CUDA is not available")
def test_every_thread_asks_a_kernel_once(gauges):
    kernels = Kernels(CPU)
    with FakeTensorMode():
        x = torch.zeros(6, 4)[1:].t().expand(2, 4, 5)
    first = kernels(aten.exp.default, (x,), {})
    assert first[:2] == (2000, 500), "5000 - 3000 pass, 1500 - 1000 stay"
    [result] = first.results
    assert (result.form.shape, result.bytes, result.given) == ((2, 4, 5), 4 * 40, False)
    assert kernels(aten.exp.default, (x,), {}) == first._replace(kept=0)
    assert len(gauges) == 3, "it was asked once"
    other = threading.Thread(target=kernels, args=(aten.exp.default, (x,), {}))
    other.start()
    other.join()
    assert not gauges, "and once more by the other thread, which has workspaces of its own"


@pytest.mark.filterwarnings("ignore:.*CUDA is not available")
def test_kernels_that_cannot_be_asked(gauges):
    def too_large(x):
        raise torch.OutOfMemoryError

    def fails(x):
        raise RuntimeError("not with zeros\nand more")

    kernels, x = Kernels(CPU), torch.zeros(2)
    with pytest.raises(OptionError, match="alone does not fit the memory of a GPU: a smaller batch"):
        kernels(too_large, (x,), {})
    with pytest.warns(UserWarning, match="is not counted: not with zeros$"):
        assert kernels(fails, (x,), {}) == Answer()


@no_gpu
def test_without_a_gpu_one_line_says_so(capsys):
    from fedwidth.cli.entry import run_command

    model = nn.Sequential(nn.Linear(100, 10), nn.ReLU(), nn.Linear(10, 10))
    with pytest.raises(OptionError, match="asked of the GPU itself, and there is none here"):
        fedwidth.fit(model, torch.zeros(2, 100), memory="1GB", gpu=True)
    assert run_command(["fit", "mlp", "--memory", "1GB", "--gpu"]) != 0
    assert "there is none here" in capsys.readouterr().err


def test_the_command_says_what_does_not_go_with_a_gpu(capsys, tmp_path):
    from fedwidth.cli.entry import run_command

    file = tmp_path / "devices.toml"
    file.write_text("memory = '1GB'\n")
    assert run_command(["fit", "mlp", "--device", str(file), "--gpu"]) != 0
    assert "leave out --gpu" in capsys.readouterr().err


def test_classes_of_devices_with_a_gpu():
    assert DeviceClass.of("server", {"memory": "100MB", "gpu": True}).base == 0
    assert DeviceClass.of("server", {"memory": "1GB", "gpu": True, "base": "500MB"}).base == 500e6
    with pytest.raises(OptionError, match="gpu of device 'server' must be true or false"):
        DeviceClass.of("server", {"memory": "1GB", "gpu": "yes"})
    with pytest.raises(OptionError, match="played on cpu or cuda"):
        peak_of_step(nn.Linear(2, 2), torch.zeros(2, 2), 2, cross_entropy, device="meta")


@needs_gpu
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_on_a_gpu_a_step_takes_what_is_predicted(precision):
    def convolutional():
        return nn.Sequential(
            nn.Conv2d(3, 64, 3, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.Conv2d(64, 128, 3, padding=1, stride=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(128 * 16 * 16, 10),
        )

    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.deterministic, cudnn.allow_tf32, matmul.allow_tf32
    rough = precision != "float32"
    try:
        cudnn.deterministic, cudnn.allow_tf32, matmul.allow_tf32 = True, rough, rough
        inputs = torch.zeros(128, 3, 32, 32, device="cuda")
        predicted = training_memory(
            convolutional(), inputs[:2], batch=128, moments=0, device="cuda", precision=precision
        )
        start = torch.cuda.memory_allocated()
        module = convolutional().to("cuda")
        torch.cuda.reset_peak_memory_stats()
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=precision == "bf16", cache_enabled=False):
            loss = cross_entropy(module(inputs.clone()))
        loss.backward()
        torch.cuda.synchronize()
        measured = torch.cuda.max_memory_allocated() - start
    finally:
        cudnn.deterministic, cudnn.allow_tf32, matmul.allow_tf32 = before
    assert predicted.base == 0
    assert predicted.growth - predicted.received == pytest.approx(measured, rel=0.1)
