"""Shapes, parameter counts and the laws every built-in model must keep."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap

import fedwidth
from fedwidth import models
from fedwidth.errors import DataError, OptionError

SMALL = {
    "mlp": {"data_shape": (1, 8, 8), "hidden": (12, 6)},
    "cnn": {"data_shape": (1, 8, 8), "widths": (4, 6)},
    "lenet": {"data_shape": (3, 16, 16), "widths": (4, 6), "hidden": (8, 4)},
    "preresnet18": {"data_shape": (3, 8, 8), "widths": (4, 4, 6, 8)},
    "transformer": {"vocabulary": 30, "embedding": 8, "heads": 2, "head_size": 4, "hidden": 12, "layers": 2},
}


HALF = {
    "mlp": {"hidden": (6, 3)},
    "cnn": {"widths": (2, 3)},
    "lenet": {"widths": (2, 3), "hidden": (4, 2)},
    "preresnet18": {"widths": (2, 2, 3, 4)},
    "transformer": {"embedding": 4, "head_size": 2, "hidden": 6},
}


def small(name, **extra):
    return models.build(name, **{**SMALL[name], **extra})


def batch(name, samples=4, seed=1):
    generator = torch.Generator().manual_seed(seed)
    if name == "transformer":
        return torch.randint(30, (samples, 7), generator=generator)
    return torch.randn(samples, *SMALL[name]["data_shape"], generator=generator)


def parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


def test_thesis_mlp_is_784_128_32_10():
    model = models.build("mlp")
    assert parameters(model) == (784 * 128 + 128) + (128 * 32 + 32) + (32 * 10 + 10)
    assert model(torch.zeros(3, 1, 28, 28)).shape == (3, 10)


@pytest.mark.parametrize(
    ("rate", "expected"), [(1, 11_172_170), (1 / 2, 2_796_714), (1 / 4, 701_018), (1 / 8, 176_178), (1 / 16, 44_510)]
)
def test_preresnet18_has_the_papers_parameters(rate, expected):
    model = models.build("preresnet18", widths=[math.ceil(width * rate) for width in (64, 128, 256, 512)])
    assert parameters(model) == expected


def test_preresnet18_with_group_norm_treats_samples_alone_and_its_parts_are_narrower_models_of_the_kind():
    options = {"data_shape": (3, 16, 16), "norm": "group"}
    model = models.build("preresnet18", widths=(16, 16, 32, 32), **options)
    images = torch.randn(4, 3, 16, 16)
    torch.testing.assert_close(model(images)[:1], model(images[:1]))  # in training, too: no statistics of the batch
    plan = fedwidth.trace(model, images)
    part = fedwidth.method("heterofl").select(plan, capacity=1 / 4)
    narrow = models.build("preresnet18", widths=(4, 4, 8, 8), **options)
    assert part.shapes == {name: tuple(tensor.shape) for name, tensor in narrow.state_dict().items()}
    # A part keeps the first units of each group of channels: 4 groups of 4 channels keep channels 0, 4, 8 and 12.
    assert part["stem.weight"][0].tolist() == [0, 4, 8, 12]


def test_lenet_is_niid_benchs_simple_cnn():
    """3 -> 6 -> 16 channels, 5 x 5 pixels are left of 32 x 32, then 120, 84 and 10."""
    model = models.build("lenet")
    linear = (400 * 120 + 120) + (120 * 84 + 84) + (84 * 10 + 10)
    assert parameters(model) == (6 * 75 + 6) + (16 * 150 + 16) + linear == 62_006
    with pytest.raises(OptionError, match="at least 16 x 16 pixels"):
        models.build("lenet", data_shape=(1, 8, 8))


PUBLISHED = {"vocabulary": 10_000, "positions": 64, "activation": "gelu", "mask_token": True}


@pytest.mark.parametrize(
    ("rate", "expected"),
    [(1, 4_374_416), (1 / 2, 1_745_744), (1 / 4, 766_256), (1 / 8, 360_224), (1 / 16, 178_136)],
)
def test_transformer_with_the_published_options_has_the_published_parameters(rate, expected):
    sizes = {"embedding": int(128 * rate), "head_size": int(16 * rate), "hidden": int(2048 * rate)}
    assert parameters(models.build("transformer", **PUBLISHED, **sizes)) == expected


@pytest.mark.parametrize("name", models.names())
def test_half_of_a_model_is_the_model_built_at_half_width(name):
    """Traced, sliced and narrowed: the same tensors in the same shapes, and the same function of them."""
    model = small(name).eval()
    plan = fedwidth.trace(model, batch(name))
    counts = {group: units.size // 2 for group, units in plan.groups.items()}
    narrow = fedwidth.narrow(model, plan, fedwidth.Index.of_units(plan, {g: range(n) for g, n in counts.items()}))
    built = small(name, **HALF[name]).eval()
    built.load_state_dict(narrow.state_dict())
    assert torch.equal(built(batch(name)), narrow(batch(name)))
    assert not plan.unknown_operators


@pytest.mark.parametrize("name", models.names())
def test_the_plan_of_a_model_passes_its_own_check(name):
    model = small(name)
    fedwidth.trace(model, batch(name)).check(model, batch(name))


def test_transformer_defaults_are_the_papers():
    width, inner, hidden, vocabulary = 128, 8 * 12, 2048, 10_004
    attention = 3 * (width * inner + inner) + inner * width + width
    forward = width * hidden + hidden + hidden * width + width
    decoder = width * width + width + 2 * width + width * vocabulary + vocabulary
    expected = (vocabulary + 20) * width + 2 * width + 3 * (attention + forward + 4 * width) + decoder
    assert parameters(models.build("transformer")) == expected


@pytest.mark.parametrize(
    ("shape", "sides"), [((1, 28, 28), 3), ((3, 32, 32), 4), ((1, 8, 8), 2), ((1, 2, 2), 2), ((1, 5, 9), 2)]
)
def test_cnn_pools_as_far_as_the_image_allows(shape, sides):
    model = models.build("cnn", data_shape=shape, widths=(2, 3, 4, 5), classes=7)
    features = model.features(torch.zeros(1, *shape))
    assert features.shape[1] == 5
    assert min(features.shape[2:]) == sides
    assert model(torch.zeros(1, *shape)).shape == (1, 7)  # training mode, one sample: still has statistics


@pytest.mark.parametrize("name", models.names())
def test_output_runs_over_the_classes(name):
    fact = {"vocabulary": 9} if name == "transformer" else {"classes": 9}
    output = small(name, **fact)(batch(name).clamp(max=8))
    assert output.shape == ((4, 7, 9) if name == "transformer" else (4, 9))


@pytest.mark.parametrize("name", models.names())
def test_classifier_bias_starts_at_zero_and_norms_at_identity(name):
    model = small(name)
    assert not model.classifier.bias.any()
    assert model.classifier.weight.any()
    for module in model.modules():
        if isinstance(module, (nn.BatchNorm2d, nn.LayerNorm)):
            assert (module.weight == 1).all()
            assert (module.bias == 0).all()


@pytest.mark.parametrize("name", models.names())
def test_a_copy_gives_the_same_output(name):
    model = small(name).eval()
    assert torch.equal(copy.deepcopy(model)(batch(name)), model(batch(name)))


@pytest.mark.parametrize("name", models.names())
def test_training_many_clients_with_vmap_equals_one_by_one(name):
    options = {"dropout": 0.0} if name == "transformer" else {}
    clients = [small(name, seed=seed, **options).double().train() for seed in range(3)]
    states, buffers = stack_module_state(clients)
    inputs = torch.stack([batch(name, seed=seed) for seed in range(3)])
    if inputs.is_floating_point():
        inputs = inputs.double()

    def loss(state, buffer, x):
        return functional_call(clients[0], (state, buffer), (x,)).square().mean()

    together = vmap(grad(loss))(states, buffers, inputs)
    for number, client in enumerate(clients):
        client(inputs[number]).square().mean().backward()
        for key, parameter in client.named_parameters():
            torch.testing.assert_close(together[key][number], parameter.grad)
    # Training wrote to no buffer.
    untouched = small(name, **options).double().state_dict()
    for key, _ in clients[0].named_buffers():
        assert torch.equal(clients[0].state_dict()[key], untouched[key])


def test_dropout_of_the_transformer_works_under_vmap():
    model = small("transformer", dropout=0.5).train()
    states, buffers = stack_module_state([model, model])
    x = batch("transformer")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        call = vmap(lambda p, b: functional_call(model, (p, b), (x,)), randomness="different")
        first, second = call(states, buffers)
    assert not torch.equal(first, second)


def test_transformer_looks_only_back():
    model = small("transformer").eval()
    tokens = batch("transformer")
    changed = tokens.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 30
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.equal(before[:, 5:], after[:, 5:])


def test_transformer_refuses_longer_sequences_than_it_has_positions():
    with pytest.raises(DataError, match="21 tokens, but the model has 20 positions"):
        small("transformer")(torch.zeros(1, 21, dtype=torch.long))


def test_transformer_activation_is_an_option():
    relu, gelu = small("transformer").eval(), small("transformer", activation="gelu").eval()
    assert all(torch.equal(a, b) for a, b in zip(relu.parameters(), gelu.parameters(), strict=True))
    assert not torch.equal(relu(batch("transformer")), gelu(batch("transformer")))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mlp", {"hidden": [12, 0]}, "every number of hidden must be a whole number of at least 1, not 0"),
        ("mlp", {"hidden": "12"}, "hidden must be a list of whole numbers, not '12'"),
        ("mlp", {"classes": True}, "classes must be a whole number of at least 1, not True"),
        ("cnn", {"data_shape": (64,)}, r"data_shape must be \(channels, height, width\) of an image, not \[64\]"),
        ("cnn", {"widths": []}, "widths must be a list of whole numbers"),
        ("preresnet18", {"widths": [8, 8]}, r"widths must be four numbers, one per stage, not \[8, 8\]"),
        ("preresnet18", {"norm": "layer"}, "norm must be 'batch' or 'group', not 'layer'"),
        (
            "preresnet18",
            {"norm": "group", "widths": [8, 8, 8, 6]},
            r"with group norm widths must be multiples of 4, not \[8, 8, 8, 6\]",
        ),
        ("transformer", {"activation": "tanh"}, "activation must be 'relu' or 'gelu', not 'tanh'"),
        ("transformer", {"dropout": 1.0}, "dropout must be a number of at least 0 and below 1, not 1.0"),
        ("transformer", {"heads": 2.5}, "heads must be a whole number of at least 1, not 2.5"),
    ],
)
def test_bad_sizes_are_named(name, options, message):
    with pytest.raises(OptionError, match=message):
        models.build(name, **options)
