"""The client of the app."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits_app.task import Net, load_data
from digits_app.task import test as test_fn
from digits_app.task import train as train_fn

app = ClientApp()
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


def loaders(context: Context):
    """The node's own samples."""
    here, parts = context.node_config["partition-id"], context.node_config["num-partitions"]
    return load_data(here, parts, context.run_config["batch-size"])


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the model on the node's samples."""
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    trainloader, _ = loaders(context)
    loss = train_fn(model, trainloader, context.run_config["local-epochs"], msg.content["config"]["lr"], device)
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(trainloader.dataset)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Test the model on the node's samples."""
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    _, testloader = loaders(context)
    loss, accuracy = test_fn(model, testloader, device)
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(testloader.dataset)})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
