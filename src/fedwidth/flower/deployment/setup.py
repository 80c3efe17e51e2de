"""What `deploy init` was asked for, and where its server is."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from pathlib import Path

from fedwidth.errors import OptionError
from fedwidth.settings import Settings

MARK = "deployment.json"
"""Facts about the deployment; its presence says that a folder is one."""
LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class Plan:
    """What `deploy init` was asked for."""

    address: str = "127.0.0.1"
    """Where nodes reach the server: a host name or an address."""
    port: int = 8443
    node_port: int = 9094
    """Port of the first node's own API on its machine; the others count up from it."""
    nodes: int = 4
    capacities: tuple[str, ...] = ()
    """Capacity of each node in turn; none: as the recipe deals them."""
    days: int = 365
    """How long the server's certificate is valid."""

    @property
    def is_ipv6(self) -> bool:
        """Whether the address is one of IP's version 6."""
        return ":" in self.address

    @property
    def host(self) -> str:
        """Where the server listens: on this machine only if that is its address, else everywhere."""
        return self.address if self.address in LOOPBACK else "::" if self.is_ipv6 else "0.0.0.0"

    @property
    def near(self) -> str:
        """Where the server's own machine reaches it."""
        return self.address if self.address in LOOPBACK else "::1" if self.is_ipv6 else "127.0.0.1"

    @property
    def hosts(self) -> list[str]:
        """What the server's certificate is for."""
        return list(dict.fromkeys([self.address, "127.0.0.1", "::1", "localhost"]))

    def capacity_of(self, client: int) -> str:
        """What a client was planned to train; nothing: as the recipe deals it."""
        return self.capacities[client % len(self.capacities)] if self.capacities and client < self.nodes else ""


def with_port(host: str, port: int) -> str:
    """An address as Flower reads it.

    >>> with_port("fed.example.org", 8443), with_port("::1", 8443)
    ('fed.example.org:8443', '[::1]:8443')
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_plan(plan: Plan, settings: Settings) -> None:
    """What can be seen to be wrong before anything is written."""
    from fedwidth.devices.capacity import parse_capacity

    if not 1 <= plan.nodes <= settings.data.clients:
        raise OptionError(f"nodes must be from 1 to the recipe's {settings.data.clients} clients, not {plan.nodes}")
    for name in ("port", "node_port"):
        if not 1 <= getattr(plan, name) <= 65535 - plan.nodes:
            raise OptionError(
                f"{name.replace('_', '-')} must be a port from 1 to {65535 - plan.nodes}, not {getattr(plan, name)}"
            )
    if not plan.address or any(c.isspace() or c in "/\"'$`\\" for c in plan.address):
        raise OptionError(f"address must be a host name or an IP address, not '{plan.address}'")
    if plan.days < 1:
        raise OptionError(f"days must be at least 1, not {plan.days}")
    if len(plan.capacities) > plan.nodes:
        raise OptionError(f"{len(plan.capacities)} capacities were given for {plan.nodes} nodes: give one each at most")
    for capacity in plan.capacities:
        parse_capacity(capacity)


def read_plan(folder: Path) -> Plan:
    """The plan a folder was made from."""
    try:
        facts = json.loads((folder / MARK).read_text())
        return Plan(**{**facts, "capacities": tuple(facts["capacities"])})
    except (OSError, ValueError, TypeError, KeyError):
        raise OptionError(f"{folder} is no deployment: it has no readable {MARK}; make one with deploy init") from None


def listens(plan: Plan) -> bool:
    """Whether something listens on this machine where the server would."""
    try:
        with socket.create_connection((plan.near, plan.port), timeout=1.0):
            return True
    except OSError:
        return False
