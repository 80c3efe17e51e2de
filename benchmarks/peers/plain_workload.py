"""A hand-written loop: one client after the other in plain PyTorch, the shortest way to say it."""

import torch
from torch.nn import functional
from workload import BATCH, LEARNING_RATE, run


def train(workload, arguments, clock):
    layout = torch.channels_last if arguments.channels_last else torch.contiguous_format
    model = workload.model().to(memory_format=layout)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for number, cohort in enumerate(workload.cohorts):
        total = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
        for position in range(len(cohort)):
            model.load_state_dict(state)
            optimiser = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
            inputs, targets = workload.samples(number, position)
            inputs = inputs.contiguous(memory_format=layout)
            for batch, answers in zip(inputs.split(BATCH), targets.split(BATCH), strict=True):
                optimiser.zero_grad()
                functional.cross_entropy(model(batch), answers).backward()
                optimiser.step()
            for name, tensor in model.state_dict().items():
                total[name] += tensor
        state = {name: tensor / len(cohort) for name, tensor in total.items()}
        clock.lap()
    return state


if __name__ == "__main__":
    run(train)
