"""Static batch norm (sBN, HeteroFL): batch statistics in local training, collected statistics in evaluation.

Running averages kept by clients would mix the statistics of models of different widths and leak something about each
client's data. So nobody tracks anything in training; before evaluation the server's model sees training data once,
and each norm keeps the cumulative mean of the batch statistics it met.

Whether statistics were collected is part of the state (`num_batches_tracked`), not of the module, so it survives
checkpoints, slicing and `functional_call`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedwidth.errors import DataError
from fedwidth.models.spectral_norm import update_spectral_norms


class StaticBatchNorm2d(nn.BatchNorm2d):
    """Batch norm over (N, C, H, W) whose running statistics change only inside `collect_statistics`.

    In evaluation it uses the collected statistics; while there are none, those of the batch at hand.

    It is also the scaler of what it normalises: `rate` divides its input in training. Normalising x / rate with
    epsilon is normalising x with epsilon * rate^2, so that costs nothing.
    """

    num_batches_tracked: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__(channels, momentum=None)  # None: cumulative mean, every batch counts the same
        self.collecting = False
        self.settled = False
        """True inside `settled_statistics`, where statistics are known to have been collected."""
        self.rate = 1.0

    @property
    def scaled_epsilon(self) -> float:
        """The epsilon of training, with the scaler in it."""
        return self.eps * self.rate**2

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each channel."""
        if self.training and self.collecting:
            return super().forward(x)
        if self.training:
            # No running buffers are handed over, so nothing is written in place and vmap over clients works.
            epsilon = self.scaled_epsilon
            if x.device.type == "cuda" and x.stride(1) == 1 and x.numel() > x.shape[1]:
                # cuDNN's kernels for channels that lie last take the whole GPU, so that other clients have to wait.
                return torch.batch_norm(x, self.weight, self.bias, None, None, True, 0.0, epsilon, False)
            return F.batch_norm(x, None, None, self.weight, self.bias, training=True, eps=epsilon)
        if self.settled:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        # Chosen by value and not by an `if`: no device synchronisation, and a tracer always meets the buffers.
        collected = self.num_batches_tracked > 0
        variance, mean = torch.var_mean(x.detach(), (0, 2, 3), correction=0)
        mean = torch.where(collected, self.running_mean, mean)
        variance = torch.where(collected, self.running_var, variance)
        return F.batch_norm(x, mean, variance, self.weight, self.bias, training=False, eps=self.eps)


def norms_of(model: nn.Module) -> list[_BatchNorm]:
    """Every batch norm of the model that has running statistics."""
    found = (module for module in model.modules() if isinstance(module, _BatchNorm))
    return [norm for norm in found if norm.running_mean is not None]


def forget_statistics(model: nn.Module) -> None:
    """Forget all collected statistics; a `StaticBatchNorm2d` then evaluates with those of the test batch.

    That is how the published FedRolex code evaluates.
    """
    for norm in norms_of(model):
        norm.reset_running_stats()


@contextmanager
def settled_statistics(model: nn.Module) -> Iterator[None]:
    """Within this context a model whose statistics were collected does not also compute those of the batch."""
    norms = [norm for norm in model.modules() if isinstance(norm, StaticBatchNorm2d)]
    for norm in norms:
        norm.settled = True
    try:
        yield
    finally:
        for norm in norms:
            norm.settled = False


@torch.no_grad()
def collect_statistics(model: nn.Module, batches: Iterable[Any]) -> None:
    """Pass batches through the model, so that every batch norm gets the cumulative mean of its batch statistics.

    A batch is what the model takes: a tensor, a tuple of arguments, or a dictionary of keyword arguments. Works for
    `StaticBatchNorm2d` and for any batch norm of PyTorch. Dropout and scalers stay off. The model is left in evaluation
    mode, and its spectral norms have the singular vectors of its weights.
    """
    norms = norms_of(model)
    model.eval()
    update_spectral_norms(model)  # first: what follows in the model depends on them
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    seen = 0  # counted here: asking the device for `num_batches_tracked` would make it wait, norm by norm
    try:
        for norm in norms:
            norm.reset_running_stats()
            norm.train()
            if isinstance(norm, StaticBatchNorm2d):
                norm.collecting = True
        for batch in batches:
            for norm in norms:
                norm.momentum = 1 / (seen + 1)  # the cumulative mean
            if isinstance(batch, Mapping):
                model(**batch)
            else:
                model(*batch) if isinstance(batch, (tuple, list)) else model(batch)
            seen += 1
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
            norm.eval()
            if isinstance(norm, StaticBatchNorm2d):
                norm.collecting = False
    if not seen:
        raise DataError("batch norm statistics need at least one batch of data, but none was given")
