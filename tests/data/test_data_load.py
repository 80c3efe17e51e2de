from __future__ import annotations

import inspect

import pytest
import torch

from fedwidth.data import SETS, load, make_partition, options_of
from fedwidth.errors import OptionError


def test_digits() -> None:
    data, again = load("digits"), load("digits")
    assert torch.equal(data.train.inputs, again.train.inputs)
    assert (len(data.train) + len(data.test), data.shape, data.classes) == (1797, (1, 8, 8), 10)
    assert data.train.inputs.dtype == torch.uint8
    assert int(data.train.inputs.max()) == 16
    whole = torch.bincount(torch.cat([data.train.targets, data.test.targets]))
    share = torch.bincount(data.test.targets) / whole
    assert float(share.min()) > 0.19
    assert float(share.max()) < 0.201
    seen = data.transform(data.train.inputs)
    assert float(seen.mean()) == pytest.approx(0, abs=1e-5)
    assert float(seen.std()) == pytest.approx(1, abs=1e-5)
    assert data.example(3).shape == (3, 1, 8, 8)


def test_unknown_names() -> None:
    with pytest.raises(OptionError, match="unknown data set 'cifar' \\(did you mean 'cifar10'"):
        load("cifar")
    with pytest.raises(OptionError, match="unknown option of data set 'cifar10' 'augmnt' \\(did you mean 'augment'"):
        load("cifar10", augmnt=False)
    with pytest.raises(OptionError, match="unknown data set"):
        options_of("nothing")


def test_every_option_has_a_default_and_is_by_name() -> None:
    for name, loader in SETS.items():
        for parameter in inspect.signature(loader).parameters.values():
            assert parameter.default is not inspect.Parameter.empty, name
            assert parameter.name == "root" or parameter.kind is inspect.Parameter.KEYWORD_ONLY, name


def test_synthetic_text() -> None:
    options = {"users": 30, "per_user": 40, "test_per_user": 2, "words": 100, "length": 7}
    data = load("synthetic_text", **options)
    assert (len(data.train), len(data.test), data.shape, data.classes) == (1200, 60, (7,), 104)
    assert torch.equal(data.train.inputs[:, 1:], data.train.targets[:, :-1])
    assert int(data.train.targets.min()) >= 4
    assert int(data.train.targets.max()) < data.classes
    follows = (7 * (data.train.inputs[:, 1:].long() - 4) + 3) % 100 + 4 == data.train.targets[:, 1:]
    assert 0.45 < float(follows.float().mean()) < 0.6
    assert make_partition(data, "natural").sizes.tolist() == [40] * 30
    assert torch.equal(data.train.inputs, load("synthetic_text", **options).train.inputs)
    assert not torch.equal(data.train.inputs, load("synthetic_text", **options, seed=2).train.inputs)
    with pytest.raises(OptionError, match="users must be"):
        load("synthetic_text", users=0)
