"""What a model is trained for: the loss, what is measured, and which part of the model's output counts.

An `Objective` says all of it, in one place; engines and evaluation ask it and know no task by name.
"""

from fedwidth.objectives.catalogue import CLASSIFICATION, OBJECTIVES, metric_of, objective_of
from fedwidth.objectives.metric import Metric
from fedwidth.objectives.objective import Objective
from fedwidth.objectives.output import arguments, call

__all__ = ["CLASSIFICATION", "OBJECTIVES", "Metric", "Objective", "arguments", "call", "metric_of", "objective_of"]
