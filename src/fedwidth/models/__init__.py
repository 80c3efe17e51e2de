"""Models of the papers, and the two layers they need: the scaler and static batch norm."""

from fedwidth.models.catalogue import build, example_inputs, names, needs_shape
from fedwidth.models.cnn import Cnn
from fedwidth.models.lenet import LeNet
from fedwidth.models.mlp import Mlp
from fedwidth.models.preresnet import PreResNet18, fuse_norms
from fedwidth.models.scaler import Scaler, set_scaler
from fedwidth.models.static_norm import StaticBatchNorm2d, collect_statistics, forget_statistics
from fedwidth.models.transformer import Transformer

__all__ = [
    "Cnn",
    "LeNet",
    "Mlp",
    "PreResNet18",
    "Scaler",
    "StaticBatchNorm2d",
    "Transformer",
    "build",
    "collect_statistics",
    "example_inputs",
    "forget_statistics",
    "fuse_norms",
    "names",
    "needs_shape",
    "set_scaler",
]
