"""A deployment's figures for Prometheus, which asks for them, and for OpenTelemetry, to which they are sent.

Both packages are extras: `pip install 'fedwidth[metrics]'`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from fedwidth.errors import OptionError
from fedwidth.watching.figures import Deployment, Figure

PORT = 9464
"""The port that OpenTelemetry's conventions have for Prometheus."""


class PrometheusCollector:
    """What Prometheus's client asks for at each scrape: the figures as they are then."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment

    def collect(self) -> Iterable[Any]:
        """The figures as Prometheus has them."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for figure in self.deployment.figures():
            kind = CounterMetricFamily if figure.total else GaugeMetricFamily
            names = sorted({name for labels, _ in figure.values for name in labels})
            family = kind(figure.name, figure.help, labels=names)
            for labels, value in figure.values:
                family.add_metric([labels[name] for name in names], value)
            yield family


def serve_prometheus(folder: Path, *, host: str = "127.0.0.1", port: int = PORT) -> tuple[Any, Any]:
    """Answer Prometheus at /metrics on this address, in a thread; returns the server and the thread."""
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ModuleNotFoundError:
        raise OptionError("prometheus-client is not installed: pip install 'fedwidth[metrics]'") from None
    registry = CollectorRegistry()
    registry.register(PrometheusCollector(Deployment(folder)))
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise OptionError(f"cannot listen on port {port} of {host}: {error.strerror or error}") from None
    return server, thread


def send_telemetry(folder: Path, reader: Any) -> Any:
    """Hand the figures to a reader of OpenTelemetry's whenever it asks; returns the provider, which is shut down."""
    try:
        from opentelemetry.metrics import CallbackOptions, Observation
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.resources import Resource
    except ModuleNotFoundError:
        raise OptionError("opentelemetry-sdk is not installed: pip install 'fedwidth[metrics]'") from None
    deployment = Deployment(folder)
    resource = Resource.create({"service.name": "fedwidth", "service.instance.id": folder.name})
    provider = MeterProvider(metric_readers=[reader], resource=resource)
    meter = provider.get_meter("fedwidth")

    def observe(name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def look(_: CallbackOptions) -> Iterable[Observation]:
            found = [figure for figure in deployment.figures() if figure.name == name]
            return [Observation(value, dict(labels)) for figure in found for labels, value in figure.values]

        return look

    known = {figure.name: figure for figure in (*LATER, *deployment.figures())}
    for figure in known.values():
        make = meter.create_observable_counter if figure.total else meter.create_observable_gauge
        make(figure.name.replace("fedwidth_", "fedwidth."), [observe(figure.name)], description=figure.help)
    return provider


def metrics_url(collector: str) -> str:
    """Where an OpenTelemetry collector takes metrics, given its address: under /v1/metrics, unless that has a path.

    >>> metrics_url("http://127.0.0.1:4318"), metrics_url("https://collector.example.org/own/path")
    ('http://127.0.0.1:4318/v1/metrics', 'https://collector.example.org/own/path')
    """
    try:
        found = urlsplit(collector)
        known = found.scheme in ("http", "https") and bool(found.hostname) and found.port != 0
    except ValueError:  # a port that is no number
        known = False
    if not known:
        raise OptionError(f"the collector is '{collector}', which must be a URL such as http://127.0.0.1:4318")
    return collector if found.path.strip("/") else urlunsplit(found._replace(path="/v1/metrics"))


def otlp_reader(collector: str, seconds: float) -> Any:
    """A reader that sends what it finds to an OpenTelemetry collector, over HTTP, every so many seconds."""
    endpoint = metrics_url(collector)
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    except ModuleNotFoundError:
        raise OptionError(
            "opentelemetry-exporter-otlp-proto-http is not installed: pip install 'fedwidth[metrics]'"
        ) from None
    return PeriodicExportingMetricReader(OTLPMetricExporter(endpoint), export_interval_millis=1000 * seconds)


LATER = tuple(
    Figure(f"fedwidth_{key}", f"{key.replace('_', ' ')} as last measured", ())
    for key in ("global_accuracy", "local_accuracy", "global_loss", "train_loss")
)
"""Figures that are not there before the first evaluation; OpenTelemetry wants to know their names at the start."""
