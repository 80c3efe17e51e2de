"""What several runs share: each data set, partition, plan and copy on a device is made once."""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict, replace
from typing import Any

from fedwidth.config.build import build_model, find_device, load_data, plan_key, plan_model, split_data
from fedwidth.config.method_settings import method_of
from fedwidth.data import Data, Partition
from fedwidth.experiment import Experiment
from fedwidth.plan import Plan
from fedwidth.settings import Settings


class Cache:
    """Data sets, partitions, plans and costs, kept by the settings they depend on."""

    def __init__(self) -> None:
        self._data: dict[str, Data] = {}
        self._placed: dict[tuple[str, str], Data] = {}
        self._partitions: dict[str, Partition] = {}
        self._plans: dict[str, Plan] = {}
        self._costs: dict[str, Any] = {}
        self._resolved: dict[str, Settings] = {}

    def data(self, settings: Settings) -> Data:
        """The data the settings name."""
        key = self.source(settings)
        if key not in self._data:
            self._data[key] = load_data(settings)
        return self._data[key]

    def partition(self, settings: Settings) -> Partition:
        """The partition of the data that the settings name."""
        key = json.dumps([asdict(settings.data), settings.seed], sort_keys=True)
        if key not in self._partitions:
            self._partitions[key] = split_data(settings, self.data(settings))
        return self._partitions[key]

    def plan(self, settings: Settings) -> Plan:
        """The plan of the model the settings name."""
        key = self.source(settings) + plan_key(settings)
        if key not in self._plans:
            data = self.data(settings)
            _, self._plans[key] = plan_model(build_model(settings, data), settings, data)
        return self._plans[key]

    def experiment(self, settings: Settings) -> Experiment:
        """The experiment of these settings; runs on one device share the data there."""
        device = find_device(settings.device)
        key = (self.source(settings), settings.device)
        if key not in self._placed:
            data = self.data(settings)
            self._placed[key] = data if device.type == "cpu" else data.to(device)
        experiment = Experiment(settings, data=self._placed[key], partition=self.partition(settings), named=True)
        parts = [asdict(settings.model), asdict(settings.adapter), *map(asdict, settings.models)]
        model = json.dumps([key, *parts], sort_keys=True)
        experiment.costs.known = self._costs.setdefault(model, experiment.costs.known)
        return experiment

    def resolved(self, settings: Settings) -> Settings:
        """The settings as the run's folder has them: with what only the model can tell, which needs one to be made.

        It tells what capacities and profiles budgets come to, and whether a scaler has anything to scale.
        """
        scaled = settings.training.scaler and (settings.adapter.rank or method_of(settings).adapters)
        if not settings.devices.budgets and not scaled:
            return settings
        key = json.dumps(asdict(replace(settings, name="", answers="")), sort_keys=True, default=str)
        if key not in self._resolved:
            with warnings.catch_warnings(action="ignore"):  # they are said when it is its turn
                self._resolved[key] = self.experiment(settings).settings
        found = self._resolved[key]
        return replace(settings, devices=found.devices, training=found.training)

    @staticmethod
    def source(settings: Settings) -> str:
        """The settings that the data depend on, as one text."""
        return json.dumps(
            [settings.data.name, settings.data.root, settings.data.options, settings.data.cache], sort_keys=True
        )
