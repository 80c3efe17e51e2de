"""Running on real devices with Flower: a ServerApp, a ClientApp, and what a deployment needs around them.

Nothing here imports flwr until it is used; it comes with `pip install 'fedwidth[flower]'`. Read in this order:

engine       trains a round's tasks on nodes: the same arithmetic as every other engine
records      what goes over the wire, and the checks on what comes back; exchange, bounds: how it gets there
             patience: how long that may take; printable: what devices say, fit for a log
attendance   who is there, which client each node is and what it can afford (budgets), and who is slow (stragglers)
server       the ServerApp
node/        what runs on a device: client_app, the ClientApp, which imports neither torch nor fedwidth until it must
             train itself; training; resident, a process that stays up for it; device, which keeps both running
access/      who may do what: keys, enrolment, operators and their signatures, superlink, Flower's server behind a guard
deployment/  what `fedwidth deploy` does: app_folder writes it, launch starts a run, doctor says what is wrong with it
versions     which Flower this was made for
in_process   a grid without network
"""
