"""Samples that lead a model to parameters which the first ones do not reach."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from fedwidth.plan.trace import trace
from fedwidth.plan.watching.reaching import WatchedPass, leading, likely, parting, telling, unreached

ROUTES = torch.tensor([0, 0, 0, 1, 0, 0, *[0] * 14, 2, 1, 2, 0])
"""To which expert each sample goes: the first two to the first, the one of number 20 to the third."""


class Experts(nn.Module):
    def __init__(self, way: Callable[[nn.ModuleList, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(4, 8), nn.Linear(8, 3)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.way = way

    def forward(self, x: Tensor, route: Tensor) -> Tensor:
        return self.out(self.way(self.experts, self.first(x), route))


def by_number(experts: nn.ModuleList, hidden: Tensor, route: Tensor) -> Tensor:
    out = hidden
    for number, expert in enumerate(experts):
        if len(rows := (route == number).nonzero()[:, 0]):
            out = out.index_add(0, rows, expert(hidden[rows]))
    return out


def by_mask(experts: nn.ModuleList, hidden: Tensor, route: Tensor) -> Tensor:
    out = hidden.clone()
    for number, expert in enumerate(experts):
        if len(found := hidden[route == number]):
            out[route == number] = expert(found)
    return out


def by_sample(experts: nn.ModuleList, hidden: Tensor, route: Tensor) -> Tensor:
    return torch.stack([experts[int(number)](row) for row, number in zip(hidden, route, strict=True)])


def by_list(experts: nn.ModuleList, hidden: Tensor, route: Tensor) -> Tensor:
    return torch.stack([experts[number](row) for row, number in zip(hidden, route.tolist(), strict=True)])


def always_first(experts: nn.ModuleList, hidden: Tensor, route: Tensor) -> Tensor:
    return experts[0](hidden[torch.arange(len(hidden))])


def batch(numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
    return torch.ones(len(numbers), 4), ROUTES[list(numbers)]


@pytest.mark.parametrize("way", [by_number, by_mask, by_sample, by_list])
def test_the_samples_that_reach_more_are_found_and_those_that_reach_the_same_are_not(
    way: Callable[..., Tensor],
) -> None:
    model = Experts(way)
    missing = unreached(trace(model, batch([0, 1])))
    assert missing == [f"experts.{n}.{tensor}" for n in (1, 2) for tensor in ("weight", "bias")]
    assert telling(model, batch, len(ROUTES), missing) == [3, 20]
    assert telling(model, batch, 20, missing) == [3]
    plan = trace(model, batch([0, 1, 3, 20]))
    assert not unreached(plan)
    plan.check(model, batch(range(len(ROUTES))))


def test_no_sample_is_looked_at_where_the_way_does_not_depend_on_values(monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen = Experts(always_first), []
    missing = unreached(trace(model, batch([0, 1])))
    assert len(missing) == 4
    assert not telling(model, lambda numbers: seen.append(list(numbers)) or batch(numbers), len(ROUTES), missing)
    assert seen == [[0, 1]]


def test_a_pass_leaves_the_model_and_the_random_numbers_as_they_were() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 3)).train()
    before, numbers = model.state_dict(), torch.get_rng_state()
    assert WatchedPass(model, torch.ones(2, 4), ["3.bias"]).reached == {"3.bias"}
    assert model.training
    assert torch.equal(torch.get_rng_state(), numbers)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_sparse_parameters_are_told_apart_and_dense_ones_beside_them_are_reckoned_with() -> None:
    class Spread(nn.Module):
        """Features that a graph spreads, held sparse, and a graph that nobody uses."""

        def __init__(self) -> None:
            super().__init__()
            self.graph, self.spare = (
                nn.Parameter(torch.eye(4).to_sparse(), requires_grad=False) for _ in ("graph", "spare")
            )
            self.first, self.out = nn.Linear(4, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(torch.relu(self.first(torch.sparse.mm(self.graph, x.T).T)))

    model = Spread()
    assert WatchedPass(model, torch.ones(2, 4), ["graph", "spare", "out.bias"]).reached == {"graph", "out.bias"}
    assert trace(model, torch.ones(2, 4)).work.saved


def test_what_leads_to_experts_is_told_from_what_they_have_inside() -> None:
    class Deep(Experts):
        def __init__(self) -> None:
            super().__init__(by_number)
            self.experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 8)) for _ in range(3))

    plan = trace(Deep(), batch([0, 1]))
    assert list(plan.groups) == ["first", "experts.0.0"]
    like = likely(plan)
    assert like["experts.2.1.weight"] == ["experts.0.1.weight"]
    assert len(like) == 8
    assert leading(plan, like) == ["first"]
    assert not leading(trace(Deep(), batch([0, 1]), keep=["first"]), like)
    assert not likely(trace(Deep(), batch([0, 3, 20])))


def test_ways_part_where_samples_reach_different_parameters() -> None:
    names = [f"experts.{number}.weight" for number in range(3)]
    assert parting(Experts(by_number), batch, len(ROUTES), names) == (set(names[:2]), 24)  # the third, once
    assert parting(Experts(by_number), batch, 20, names) == (set(names[:2]), 20)
    assert parting(Experts(by_number), batch, 3, names) == (set(), 3)  # all go to the first

    def by_size(experts: nn.ModuleList, hidden: Tensor, route: Tensor) -> Tensor:
        return experts[int(len(route) > 2)](hidden)

    assert parting(Experts(by_size), batch, len(ROUTES), names) == (set(), 24)
    assert parting(Experts(by_sample), lambda numbers: (torch.ones(1, 4), ROUTES[[0]]), 9, names) == (set(), 9)


@pytest.mark.parametrize("way", [by_number, by_sample])
def test_samples_on_which_the_model_fails_are_left_out(way: Callable[..., Tensor]) -> None:
    class Picky(Experts):
        """A model that takes no sample of number 4 or 7."""

        def forward(self, x: Tensor, route: Tensor) -> Tensor:
            assert not (x[:, 0] > 1).any()
            return super().forward(x, route)

    def numbered(numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        x, route = batch(numbers)
        return x * torch.tensor([2 if number in (4, 7) else 1 for number in numbers])[:, None], route

    missing = unreached(trace(Picky(way), numbered([0, 1])))
    assert telling(Picky(way), numbered, len(ROUTES), missing) == [3, 20]
    assert parting(Picky(way), numbered, len(ROUTES), missing) == (set(missing[:2]), 22)


def test_an_error_of_the_data_is_not_taken_for_one_of_the_model() -> None:
    def broken(numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        if max(numbers) > 1:
            raise OSError("the disk is gone")
        return batch(numbers)

    missing = unreached(trace(Experts(by_number), batch([0, 1])))
    with pytest.raises(OSError, match="the disk is gone"):
        telling(Experts(by_number), broken, len(ROUTES), missing)
