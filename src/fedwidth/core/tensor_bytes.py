"""A tensor as bytes, for everything that sends tensors to another process or machine.

The bytes are those of the elements in row order; dtype and shape travel beside them, since numpy and the standard
library do not have all of PyTorch's dtypes.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

Bytes = Any
"""An array of `uint8`, or anything else that holds bytes."""


class TensorBytes(NamedTuple):
    """A tensor's dtype by name, its shape and its bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: Bytes

    @classmethod
    def of(cls, tensor: Tensor, *, copy: bool = False) -> TensorBytes:
        """A tensor's bytes: an array that shares its memory, where the tensor is contiguous and on the CPU.

        With `copy` they are an object of the type `bytes`.

        >>> TensorBytes.of(torch.tensor([1.0]), copy=True)
        TensorBytes(dtype='float32', shape=(1,), data=b'\\x00\\x00\\x80?')
        """
        data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        name = str(tensor.dtype).removeprefix("torch.")
        return cls(name, tuple(tensor.shape), data.tobytes() if copy else data)

    def tensor(self, *, copy: bool = False) -> Tensor:
        """The tensor. Unless it is a copy it shares the memory of its bytes, and must not be written to.

        >>> TensorBytes("bfloat16", (2, 1), bytes([128, 63, 0, 64])).tensor(copy=True)
        tensor([[1.],
                [2.]], dtype=torch.bfloat16)
        """
        dtype: torch.dtype = getattr(torch, self.dtype)
        if not len(self.data):
            return torch.empty(self.shape, dtype=dtype)
        data = np.frombuffer(self.data, np.uint8)
        if copy:
            return torch.from_numpy(data.copy()).view(dtype).reshape(self.shape)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # PyTorch knows no tensors that may only be read
            return torch.from_numpy(data).view(dtype).reshape(self.shape)
