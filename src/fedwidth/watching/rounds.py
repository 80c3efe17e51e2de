"""What a round says to the audit log: what it took, whose work was refused, who is in quarantine, lost accuracy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedwidth.watching.audit import AuditLog
from fedwidth.watching.presence import REFUSED, state_of

ROUND = "round"
"""The event of a round that is done: how many clients counted and how many did not, and bytes of sub-models."""


def note_round(log: AuditLog, line: Mapping[str, Any]) -> None:
    """Note that a round is done, and what of it an operator may be asked about later."""
    log.note(
        ROUND,
        round=line["round"],
        clients=len(line["clients"]),
        absent=len(line.get("absent", {})),
        bytes_down=line.get("bytes_down"),
        bytes_up=line.get("bytes_up"),
    )
    for client, why in line.get("absent", {}).items():
        if state_of(why) == REFUSED:
            log.note("update refused", round=line["round"], client=int(client), why=why)
    for client, last in line.get("quarantined", {}).items():
        log.note("quarantined", round=line["round"], client=int(client), until=last)
    if "alarm" in line:
        log.note("alarm", round=line["round"], points=line["alarm"])
