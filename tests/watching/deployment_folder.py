"""The folder of a deployment in the middle of its run, as its files are."""

from __future__ import annotations

import json
from pathlib import Path

from fedwidth.watching.audit import AuditLog

CONFIG = """name = "fed"
rounds = 6
seed = 1
[method]
name = "fedrolex"
[model]
name = "mlp"
options = { hidden = [12, 6] }
[data]
name = "digits"
clients = 6
partition = "iid"
[devices]
per_round = 4
"""
LINES = [
    {"round": 1, "clients": [0, 1, 2, 3], "capacities": [1.0, 0.25, 1.0, 0.25], "bytes_down": 1000, "bytes_up": 900,
     "macs": 10, "seconds": 10.0, "train_loss": 2.0, "global_accuracy": 0.4, "global_loss": 1.5},
    {"round": 2, "clients": [0, 1], "capacities": [1.0, 0.25], "bytes_down": 600, "bytes_up": 500, "macs": 5,
     "seconds": 22.0, "train_loss": 1.5,
     "cohort": [[0, 1.0], [1, 0.25], [2, 1.0], [3, 0.25]],
     "absent": {"2": "no answer within 60 s: it is connected, but too slow or its trainer hangs",
                "3": "'fc.weight' holds a value that is not finite <script>"}},
    {"round": 3, "clients": [0], "capacities": [1.0], "bytes_down": 300, "bytes_up": 200, "macs": 2, "seconds": 30.0,
     "train_loss": 1.2, "global_accuracy": 0.7, "global_loss": 0.9,
     "cohort": [[0, 1.0], [1, 0.25], [3, 0.25]],
     "absent": {"1": "no answer within 70 s: its connection was lost",
                "3": "its change has norm 90, above the bound 8"},
     "quarantined": {"3": 13}},
]  # fmt: skip


def write_deployment(folder: Path, lines=LINES) -> Path:
    (folder / "enrolled").mkdir(parents=True)
    for client in range(5):
        (folder / "enrolled" / f"client-{client}.json").write_text(json.dumps({"client": client, "public_key": "x"}))
    (folder / "run").mkdir()
    (folder / "run" / "config.toml").write_text(CONFIG)
    (folder / "run" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    log = AuditLog(folder / "audit.jsonl")
    log.note("enrolled", client=0)
    log.note("refused", why="this device is not enrolled")
    return folder
