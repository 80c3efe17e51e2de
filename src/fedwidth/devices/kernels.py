"""What kernels take of a GPU's memory beside their tensors: the GPU itself is asked.

A step is played with tensors that have no values (`peak.py`). On a GPU every call of it is also made once for real,
alone, with zeros of the same sizes, by the thread and with the arithmetic it will have in training:

    a call is made       before -> highest -> after, its results alive -> left, when they are gone
    passing              highest - after     a convolution's workspace, copies
    kept for good        left - before       workspaces of matrix products: one for each thread that multiplies

The sizes of its results are known then, too: tensors without values do not know what cuDNN keeps for a backward pass.
So all that is needed of the GPU is room for one call at a time.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_unflatten

from fedwidth.errors import OptionError
from fedwidth.gpu import on_gpu, with_precision

BLOCK = 512
"""PyTorch hands out a GPU's memory in multiples of so many bytes."""
LARGE, SEGMENT, LEAST_REST = 10 * 2**20, 2 * 2**20, 2**20
"""From the first size on a tensor has memory of its own, in multiples of the second; a rest that is no larger than the
third is not given to others."""
RECURRENT = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
"""PyTorch's functions of recurrent layers, and cuDNN's numbers for them."""


class Form(NamedTuple):
    """What a tensor is, but for its values."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    offset: int = 0
    """Where it begins in its first block: kernels look at the alignment."""

    @classmethod
    def of(cls, tensor: Tensor) -> Form:
        """The form of a tensor."""
        offset = tensor.storage_offset() % (BLOCK // tensor.element_size())
        return cls(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device, int(offset))

    def zeros(self) -> Tensor:
        """A tensor of this form."""
        reach = 1 + sum((n - 1) * step for n, step in zip(self.shape, self.stride, strict=True))
        room = self.offset + (0 if 0 in self.shape else reach)
        return torch.zeros(room, dtype=self.dtype, device=self.device).as_strided(self.shape, self.stride, self.offset)

    def empty(self) -> Tensor:
        """A tensor of this form, at the beginning of its memory."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=self.device)


class Result(NamedTuple):
    """A tensor that a call has made."""

    form: Form
    bytes: int
    given: bool = False
    """Whether it lies in a tensor that the call was given, and takes nothing."""


class Answer(NamedTuple):
    """What a call takes."""

    passing: int = 0
    """Bytes beside its results, while it lasts."""
    kept: int = 0
    """Bytes that stay taken when it is over, and its results are gone."""
    results: tuple[Any, ...] = ()
    """Of what it returns, flattened: a `Result` for each tensor, anything else as it is. Empty: not known."""
    structure: Any = None
    """How they are put together again."""


Ask = Callable[[Any, Sequence[Any], Mapping[str, Any]], Answer]
"""Given an operator and what it is called with: what that takes."""


def block_of(size: int) -> int:
    """How many bytes a tensor of so many takes of a GPU.

    >>> block_of(1), block_of(12 * 2**20 + 1) // 2**20, block_of(13 * 2**20) // 2**20
    (512, 12, 14)
    """
    rounded = -(-size // BLOCK) * BLOCK
    if rounded >= LARGE:
        rest = -rounded % SEGMENT
        rounded += rest if rest <= LEAST_REST else 0
    return rounded


class Kernels:
    """Asks the kernels of a GPU; each call of a play once in every thread, as each has workspaces of its own."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._answers: dict[Any, Answer] = {}
        self._refused: set[str] = set()

    def __call__(self, operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Answer:
        """What the call takes."""
        leaves, structure = tree_flatten((tuple(args), dict(kwargs)))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if all(tensor.device != self.device for tensor in tensors):
            return Answer()
        if any(tensor.layout != torch.strided for tensor in tensors):
            return self._unknown(operator, "its tensors are sparse")
        forms = [Form.of(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        key = (threading.get_ident(), operator, str(structure), *((type(form), form) for form in forms))
        if key in self._answers:
            return self._answers[key]
        answer = self._ask(operator, forms, structure)
        self._answers[key] = answer._replace(kept=0)  # it is there already the next time
        return answer

    def _ask(self, operator: Any, forms: list[Any], structure: Any) -> Answer:
        taken = torch.cuda.memory_allocated
        with _disable_current_modes(), torch.no_grad(), torch.autocast("cuda", enabled=False):
            try:
                given = [form.zeros() if isinstance(form, Form) else form for form in forms]
                args, kwargs = tree_unflatten(given, structure)
                before = taken(self.device)
                torch.cuda.reset_peak_memory_stats(self.device)
                made = operator(*args, **kwargs)
                highest, after = torch.cuda.max_memory_allocated(self.device), taken(self.device)
                results, shape = _results(made, given)
                made = None
                return Answer(highest - after, taken(self.device) - before, results, shape)
            except torch.OutOfMemoryError:
                raise OptionError(
                    f"{_name(operator)} alone does not fit the memory of {torch.cuda.get_device_name(self.device)}:"
                    " a smaller batch or width may"
                ) from None
            except RuntimeError as error:
                return self._unknown(operator, str(error).partition("\n")[0])

    def _unknown(self, operator: Any, reason: str) -> Answer:
        if (name := _name(operator)) not in self._refused:
            self._refused.add(name)
            warnings.warn(f"what {name} takes beside its tensors is not counted: {reason}", stacklevel=2)
        return Answer()


def _name(operator: Any) -> str:
    return str(getattr(operator, "overloadpacket", operator))


def _results(made: Any, given: Sequence[Any]) -> tuple[tuple[Any, ...], Any]:
    """What a call has really made."""
    leaves, structure = tree_flatten(made)
    there = {leaf.untyped_storage()._cdata for leaf in given if isinstance(leaf, Tensor)}
    shared = Counter(leaf.untyped_storage()._cdata for leaf in leaves if isinstance(leaf, Tensor))

    def result(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        storage = leaf.untyped_storage()
        alone = shared[storage._cdata] == 1
        size = storage.nbytes() if alone else leaf.numel() * leaf.element_size()
        return Result(Form.of(leaf), size, storage._cdata in there)

    return tuple(map(result, leaves)), structure


@contextmanager
def asked(device: torch.device, precision: str) -> Iterator[Kernels]:
    """The kernels of a GPU, with the arithmetic of training (`Settings.precision`); afterwards all is as it was.

    Workspaces of matrix products are given back before and afterwards, so that it does not matter what the process has
    done before. Steps that were captured and are to be replayed may point to them: ask before anything is captured.
    The highest mark of PyTorch's memory statistics is reset.
    """
    if not torch.cuda.is_available():
        raise OptionError("the memory of a GPU is asked of the GPU itself, and there is none here")
    try:
        with on_gpu(device), with_precision(precision), torch.random.fork_rng(devices=[device]):
            torch._C._cuda_clearCublasWorkspaces()
            yield Kernels(device)
    finally:
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()


def lay_flat(module: nn.Module) -> None:
    """Lay the weights of each recurrent layer one after the other into one tensor, as cuDNN has them."""
    for layer in module.modules():
        if not isinstance(layer, nn.RNNBase):
            continue
        own = [getattr(layer, name) for name in layer._flat_weights_names]
        # Without biases there is room for them all the same.
        gates, ways = own[0].shape[0] // layer.hidden_size, 1 + layer.bidirectional
        unused = 0 if layer.bias else 2 * gates * layer.hidden_size * layer.num_layers * ways
        flat = own[0].new_empty(sum(weight.numel() for weight in own) + unused)
        laid: list[nn.Parameter] = []
        place = 0
        for name, weight in zip(layer._flat_weights_names, own, strict=True):
            part = flat.narrow(0, place, weight.numel()).view(weight.shape)
            laid.append(nn.Parameter(part, requires_grad=weight.requires_grad))
            layer._parameters[name] = laid[-1]
            place += weight.numel()
        layer._flat_weights = [*laid]
        layer._flat_weight_refs = [weakref.ref(weight) for weight in laid]  # or the layer lays them again


class CudnnLayers(TorchFunctionMode):
    """Calls cuDNN's recurrent layers themselves: PyTorch's functions look where weights lie, and these lie nowhere.

    Dropout between layers is left out: a mask of it takes an eighth of a number.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Make a call, of a recurrent layer with cuDNN's operator."""
        mode = RECURRENT.get(getattr(func, "__name__", ""))
        if mode is None or len(args) != 9 or not isinstance(args[2], (list, tuple)) or not args[0].is_cuda:
            return func(*args, **(kwargs or {}))
        inputs, hidden, weights, biases, layers, _, train, both_ways, batch_first = args
        state, cell = hidden if mode == RECURRENT["lstm"] else (hidden, None)
        size = (state if cell is None else cell).shape[-1]
        projected = state.shape[-1] if state.shape[-1] != size else 0
        reach = weights[0].untyped_storage().nbytes() // weights[0].element_size()
        flat = weights[0].detach().as_strided((reach,), (1,), 0)
        each = (4 if biases else 2) + bool(projected)
        made = torch.ops.aten._cudnn_rnn.default(
            inputs, list(weights), each, flat, state, cell, mode, size, projected, layers, batch_first, 0.0, train,
            both_ways, [], None,
        )  # fmt: skip
        return made[:2] if cell is None else made[:3]
