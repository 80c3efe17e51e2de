"""Running on real devices with Flower: inside an app of one's own, or as a deployment of ours with all around it.

`Strategy`, `introduce`, `fitted` and `local_loss` are for an app of one's own (`strategy/`, docs/flower-strategy.md).
Everything else is the deployment (docs/deploy-flower.md): a ServerApp, a ClientApp, and what they need around them.

Nothing here imports flwr until it is used; it comes with `pip install 'fedwidth[flower]'`. Flower's own words are used:
the SuperLink is the server that devices connect to; a SuperNode is Flower's process on a device, and a node is what the
SuperLink calls it; the ServerApp and the ClientApp are a run's code on the server and on a device. Each device is one
of the recipe's clients. Read in this order:

server       the ServerApp: the same experiment as `fedwidth run`, with the run config of a deployment (run_config)
engine       trains a round's tasks on nodes: the same arithmetic as every other engine
records      how a task and its answer are sent, and the checks of an answer; exchange, bounds: messages and replies;
             patience: how long a round waits; printable: what devices say, fit for a log
attendance   which nodes are connected, which client each is, what it can afford (budgets), who is slow (stragglers)
node/        what runs on a device: client_app, the ClientApp, which imports torch only where it must train itself;
             training; trainer, a process that stays up and trains; device, which keeps trainer and SuperNode running
access/      who may do what: superlink, Flower's server behind a guard; authorisation, signing, enrolment, keys
deployment/  what `fedwidth deploy` does: app_folder writes a deployment, launch starts a run, doctor finds faults
versions     which versions of Flower deployments work with

Deployments need a POSIX system (Unix sockets, signals, file modes); the rest of the package does not.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedwidth.flower.strategy.client import fitted, introduce, local_loss
    from fedwidth.flower.strategy.strategy import Strategy

__all__ = ["Strategy", "fitted", "introduce", "local_loss"]

_HOMES = {"Strategy": "strategy", "fitted": "client", "introduce": "client", "local_loss": "client"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    try:
        return getattr(import_module(f"fedwidth.flower.strategy.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "flwr":
            raise
        raise ImportError("fedwidth.flower needs Flower: pip install 'fedwidth[flower]'") from None
