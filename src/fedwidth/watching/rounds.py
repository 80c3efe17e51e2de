"""What a round says to the audit log: whose work was refused, who was put into quarantine, and lost accuracy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedwidth.watching.audit import AuditLog
from fedwidth.watching.presence import REFUSED, state_of


def note_round(log: AuditLog, line: Mapping[str, Any]) -> None:
    """Note what an operator may be asked about later; a round in which all went well is not noted."""
    for client, why in line.get("absent", {}).items():
        if state_of(why) == REFUSED:
            log.note("update refused", round=line["round"], client=int(client), why=why)
    for client, last in line.get("quarantined", {}).items():
        log.note("quarantined", round=line["round"], client=int(client), until=last)
    if "alarm" in line:
        log.note("alarm", round=line["round"], points=line["alarm"])
