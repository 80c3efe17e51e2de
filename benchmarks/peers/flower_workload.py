"""Flower's simulation on the workload: its FedAvg, Ray with one actor per core, messages that name the client."""

import os

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch.nn import functional
from workload import BATCH, CLIENTS, LEARNING_RATE, PER_ROUND, SAMPLES, read_once, run

client_app = ClientApp()


@client_app.train()
def train_client(message, context):
    del context
    torch.set_num_threads(1)
    wanted = message.content["config"]
    workload, model = read_once(wanted["file"])  # kept by the actor: no peer reads its data again
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    inputs, targets = workload.samples(wanted["round"], wanted["position"])
    for batch, answers in zip(inputs.split(BATCH), targets.split(BATCH), strict=True):
        optimiser.zero_grad()
        functional.cross_entropy(model(batch), answers).backward()
        optimiser.step()
    answer = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": SAMPLES})}
    return Message(content=RecordDict(answer), reply_to=message)


class Average(FedAvg):
    """FedAvg that says which client of the workload each node plays, and notes when a round has ended."""

    def __init__(self, file, clock):
        super().__init__(fraction_train=PER_ROUND / CLIENTS, fraction_evaluate=0.0, min_available_nodes=CLIENTS)
        self.file, self.clock = file, clock

    def configure_train(self, server_round, arrays, config, grid):
        """As FedAvg, each message with its own client."""
        messages = list(super().configure_train(server_round, arrays, config, grid))
        for position, message in enumerate(messages):
            wanted = ConfigRecord({"file": self.file, "round": server_round - 1, "position": position})
            message.content = RecordDict({"arrays": arrays, "config": wanted})
        return messages

    def aggregate_train(self, server_round, replies):
        """As FedAvg, on the clock."""
        found = super().aggregate_train(server_round, replies)
        self.clock.lap()
        return found


def train(workload, arguments, clock):
    server_app = ServerApp()
    final = {}

    @server_app.main()
    def main(grid, context):
        del context
        strategy = Average(str(arguments.file), clock)
        result = strategy.start(grid, ArrayRecord(workload.weights), num_rounds=workload.rounds)
        final.update(result.arrays.to_torch_state_dict())

    cores = len(os.sched_getaffinity(0))
    run_simulation(
        server_app,
        client_app,
        num_supernodes=CLIENTS,
        backend_config={
            "init_args": {"num_cpus": cores},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
    return final


if __name__ == "__main__":
    run(train)
