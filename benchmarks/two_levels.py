"""A tree of two levels on this machine: edge servers add up what their devices train, the root adds up the edges.

    python benchmarks/two_levels.py [--clients 40] [--edges 4] [--rounds 5]

Every edge is a process of its own. In each round the root chooses parts for the whole cohort and sends every edge its
tasks and the parts that these need; the edge trains its devices (one after the other, as `serial` does) and sends one
sum for each part. Printed: what passes the root with and without edges, and how far the final states are apart.
"""

from __future__ import annotations

import argparse
import multiprocessing
from typing import Any

import torch

from fedwidth.config.read import read_settings
from fedwidth.core.levels import merge_edges, pack_sums
from fedwidth.engines.serial import add_update
from fedwidth.experiment import Experiment
from fedwidth.training.engine import Report

RECIPE = """
model.name = "mlp"
model.options = {{ hidden = [128, 64] }}
data.clients = {clients}
devices.per_round = {clients}
devices.capacities = "a1-b1-c1"
training.batch_size = 16
evaluation.every = 1000
engine = "serial"
rounds = {rounds}
"""


def made(clients: int, rounds: int) -> Experiment:
    return Experiment(read_settings(RECIPE.format(clients=clients, rounds=rounds)).main)


def edge(pipe: Any, clients: int, rounds: int) -> None:
    """An edge server: trains the devices it is told about, and answers with their sums."""
    torch.set_num_threads(1)
    experiment = made(clients, rounds)
    while (order := pipe.recv()) is not None:
        round, tasks, subs = order
        sums: dict[str, Any] = {}
        for task in tasks:
            add_update(sums, task, experiment.trainer.train(subs[task.part.key], task, round).update)
        pipe.send(pack_sums(list(sums.values())))


def size(tensors: dict[str, torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=40)
    parser.add_argument("--edges", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    flat = made(given.clients, given.rounds).run().server.state
    experiment, context = made(given.clients, given.rounds), multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for _ in range(given.edges):
        ours, theirs = context.Pipe()
        processes.append(context.Process(target=edge, args=(theirs, given.clients, given.rounds), daemon=True))
        processes[-1].start()
        pipes.append(ours)
    server, down, up, flat_bytes = experiment.first_server(), 0, 0, 0
    for round in range(given.rounds):
        tasks = experiment.rounds.assign(server, experiment.cohort(round))
        indexes = {task.part.key: task.part for task in tasks}
        subs = {key: part.cut(server.state, experiment.plan) for key, part in indexes.items()}
        flat_bytes += 2 * sum(size(subs[task.part.key]) for task in tasks)
        for number, pipe in enumerate(pipes):  # devices belong to an edge for good
            own = [task for task in tasks if task.client % given.edges == number]
            parts = {task.part.key: subs[task.part.key] for task in own}
            down += sum(map(size, parts.values()))
            pipe.send((round, own, parts))
        packed = [pipe.recv() for pipe in pipes]
        up += sum(size(mean) for sums in packed for _, _, mean, _ in sums)
        sums = merge_edges(packed, indexes)
        server = experiment.rounds.close(server, tasks, sums, Report((0,) * len(tasks), (0.0,) * len(tasks)))
    for pipe in pipes:
        pipe.send(None)
    for process in processes:
        process.join(20)
    apart = max(float((server.state[name] - flat[name]).abs().max()) for name in flat)
    print(f"{given.clients} devices, {given.rounds} rounds: largest difference of the final states {apart:.2g}")
    print(f"exchanges of tensors at the root in a round: {given.clients} without edges, {given.edges} with them")
    with_edges = down + up
    times = flat_bytes / with_edges
    print(f"bytes at the root, both ways: {flat_bytes:,} without edges, {with_edges:,} with ({times:.1f} times fewer)")


if __name__ == "__main__":
    main()
