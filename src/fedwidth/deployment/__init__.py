"""Our own deployment on real devices, on Flower: who trains what, and all that is around it (docs/deploy-flower.md).

A ServerApp, a ClientApp, and what they need around them. An app of one's own needs none of it: `fedwidth.flower` does.

Nothing here imports flwr until it is used; it comes with `pip install 'fedwidth[flower]'`. Flower's own words are used:
the SuperLink is the server that devices connect to; a SuperNode is Flower's process on a device, and a node is what the
SuperLink calls it; the ServerApp and the ClientApp are a run's code on the server and on a device. Each device is one
of the recipe's clients. Read in this order:

server       the ServerApp: the same experiment as `fedwidth run`, with the run config of a deployment (run_config)
engine       trains a round's tasks on nodes: the same arithmetic as every other engine
records      how a task and its answer are sent, and the checks of an answer; exchange, reply_bounds: messages and
             replies; asking, patience: whom a round waits for, and how long
attendance   which nodes are connected, which client each is, what it can afford (budgets), who is slow (stragglers)
node/        what runs on a device: client_app, the ClientApp, which imports torch only where it must train itself;
             training; trainer, a process that stays up and trains; device, which keeps trainer and SuperNode running;
             forks, by which Flower's processes share what they have in common
access/      who may do what: superlink, Flower's server behind a guard; authorisation, signing, enrolment, keys
folder/      what `fedwidth deploy` does: app_folder writes a deployment, launch starts a run, doctor finds faults
secure/      the server's side of secure sums
versions     which versions of Flower deployments work with

What is used of Flower beyond its documented interface is in `PRIVATE` of tests/flower/test_flower_private.py, and no
other file may use more. Deployments need a POSIX system (Unix sockets, signals, file modes); the rest of the package
does not.
"""
