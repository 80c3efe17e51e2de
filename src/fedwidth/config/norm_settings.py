"""Settings of norms by capacity: what does not go with them."""

from __future__ import annotations

from torch import nn

from fedwidth.core.norms import norm_tensors
from fedwidth.errors import OptionError
from fedwidth.methods import Method
from fedwidth.settings import Settings


def check_norms(settings: Settings, method: Method) -> None:
    """Refuse norms by capacity where clients of one capacity cannot be averaged by themselves."""
    server = settings.server
    if server.norms == "shared":
        return
    if (reason := why_not_by_capacity(method)) is not None:
        raise OptionError(f"server.norms must be shared with {method.title}: {reason}")
    if settings.secure.enabled:
        raise OptionError("server.norms must be shared with secure.enabled: a sum is opened for all who hold a part")
    if settings.privacy.noise:
        raise OptionError(
            "server.norms must be shared with privacy.noise: the noise is made for one sum of all clients"
        )
    if server.clip or server.screen or server.robust != "none":
        raise OptionError(
            "server.norms must be shared with server.clip, screen and robust: they compare updates of one state, and"
            " clients of each capacity would be sent another"
        )
    if settings.adapter.rank:
        raise OptionError("server.norms must be shared with adapter.rank: the model's norms are frozen there")


def why_not_by_capacity(method: Method) -> str | None:
    """The reason why norms of a method cannot be kept by capacity, or None where they can.

    >>> from fedwidth.methods import method
    >>> why_not_by_capacity(method("fedrolex")), why_not_by_capacity(method("fjord"))
    (None, 'its clients train several widths in turn')
    """
    local = method.local
    if not method.slices or method.adapters:
        return "its clients hold no slices of the model"
    if method.public:
        return "its server trains the whole model, and no narrow one, with data of its own"
    if local is not None and local.widths is not None:
        return "its clients train several widths in turn"
    if local is not None and (local.sends is not None or local.adds or local.own):
        return "what its clients are sent beside their sub-models is averaged over all capacities"
    return None


def check_model_norms(settings: Settings, model: nn.Module) -> None:
    """Refuse norms by capacity of a model that has none to keep."""
    if settings.server.norms != "shared" and not norm_tensors(model):
        raise OptionError(
            f"server.norms is {settings.server.norms}, but the model has no normalisation layers that are trained"
        )
