"""Running on real devices with Flower: a ServerApp, a ClientApp, and what a deployment needs around them.

Nothing here imports flwr until it is used; it comes with `pip install 'fedwidth[flower]'`. Read in this order:

engine      trains a round's tasks on nodes: the same arithmetic as every other engine
records     what goes over the wire, and the checks on what comes back; exchange, bounds: how it gets there
            patience: how long that may take; printable: what devices say, fit for a log
roll        who is there, which client each node is and what it can afford (budgets), and who is slow (stragglers)
server      the ServerApp
node_app    the ClientApp; imports neither torch nor fedwidth until it must train itself
local       training on a node; resident: a process that stays up for it; wire: how the two talk
app_folder  what `fedwidth deploy init` writes: keys, templates, scripts that call superlink, launch and device
superlink   Flower's server behind a guard; launch: a run and what became of it; device: a node that stays connected
doctor      what is wrong with a deployment: check_keys, check_server, findings; versions: which Flower it needs
in_process  a grid without network
"""
