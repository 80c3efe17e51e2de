"""Engines: ways to train the clients of a round, all with the same results."""

from __future__ import annotations

from fedwidth.engines.choice import Choice, choose_engine
from fedwidth.engines.flat.engine import FlatEngine
from fedwidth.engines.making import make_engine
from fedwidth.engines.processes.engine import ProcessEngine
from fedwidth.engines.serial import SerialEngine

__all__ = ["Choice", "FlatEngine", "ProcessEngine", "SerialEngine", "choose_engine", "make_engine"]
