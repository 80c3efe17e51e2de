"""Models that go another way by what they read, and data whose first samples do not show all of it."""

import torch
from torch import nn

from fedwidth.data import from_tensors


def lengths(samples=60):
    """Series of all lengths, to be packed, and a class."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(samples, 7, 8, generator=generator), torch.arange(samples) % 7 + 1
    targets = torch.arange(samples) % 3
    return from_tensors(inputs, targets, inputs, targets)


class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 3)

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        return self.out(self.rnn(packed)[1][0][-1])


class Route(nn.Module):
    """Even lengths go to one expert, odd ones to the other."""

    def __init__(self):
        super().__init__()
        self.first, self.out = nn.Linear(8, 16), nn.Linear(16, 3)
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))

    def forward(self, x, lengths):
        hidden = torch.relu(self.first(x.mean(1)))
        out = torch.zeros_like(hidden)
        for number, expert in enumerate(self.experts):
            if len(rows := (lengths % 2 == number).nonzero()[:, 0]):
                out = out.index_add(0, rows, torch.relu(expert(hidden[rows])))
        return self.out(out)


class Stepped(nn.Module):
    """A recurrence written by hand, over as many steps as the longest series has."""

    def __init__(self):
        super().__init__()
        self.width = 16
        self.read, self.again, self.out = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x, lengths):
        state = x.new_zeros(len(x), self.width)
        for step in range(int(lengths.max())):
            state = torch.where((lengths > step)[:, None], torch.tanh(self.read(x[:, step]) + self.again(state)), state)
        return self.out(state)


def kinds(samples=60, later=30):
    """Samples of one kind, and from number `later` on of three."""
    return of_kinds(torch.where(torch.arange(samples) < later, 0, torch.arange(samples) % 3))


def of_kinds(kind):
    """Samples of these kinds, and a class."""
    inputs = torch.randn(len(kind), 8, generator=torch.Generator().manual_seed(0)), kind
    targets = torch.arange(len(kind)) % 3
    return from_tensors(inputs, targets, inputs, targets)


class Experts(nn.Module):
    """One expert for each kind."""

    def __init__(self):
        super().__init__()
        self.first, self.out = nn.Linear(8, 16), nn.Linear(16, 3)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 16)) for _ in range(3))

    def forward(self, x, kind):
        hidden = torch.relu(self.first(x))
        for number, expert in enumerate(self.experts):
            if len(rows := (kind == number).nonzero()[:, 0]):
                hidden = hidden.index_add(0, rows, expert(hidden[rows]))
        return self.out(hidden)
