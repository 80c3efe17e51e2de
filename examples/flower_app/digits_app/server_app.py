"""The server of the app."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from digits_app.task import Net, load_test_data, test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train the model on the nodes of the grid."""
    torch.manual_seed(0)
    net = Net()

    def evaluate(_: int, arrays: ArrayRecord) -> MetricRecord:
        net.load_state_dict(arrays.to_torch_state_dict())
        loss, accuracy = test(net, load_test_data(), "cpu")
        return MetricRecord({"loss": loss, "accuracy": accuracy})

    strategy = FedAvg(fraction_evaluate=context.run_config["fraction-evaluate"], min_available_nodes=4)
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(net.state_dict()),
        train_config=ConfigRecord({"lr": context.run_config["learning-rate"]}),
        num_rounds=context.run_config["num-server-rounds"],
        evaluate_fn=evaluate,
    )
