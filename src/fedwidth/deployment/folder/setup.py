"""The facts that `deploy init` was given about a deployment: its address, ports, devices and days."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from pathlib import Path

from fedwidth.errors import OptionError
from fedwidth.settings import Settings

FACTS = "deployment.json"
"""The file that holds them; a folder with this file is a deployment."""
LOOPBACK = ("127.0.0.1", "::1", "localhost")
"""Addresses under which a machine reaches itself."""


@dataclass(frozen=True)
class Setup:
    """How a deployment is set up, as `deploy init` was told."""

    address: str = "127.0.0.1"
    """The host name or address at which devices reach the server."""
    port: int = 8443
    node_port: int = 9094
    """The port that the first device's SuperNode uses on its own machine; the others count up from it."""
    nodes: int = 4
    """How many devices there are at first: clients 0, 1, …"""
    capacities: tuple[str, ...] = ()
    """The capacity of each device in turn; none: as the recipe's mix gives them."""
    days: int = 365
    """How many days the server's certificate is valid."""

    @property
    def is_ipv6(self) -> bool:
        """Whether the address is an IPv6 address."""
        return ":" in self.address

    @property
    def listen_address(self) -> str:
        """The address at which the server listens: its own machine's alone if that is its address, else every one."""
        return self.address if self.address in LOOPBACK else "::" if self.is_ipv6 else "0.0.0.0"

    @property
    def local_address(self) -> str:
        """The address at which the server's own machine reaches it."""
        return self.address if self.address in LOOPBACK else "::1" if self.is_ipv6 else "127.0.0.1"

    @property
    def hosts(self) -> list[str]:
        """The host names and addresses that the server's certificate is for."""
        return list(dict.fromkeys([self.address, "127.0.0.1", "::1", "localhost"]))

    def capacity_of(self, client: int) -> str:
        """The capacity that was planned for a client; empty: as the recipe's mix gives it."""
        return self.capacities[client % len(self.capacities)] if self.capacities and client < self.nodes else ""


def with_port(host: str, port: int) -> str:
    """An address and a port in the form that Flower reads.

    >>> with_port("fed.example.org", 8443), with_port("::1", 8443)
    ('fed.example.org:8443', '[::1]:8443')
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_setup(setup: Setup, settings: Settings) -> None:
    """Refuse what can be seen to be wrong before anything is written."""
    from fedwidth.devices.capacity import parse_capacity

    if not 1 <= setup.nodes <= settings.data.clients:
        raise OptionError(f"nodes must be from 1 to the recipe's {settings.data.clients} clients, not {setup.nodes}")
    for name in ("port", "node_port"):
        if not 1 <= getattr(setup, name) <= 65535 - setup.nodes:
            raise OptionError(
                f"{name.replace('_', '-')} must be a port from 1 to {65535 - setup.nodes}, not {getattr(setup, name)}"
            )
    if not setup.address or any(c.isspace() or c in "/\"'$`\\" for c in setup.address):
        raise OptionError(f"address must be a host name or an IP address, not '{setup.address}'")
    if setup.days < 1:
        raise OptionError(f"days must be at least 1, not {setup.days}")
    if len(setup.capacities) > setup.nodes:
        raise OptionError(
            f"{len(setup.capacities)} capacities were given for {setup.nodes} nodes: give one each at most"
        )
    for capacity in setup.capacities:
        parse_capacity(capacity)


def read_setup(folder: Path) -> Setup:
    """Read how the deployment in a folder is set up; `OptionError` where the folder holds none."""
    try:
        facts = json.loads((folder / FACTS).read_text())
        return Setup(**{**facts, "capacities": tuple(facts["capacities"])})
    except (OSError, ValueError, TypeError, KeyError):
        raise OptionError(f"{folder} is no deployment: it has no readable {FACTS}; make one with deploy init") from None


def listens(setup: Setup) -> bool:
    """Whether something listens on this machine where the deployment's server would."""
    try:
        with socket.create_connection((setup.local_address, setup.port), timeout=1.0):
            return True
    except OSError:
        return False
