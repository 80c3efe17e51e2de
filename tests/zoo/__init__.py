"""Small versions of the architectures a plan must be right on, each with the same class at half width.

A network goes into the file of its kind, its case into `cases.py`; the tests of plans, of narrow modules and of the
contracts run over all cases.
"""

from zoo.case import Build, Case, build, doubled, run
from zoo.cases import EVERY, PLANNED, ZOO
from zoo.convolutional import MLP, FlatCNN
from zoo.hugging_face import HUGGING_FACE
from zoo.problem_cases import PROBLEMS
from zoo.residual import ResNet
from zoo.sequences import Recurrent, TiedLM, TorchTransformer
from zoo.traced import traced

__all__ = [
    "EVERY",
    "HUGGING_FACE",
    "MLP",
    "PLANNED",
    "PROBLEMS",
    "ZOO",
    "Build",
    "Case",
    "FlatCNN",
    "Recurrent",
    "ResNet",
    "TiedLM",
    "TorchTransformer",
    "build",
    "doubled",
    "run",
    "traced",
]
