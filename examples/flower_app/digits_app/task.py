"""The model, the data and the training of the app."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

TRAINING = 1400


class Net(nn.Module):
    """A small convolutional network."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.fc1 = nn.Linear(32 * 2 * 2, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x):
        """Logits of ten digits."""
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        return self.fc2(F.relu(self.fc1(torch.flatten(x, 1))))


def load_data(partition_id, num_partitions, batch_size):
    """The samples of one node: four in five to train on, the others to test on."""
    images, targets = _digits()
    images, targets = images[:TRAINING][partition_id::num_partitions], targets[:TRAINING][partition_id::num_partitions]
    cut = len(images) * 4 // 5
    generator = torch.Generator().manual_seed(partition_id)
    train_set, test_set = TensorDataset(images[:cut], targets[:cut]), TensorDataset(images[cut:], targets[cut:])
    return DataLoader(train_set, batch_size, shuffle=True, generator=generator), DataLoader(test_set, batch_size)


def load_test_data():
    """Samples that no node has."""
    images, targets = _digits()
    return DataLoader(TensorDataset(images[TRAINING:], targets[TRAINING:]), 128)


def train(net, trainloader, epochs, lr, device):
    """Train, and return the mean loss of the batches."""
    net.to(device)
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    total = 0.0
    for _ in range(epochs):
        for images, targets in trainloader:
            optimizer.zero_grad()
            loss = criterion(net(images.to(device)), targets.to(device))
            loss.backward()
            optimizer.step()
            total += loss.item()
    return total / (epochs * len(trainloader))


def test(net, testloader, device):
    """The loss and the accuracy on the loader's samples."""
    net.to(device)
    net.eval()
    correct, loss = 0, 0.0
    with torch.no_grad():
        for images, targets in testloader:
            logits = net(images.to(device))
            loss += F.cross_entropy(logits, targets.to(device), reduction="sum").item()
            correct += int((logits.argmax(1) == targets.to(device)).sum())
    return loss / len(testloader.dataset), correct / len(testloader.dataset)


def _digits():
    found = load_digits()
    return torch.tensor(found.images, dtype=torch.float32)[:, None] / 16, torch.tensor(found.target)
