"""Apple's pfl on the workload: its FederatedAveraging, its backend for simulations, users in the order given."""

from itertools import count

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch.nn import functional
from workload import BATCH, LEARNING_RATE, PER_ROUND, TinyCnn, run


class Model(TinyCnn):
    """The same network, with the two methods pfl asks for."""

    def loss(self, inputs, targets, eval=False):
        """Of a batch."""
        self.eval() if eval else self.train()
        return functional.cross_entropy(self(inputs), targets)

    def metrics(self, inputs, targets, eval=False):
        """None."""
        del inputs, targets, eval
        return {}


class Laps(TrainingProcessCallback):
    """Notes when a round has ended."""

    def __init__(self, clock):
        self.clock = clock

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        """A round has ended; go on."""
        del aggregate_metrics, model, central_iteration
        self.clock.lap()
        return False, Metrics()


def train(workload, arguments, clock):
    del arguments
    network = Model().to(workload.inputs.dtype)
    network.load_state_dict(workload.weights)
    model = PyTorchModel(
        model=network,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
    )
    asked = count()

    def user(number):
        del number  # the n-th user pfl asks for is the n-th of the workload
        return Dataset(raw_data=list(workload.samples(*divmod(next(asked), PER_ROUND))))

    users = iter(workload.cohorts.flatten().tolist())
    data = FederatedDataset(user, lambda: next(users, 0))
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=workload.rounds,
            evaluation_frequency=workload.rounds + 1,
            train_cohort_size=PER_ROUND,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=data, val_data=data),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=LEARNING_RATE, local_batch_size=BATCH
        ),
        callbacks=[Laps(clock)],
    )
    return network.state_dict()


if __name__ == "__main__":
    run(train)
