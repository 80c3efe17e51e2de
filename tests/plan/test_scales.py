"""Numbers that come from a width follow it; numbers that only look like it stay."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedwidth.core.index import Index
from fedwidth.core.narrow import narrow, skeleton
from fedwidth.core.submodel import state_of
from fedwidth.plan.plan import Plan
from fedwidth.plan.trace import trace

Score = Callable[[nn.Module, Tensor, Tensor], Tensor]


def half(model: nn.Module, plan: Plan) -> nn.Module:
    return narrow(model, plan, Index.of_units(plan, {name: range(n) for name, n in plan.counts(0.5).items()}))


class Attention(nn.Module):
    """One head; `score` says how queries and keys are compared."""

    def __init__(self, size: int, score: Score) -> None:
        super().__init__()
        self.scale = size**-0.5
        self.norm = math.sqrt(size)
        self.quarter = size**-0.25
        self.head_size = size
        self.score = score
        self.query, self.key, self.value = (nn.Linear(6, size) for _ in range(3))
        self.out = nn.Linear(size, 5)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.query(x), self.key(x), self.value(x)
        return self.out(self.score(self, q, k).softmax(-1) @ v)


def fused(self: nn.Module, q: Tensor, k: Tensor) -> Tensor:
    eye = torch.eye(k.shape[1]).expand(len(k), -1, -1)
    return F.scaled_dot_product_attention(q[:, None], k[:, None], eye[:, None], scale=self.scale)[:, 0]


def with_alpha(self: nn.Module, q: Tensor, k: Tensor) -> Tensor:
    return torch.baddbmm(q.new_zeros(1, 1, 1), q, k.mT, beta=0, alpha=self.scale)


# Which attribute each changes.
SCORES: dict[str, tuple[Score, str]] = {
    "scores times scale": (lambda self, q, k: q @ k.mT * self.scale, "scale"),
    "scores by norm": (lambda self, q, k: q @ k.mT / self.norm, "norm"),
    "queries times scale": (lambda self, q, k: (q * self.scale) @ k.mT, "scale"),
    "keys by norm": (lambda self, q, k: q @ (k / self.norm).mT, "norm"),
    "reciprocal of norm": (lambda self, q, k: q @ k.mT * (1 / self.norm), "norm"),
    "in place": (lambda self, q, k: (q @ k.mT).mul_(self.scale), "scale"),
    "both by a quarter": (lambda self, q, k: (q * self.quarter) @ (k * self.quarter).mT, "quarter"),
    "einsum": (lambda self, q, k: torch.einsum("bqd,bkd->bqk", q, k) * self.scale, "scale"),
    "fused": (fused, "scale"),
    "alpha": (with_alpha, "scale"),
    "root of an integer": (lambda self, q, k: q @ k.mT / math.sqrt(self.head_size), "head_size"),
    "power of an integer": (lambda self, q, k: q @ k.mT * self.head_size**-0.5, "head_size"),
}


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("size", [16, 28])
def test_attention_is_scaled_by_its_own_width(name: str, size: int) -> None:
    score, attribute = SCORES[name]
    torch.manual_seed(0)
    model, inputs = Attention(size, score), torch.randn(2, 7, 6)
    plan = trace(model, inputs)
    plan.check(model, inputs)
    assert [str(a) for a in plan.attributes if a.module == ""] == [attribute]
    assert f"  {attribute} " in str(plan)
    assert not plan.left_alone
    small, reference = half(model, plan), Attention(size // 2, score)
    assert getattr(small, attribute) == getattr(reference, attribute)
    reference.load_state_dict(small.state_dict())
    assert torch.equal(small(inputs), reference(inputs))
    whole = narrow(model, plan, Index.whole(plan))
    assert getattr(whole, attribute) == getattr(model, attribute)
    assert torch.equal(whole(inputs), model(inputs))


class Fixed(nn.Module):
    """Numbers that happen to be a root of a width, in uses that have nothing to do with it."""

    def __init__(self, temperature: float = 0.125, scale_factor: float = 4.0) -> None:
        super().__init__()
        self.temperature, self.scale_factor = temperature, scale_factor
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 64, 1)
        self.out = nn.Conv2d(64, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.interpolate(self.first(x), scale_factor=self.scale_factor)
        return self.out(torch.relu(self.second(x))) / self.temperature


def test_a_temperature_and_a_scale_factor_stay_what_they_are() -> None:
    model, inputs = Fixed(), torch.randn(2, 3, 8, 8)
    plan = trace(model, inputs)
    plan.check(model, inputs)
    small = half(model, plan)
    assert (small.temperature, small.scale_factor) == (0.125, 4.0)
    assert small(inputs).shape == (2, 5, 32, 32)
    assert not plan.left_alone
    assert not any(a.module == "" for a in plan.attributes)


class Residual(nn.Module):
    """A branch times 0.25, with 16 units: whether by design or by chance, only the constructor's text can tell."""

    def __init__(self, width: int, scale: float) -> None:
        super().__init__()
        self.branch_scale = scale
        self.first, self.branch, self.out = nn.Linear(6, width), nn.Linear(width, width), nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.out(x + self.branch(torch.relu(x)) * self.branch_scale)


class RootedResidual(Residual):
    def __init__(self, width: int) -> None:
        super().__init__(width, 0.5)
        self.branch_scale = width**-0.5


class Literal(Attention):
    def __init__(self, size: int, score: Score) -> None:
        super().__init__(size, score)
        self.scale = 0.25


def test_a_number_of_unknown_origin_stays_and_is_listed() -> None:
    inputs = torch.randn(2, 6)
    model = Residual(16, 0.25)
    plan = trace(model, inputs)
    assert plan.left_alone == ("branch_scale = 0.25 is 16 ** -0.5",)
    assert half(model, plan).branch_scale == 0.25
    text = str(plan)
    assert "numbers that stay, though they are a root of a width" in text
    assert "branch_scale = 0.25 is 16 ** -0.5" in text
    # 28 ** -0.5 = 0.1889822365 is no other number
    model = Residual(28, 28**-0.5)
    assert half(model, trace(model, inputs)).branch_scale == 14**-0.5


def test_the_constructor_tells_a_root_from_a_plain_number() -> None:
    rooted = RootedResidual(16)
    plan = trace(rooted, torch.randn(2, 6))
    assert not plan.left_alone
    assert half(rooted, plan).branch_scale == 8**-0.5
    literal = Literal(16, SCORES["scores times scale"][0])
    plan = trace(literal, torch.randn(2, 7, 6))
    assert plan.left_alone == ("scale = 0.25 is 16 ** -0.5",)
    assert half(literal, plan).scale == 0.25


def test_one_number_for_two_widths_stays() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = 16**-0.5
            self.first, self.second, self.out = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.second(self.first(x) * self.scale) * self.scale)

    model = Twice()
    plan = trace(model, torch.randn(2, 6))
    assert "scale = 0.25 is 16 ** -0.5" in plan.left_alone
    assert half(model, plan).scale == 0.25


class Mean(nn.Module):
    """The width as a divisor."""

    def __init__(self, width: int, mean: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.W, self.mean = width, mean
        self.first, self.out = nn.Linear(6, width), nn.Linear(1, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.mean(self, torch.relu(self.first(x)))[:, None])


@pytest.mark.parametrize(
    "mean",
    [
        lambda self, h: h.sum(1) / self.W,
        lambda self, h: h.sum(1).div(self.W),
        lambda self, h: h.sum(1, keepdim=True)[:, 0] * (1 / self.W),
        lambda self, h: h.sum(1) * self.W**-0.5,
    ],
)
def test_a_width_used_as_a_divisor_follows(mean: Callable[[nn.Module, Tensor], Tensor]) -> None:
    model, inputs = Mean(12, mean), torch.randn(2, 6)
    plan = trace(model, inputs)
    plan.check(model, inputs)
    small, reference = half(model, plan), Mean(6, mean)
    assert small.W == 6
    reference.load_state_dict(small.state_dict())
    assert torch.equal(small(inputs), reference(inputs))


def test_a_number_in_the_code_itself_stays_and_is_listed() -> None:
    model = Mean(12, lambda self, h: h.sum(1) / 12.0)
    plan = trace(model, torch.randn(2, 6))
    assert plan.left_alone == ("0.08333, computed in the forward pass, is 12 ** -1",)
    followed = Mean(12, lambda self, h: h.sum(1) / math.sqrt(h.shape[1]))
    assert not trace(followed, torch.randn(2, 6)).left_alone


class ScaledEmbedding(nn.Embedding):
    """As Gemma has it: the root of the width in a buffer."""

    def __init__(self, words: int, width: int, scale: float, persistent: bool) -> None:
        super().__init__(words, width)
        self.register_buffer("scale", torch.tensor(scale), persistent=persistent)

    def forward(self, words: Tensor) -> Tensor:
        return super().forward(words) * self.scale.to(self.weight.dtype)


class Language(nn.Module):
    def __init__(self, width: int, persistent: bool = False) -> None:
        super().__init__()
        self.embedding = ScaledEmbedding(20, width, width**0.5, persistent)
        self.out = nn.Linear(width, 20)

    def forward(self, words: Tensor) -> Tensor:
        return self.out(torch.relu(self.embedding(words)))


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("width", [16, 12])
def test_a_buffer_that_holds_the_root_of_a_width_follows(width: int, persistent: bool) -> None:
    model, words = Language(width, persistent), torch.randint(0, 20, (2, 7))
    plan = trace(model, words)
    plan.check(model, words)
    assert "embedding.scale" in {str(a) for a in plan.attributes}
    small, reference = half(model, plan), Language(width // 2, persistent)
    assert small.embedding.scale == torch.tensor((width // 2) ** 0.5)
    assert small.state_dict().keys() == reference.state_dict().keys()
    reference.load_state_dict(small.state_dict())
    assert torch.equal(small(words), reference(words))
    whole = narrow(model, plan, Index.whole(plan))
    assert torch.equal(whole.embedding.scale, model.embedding.scale)


def test_a_state_does_not_overwrite_the_root_of_a_width() -> None:
    model, words = Language(16), torch.randint(0, 20, (2, 7))
    plan = trace(model, words)
    blank = skeleton(model, plan, plan.counts(0.5))
    assert "embedding.scale" not in dict(blank.named_buffers())
    assert float(blank.embedding.scale) == pytest.approx(8**0.5)
    state = state_of(model)
    assert float(state["embedding.scale"]) == 4.0
    del state["embedding.scale"]
    plan.check_state(state)


def test_an_embedding_scaled_by_a_float_follows() -> None:
    class Scaled(Language):
        def __init__(self, width: int, scale: float) -> None:
            super().__init__(width)
            self.embed_scale, self.embedding = scale, nn.Embedding(20, width)

        def forward(self, words: Tensor) -> Tensor:
            return self.out(torch.relu(self.embedding(words) * self.embed_scale))

    model = Scaled(16, 4.0)
    assert half(model, trace(model, torch.randint(0, 20, (2, 7)))).embed_scale == 8**0.5
