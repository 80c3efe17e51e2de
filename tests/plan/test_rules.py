"""One small model per operator or idiom: which groups it leaves, and that those obey the permutation law."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedwidth.core.index import Index
from fedwidth.core.narrow import narrow
from fedwidth.plan.plan import Plan
from fedwidth.plan.trace import trace

Body = Callable[[Tensor], Tensor]


class Sandwich(nn.Module):
    """6 -> 12 -> body -> `after` -> 8 -> 5: the group of 8 is always there, the 12 are what the body makes of them."""

    def __init__(self, body: Body, after: int) -> None:
        super().__init__()
        self.body = body
        self.first = nn.Linear(6, 12)
        self.second = nn.Linear(after, 8)
        self.last = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.second(self.body(self.first(x)))))


class Picture(nn.Module):
    """The same with images: 3 -> 12 channels -> body -> `after` channels -> 8 -> 5."""

    def __init__(self, body: Body, after: int) -> None:
        super().__init__()
        self.body = body
        self.first = nn.Conv2d(3, 12, 3, padding=1)
        self.second = nn.Conv2d(after, 8, 1)
        self.last = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.second(self.body(self.first(x)))).mean((2, 3)))


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[:, : x.shape[1] // 2], x[:, x.shape[1] // 2 :]


def written(x: Tensor) -> Tensor:
    y = torch.zeros(x.shape, dtype=x.dtype)
    half = x.shape[1] // 2
    y[:, :half] = x[:, half:]
    y[:, half:] = x[:, :half]
    return y


def thirds(x: Tensor) -> Tensor:
    third = x.shape[1] // 3
    first, rest = x.split([third, x.shape[1] - third], 1)
    return torch.cat([rest, first], 1)


def shuffled(x: Tensor) -> Tensor:
    return x.reshape(x.shape[0], 2, -1).permute(0, 2, 1).reshape(x.shape[0], -1)


def columns(x: Tensor, rows: int) -> Tensor:
    return x.view(x.shape[0], rows, -1).transpose(1, 2).flatten(1)


def layers(x: Tensor) -> Tensor:
    first, second = torch.zeros(2, x.shape[1], dtype=x.dtype).unbind(0)
    return x + first + second


def overwritten_layers(x: Tensor) -> Tensor:
    store = torch.zeros(2, *x.shape, dtype=x.dtype)
    first, second = store.unbind(0)
    second.copy_(x)
    return store.sum(0) + first


def without_first(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, 0] = 0
    return y


def matched(x: Tensor) -> Tensor:
    """Writes its result into a tensor it was given."""
    out = x.new_empty(x.shape)
    torch.mul(x, 2, out=out)
    return out


def noise(x: Tensor) -> Tensor:
    return x + torch.randn_like(x)


def complex_pairs(x: Tensor) -> Tensor:
    return torch.view_as_real(torch.view_as_complex(x.view(x.shape[0], -1, 2)) * 1j).flatten(1)


ROWS = torch.tensor([1, 0])
CHOSEN = torch.tensor([True, False])


def masked_rows(x: Tensor) -> Tensor:
    y = x.clone()
    y[CHOSEN] = x[~CHOSEN].mean(0)
    return y


def numbered_rows(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    y[ROWS] = x
    return y


def rows_before_units(x: Tensor) -> Tensor:
    """The units come first, so that values are written behind them."""
    y = torch.zeros_like(x.T)
    y[:, CHOSEN] = x.T[:, ~CHOSEN]
    return y.T


def overlapping(x: Tensor) -> Tensor:
    """Windows of two rows that overlap by one."""
    x = torch.cat([x, x[:1]])
    return x.as_strided((2, 2, x.shape[1]), (x.stride(0), *x.stride())).sum(1)


SLICED: dict[str, tuple[Body, int, list[int]]] = {
    "relu": (torch.relu, 12, [12]),
    "softmax": (lambda x: x.softmax(1), 12, [12]),
    "standardise": (lambda x: (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True), 12, [12]),
    "root of the width": (lambda x: x / math.sqrt(x.shape[1]), 12, [12]),
    "norm over its own width": (lambda x: F.layer_norm(x, x.shape[1:]), 12, [12]),
    "largest value": (lambda x: x - x.max(1, keepdim=True).values, 12, [12]),
    "matrix of products": (lambda x: torch.einsum("bi,bj,bj->bi", x, x, x), 12, [12]),
    "chunk and gate": (lambda x: math.prod(x.chunk(2, 1)), 6, [6]),
    "chunk and swap": (lambda x: torch.cat(x.chunk(2, 1)[::-1], 1), 12, [6, 6]),
    "glu": (lambda x: F.glu(x), 6, [6]),
    "halves by shape": (lambda x: sum(halves(x)), 6, [6]),
    "thirds by shape": (thirds, 12, [4, 8]),
    "last four": (lambda x: x[:, -4:], 4, [8]),
    "narrow": (lambda x: x.narrow(1, 0, x.shape[1] // 2), 6, [6, 6]),
    "every second": (lambda x: x[:, ::2], 6, [6]),
    "fixed rows": (lambda x: x.view(-1, 3, x.shape[1] // 3).flatten(1), 12, [4]),
    "fixed columns": (lambda x: x.view(-1, x.shape[1] // 4, 4).flatten(1), 12, [3]),
    "inferred columns": (lambda x: x.unflatten(1, (3, -1)).flatten(1), 12, [4]),
    "shuffle": (shuffled, 12, [6]),
    "complex pairs": (complex_pairs, 12, [6]),
    "repeat": (lambda x: x.repeat(1, 2), 24, [12]),
    "tile": (lambda x: x.tile(2), 24, [12]),
    "interleave": (lambda x: x.repeat_interleave(2, 1), 24, [12]),
    "stack": (lambda x: torch.stack([x, -x], 2).flatten(1), 24, [12]),
    "pad": (lambda x: F.pad(x, (1, 2)), 15, [12]),
    "expand": (lambda x: x[:, None].expand(-1, 2, -1).flatten(1), 24, [12]),
    "zeros like it": (lambda x: x + torch.zeros_like(x), 12, [12]),
    "zeros of its shape": (lambda x: x + x.new_zeros(x.shape), 12, [12]),
    "written by halves": (written, 12, [6, 6]),
    "constant layers": (layers, 12, [12]),
    "overwritten layers": (overwritten_layers, 12, [12]),
    "given memory": (matched, 12, [12]),
    "one column for its shape": (lambda x: x * x[:, 0].shape[0], 12, [12]),
    "view as": (lambda x: x.flatten().view_as(x), 12, [12]),
    "size by count": (lambda x: x.flatten().view(-1, x.numel() // x.shape[0]), 12, [12]),
    "noise": (noise, 12, [12]),
    "dropout that never stops": (lambda x: F.dropout(x, 0.5, training=True), 12, [12]),
    "gather rows": (lambda x: x.gather(0, torch.zeros_like(x, dtype=torch.long)), 12, [12]),
    "index rows": (lambda x: x[torch.tensor([1, 0])], 12, [12]),
    "sort over the batch": (lambda x: x.sort(0).values, 12, [12]),
    "rows by a mask": (lambda x: torch.cat([x[CHOSEN], x[~CHOSEN]]), 12, [12]),
    "rows by a mask of values": (lambda x: x[x.sum(1) < 1e9], 12, [12]),
    "masked rows written": (masked_rows, 12, [12]),
    "rows written": (numbered_rows, 12, [12]),
    "rows written behind the units": (rows_before_units, 12, [12]),
    "rows put": (lambda x: torch.zeros_like(x).index_put((ROWS,), x, accumulate=True), 12, [12]),
    "rows added": (lambda x: torch.zeros_like(x).index_add(0, ROWS, x), 12, [12]),
    "rows filled": (lambda x: x.index_fill(0, ROWS[:1], 0.5), 12, [12]),
    "rows scattered": (lambda x: torch.zeros_like(x).scatter_add(0, ROWS[:, None].expand_as(x), x), 12, [12]),
    "rows scattered by a mask": (lambda x: x.masked_scatter(CHOSEN[:, None].expand_as(x), x[1:]), 12, [12]),
    "rows repeated": (lambda x: x.repeat_interleave(ROWS + 1, dim=0)[1:], 12, [12]),
    "rows as frequencies": (lambda x: torch.fft.fft(x, dim=0).real, 12, [12]),
    "windows of rows": (lambda x: torch.cat([x, x[:1]]).unfold(0, 2, 1).sum(-1), 12, [12]),
    "overlapping windows": (overlapping, 12, [12]),
    "strides as they are": (lambda x: x.as_strided(x.shape, x.stride()), 12, [12]),
    "diagonal": (lambda x: torch.diag_embed(x).diagonal(dim1=1, dim2=2), 12, [12]),
    "distances": (lambda x: x * torch.cdist(x, x).sum(1, keepdim=True), 12, [12]),
    "polar": (lambda x: torch.polar(x, x).real, 12, [12]),
}

FROZEN: dict[str, tuple[Body, int, str]] = {
    "view by literals": (lambda x: x.view(-1, 3, 4).flatten(1), 12, "written in the code"),
    "halves by literals": (lambda x: x[:, :6] * x[:, 6:], 6, "written in the code"),
    "split by a literal": (lambda x: math.prod(x.split(6, 1)), 6, "written in the code"),
    "norm by a literal": (lambda x: F.layer_norm(x, (12,)), 12, "written in the code"),
    "zeros by a literal": (lambda x: x + torch.zeros(12, dtype=x.dtype), 12, "written in the code"),
    "branch on the width": (lambda x: x if x.shape[1] == 12 else -x, 12, "written in the code"),
    "width through float": (lambda x: x.view(-1, int(x.shape[1] / 2), 2).flatten(1), 12, "written in the code"),
    "cumulative sum": (lambda x: x.cumsum(1), 12, "order"),
    "sort": (lambda x: x.sort(1).values, 12, "order"),
    "largest position": (lambda x: x + x.argmax(1, keepdim=True), 12, "position of the largest"),
    "position of max": (lambda x: x + x.max(1, keepdim=True).indices, 12, "position of the largest"),
    "flip": (lambda x: x.flip(1), 12, "reordered"),
    "roll": (lambda x: x.roll(1, 1), 12, "reordered"),
    "roll everything": (lambda x: x.roll(1), 12, "reordered"),
    "picked columns": (lambda x: x[:, torch.tensor([2, 0, 1])], 3, "picked"),
    "one column": (lambda x: x[:, 3:4] + x[:, 5].unsqueeze(1) * x, 12, "one by one"),
    "one column written": (without_first, 12, "one by one"),
    "one value read": (lambda x: x * x[0, 0].item(), 12, "one by one"),
    "through numpy": (lambda x: torch.from_numpy(x.detach().numpy() * 2), 12, "leave PyTorch"),
    "through a list": (lambda x: torch.tensor(x.tolist(), dtype=x.dtype), 12, "leave PyTorch"),
    "numbered": (lambda x: x + torch.arange(12), 12, "numbered"),
    "a literal tensor": (lambda x: x * torch.tensor([1.0, -1.0] * 6, dtype=x.dtype), 12, "constant"),
    "triangle": (lambda x: x.unsqueeze(1).expand(-1, 12, -1).tril().sum(1), 12, "triangular"),
    "columns by a mask": (lambda x: x[:, torch.tensor([True] * 3 + [False] * 9)], 3, "picked|constant"),
    "columns written": (lambda x: x.index_fill(1, ROWS, 0.5), 12, "written by an index"),
    "columns put": (lambda x: x.T.index_put((ROWS,), x.T[:2]).T, 12, "written by an index|one by one"),
    "elements by a mask": (lambda x: x * x[x > 0].sum(), 12, "picked by an index"),
    "elements scattered by a mask": (lambda x: x.masked_scatter(x > 0, x.abs()), 12, "written by an index"),
    "columns scattered": (lambda x: torch.zeros_like(x).scatter(1, x.long() * 0, x), 12, "written by an index"),
    "positions of values": (lambda x: x * (x > 0).nonzero().sum(), 12, "order of the positions"),
    "frequencies": (lambda x: torch.fft.fft(x).real, 12, "frequencies"),
    "windows": (lambda x: x.unfold(1, 4, 4).flatten(1), 12, "windows"),
    "strides by literals": (lambda x: x.as_strided(x.shape, (12, 1)), 12, "written in the code"),
    "windows inside the units": (lambda x: x.as_strided((2, 3, 6), (12, 3, 1)).flatten(1), 18, "strides"),
    "a diagonal of two": (lambda x: (x.T @ x).diagonal(1)[None].expand(2, -1), 11, "diagonal"),
    "drawn units": (lambda x: x * x.softmax(1).multinomial(1), 12, "picked by an index"),
    "unaligned": (lambda x: columns(x, 2) + columns(x, 3), 12, "line up"),
}


def planned(body: Body, after: int, sandwich: type[nn.Module] = Sandwich) -> tuple[nn.Module, Tensor, Plan]:
    torch.manual_seed(0)
    model = sandwich(body, after).double()
    inputs = torch.randn(2, 6) if sandwich is Sandwich else torch.randn(2, 3, 4, 4)
    return model, inputs.double(), trace(model, inputs.double())


def sizes(plan: Plan) -> list[int]:
    return sorted(group.size for group in plan.groups.values())


def check_widths(model: nn.Module, inputs: Tensor, plan: Plan) -> None:
    """The law holds, and models of several widths run."""
    plan.check(model, inputs)
    for capacity in (0.2, 0.4, 0.7):
        index = Index.of_units(plan, {name: range(count) for name, count in plan.counts(capacity).items()})
        with torch.no_grad():
            assert narrow(model, plan, index)(inputs).shape == (2, 5)


@pytest.mark.parametrize("name", SLICED)
def test_an_idiom_that_follows_the_width_is_sliced(name: str) -> None:
    body, after, expected = SLICED[name]
    model, inputs, plan = planned(body, after)
    assert sizes(plan) == sorted([*expected, 8])
    assert not plan.unknown_operators
    check_widths(model, inputs, plan)


@pytest.mark.parametrize("name", FROZEN)
def test_an_idiom_that_cannot_follow_is_frozen_with_the_reason(name: str) -> None:
    body, after, reason = FROZEN[name]
    model, inputs, plan = planned(body, after)
    assert sizes(plan) == [8]
    reasons = {dim: why for tensor, dim, why in plan.frozen() if tensor == "first.weight"}
    assert re.search(reason, reasons[0])
    check_widths(model, inputs, plan)


def patches(x: Tensor) -> Tensor:
    columns = F.unfold(x, 2, stride=2)
    return columns.view(len(x), -1, 2, 2)


def pooled_rows(x: Tensor) -> Tensor:
    """A pooling along the pixels alone, with the channels as the other dimension."""
    n, _, h, w = x.shape
    rows = F.avg_pool2d(x.flatten(2).mT[:, None], (2, 1), stride=(2, 1))[:, 0]
    return rows.mT.reshape(n, -1, h, w // 2)


def sampled(x: Tensor) -> Tensor:
    return F.grid_sample(x, torch.linspace(-1, 1, 2 * 3 * 3 * 2, dtype=x.dtype).view(2, 3, 3, 2), align_corners=False)


PICTURES: dict[str, tuple[Body, int, list[int]]] = {
    "max pool": (lambda x: F.max_pool2d(x, 2), 12, [12]),
    "mean pool": (lambda x: F.avg_pool2d(x, 2), 12, [12]),
    "adaptive pool": (lambda x: F.adaptive_avg_pool2d(x, 2), 12, [12]),
    "upsample": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), 12, [12]),
    "reflect": (lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"), 12, [12]),
    "pixel shuffle": (lambda x: F.pixel_shuffle(x, 2), 3, [3]),
    "pixel unshuffle": (lambda x: F.pixel_unshuffle(x, 2), 48, [12]),
    "channel shuffle": (lambda x: F.channel_shuffle(x, 3), 12, [4]),
    "patches": (patches, 48, [12]),
    "patches there and back": (lambda x: F.fold(F.unfold(x, 2, stride=2), x.shape[2:], 2, stride=2), 12, [12]),
    "pool along the pixels": (pooled_rows, 12, [12]),
    "grid sample": (sampled, 12, [12]),
    "instance norm": (F.instance_norm, 12, [12]),
    "group norm by a literal": (lambda x: F.group_norm(x, 4), 12, [3]),
    "channel mean and max": (lambda x: x * (x.mean(1, keepdim=True) + x.amax(1, keepdim=True)).sigmoid(), 12, [12]),
}


@pytest.mark.parametrize("name", PICTURES)
def test_image_operators(name: str) -> None:
    body, after, expected = PICTURES[name]
    model, inputs, plan = planned(body, after, Picture)
    assert sizes(plan) == sorted([*expected, 8])
    check_widths(model, inputs, plan)


def test_the_width_of_a_depthwise_convolution_is_its_channels() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 6, 1), nn.Conv2d(6, 12, 3, groups=6), nn.Conv2d(12, 5, 1), nn.Flatten())
    plan = trace(model, torch.randn(2, 3, 3, 3))
    assert {group.name: group.size for group in plan.groups.values()} == {"0": 6}
    plan.check(model, torch.randn(2, 3, 3, 3))
