"""OpenTelemetry's metrics sent for real: by the command, over HTTP, to a server that reads them as a collector does."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from deployment_folder import LINES, write_deployment

pytest.importorskip("typer")  # some pairs of typer and click warn when they are imported
pytest.importorskip("prometheus_client", reason="prometheus-client is not installed: pip install 'fedwidth[metrics]'")
pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is not installed: pip install 'fedwidth[metrics]'")
pytest.importorskip(
    "opentelemetry.exporter.otlp.proto.http",
    reason="opentelemetry-exporter-otlp-proto-http is not installed: pip install 'fedwidth[metrics]'",
)

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_CUMULATIVE

from fedwidth.cli.entry import run_command


class Collector(ThreadingHTTPServer):
    """Takes what is sent to /v1/metrics, by the protocol's own messages; the first `busy` times it cannot."""

    daemon_threads = True

    def __init__(self, busy: int = 0) -> None:
        super().__init__(("127.0.0.1", 0), Receiver)
        self.busy = busy
        self.refused: list[str] = []
        """What is no metrics of the protocol."""
        self.received: list[ExportMetricsServiceRequest] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def wait(self, number: int) -> ExportMetricsServiceRequest:
        """The last of what was received, once there have been so many."""
        deadline = time.monotonic() + 60
        while len(self.received) < number:
            assert time.monotonic() < deadline, f"{len(self.received)} received; refused: {self.refused}"
            time.sleep(0.05)
        return self.received[-1]


class Receiver(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.busy:
            self.server.busy -= 1
            self.answer(503)
            return
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        kind = self.headers["Content-Type"]
        if self.path != "/v1/metrics" or kind != "application/x-protobuf":
            self.server.refused.append(f"{self.path} {kind}")
            self.answer(404)
            return
        self.server.received.append(ExportMetricsServiceRequest.FromString(body))
        self.answer(200, ExportMetricsServiceResponse().SerializeToString())

    def answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_) -> None:
        pass


@pytest.fixture
def start(tmp_path):
    """Starts the command with a collector; returns both, and the deployment's folder."""
    running = []

    def begin(**options):
        collector, folder = Collector(**options), write_deployment(tmp_path / "fed")
        words = [sys.executable, "-m", "fedwidth", "deploy", "metrics", str(folder), "--port", "0", "--every", "0.3"]
        process = subprocess.Popen([*words, "--otlp", collector.url], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        running.append((collector, process))
        return collector, process, folder

    yield begin
    for collector, process in running:
        process.kill()
        process.wait()
        process.stdout.close()
        collector.shutdown()
        collector.server_close()


def values(request: ExportMetricsServiceRequest) -> dict[str, dict[str, float]]:
    """What was sent, by the name of the metric and its attributes in words."""
    return {
        metric.name: {
            ",".join(f"{pair.key}={pair.value.string_value}" for pair in point.attributes): point.as_double
            for point in (metric.sum if metric.HasField("sum") else metric.gauge).data_points
        }
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def test_a_collector_receives_the_figures_and_their_changes(start):
    collector, process, folder = start()
    first = collector.wait(1)
    (resource,) = first.resource_metrics
    named = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
    assert named["service.name"] == "fedwidth"
    assert named["service.instance.id"] == "fed"
    found = values(first)
    assert found["fedwidth.round"] == {"": 3.0}
    assert found["fedwidth.devices"]["state=late"] == 1.0
    assert found["fedwidth.bytes"] == {"direction=down": 1900.0, "direction=up": 1600.0}
    assert found["fedwidth.absent"]["client=3"] == 2.0
    assert found["fedwidth.global_accuracy"] == {"": 0.7}
    kinds = {metric.name: metric for scope in resource.scope_metrics for metric in scope.metrics}
    counter = kinds["fedwidth.bytes"].sum
    assert counter.is_monotonic
    assert counter.aggregation_temporality == AGGREGATION_TEMPORALITY_CUMULATIVE
    assert kinds["fedwidth.devices"].HasField("gauge")
    assert all(metric.description for metric in kinds.values())

    more = {**LINES[0], "round": 4, "seconds": 41.0, "global_accuracy": 0.8}
    with open(folder / "run" / "metrics.jsonl", "a") as file:
        file.write(json.dumps(more) + "\n")
    latest = values(collector.wait(len(collector.received) + 2))
    assert latest["fedwidth.round"] == {"": 4.0}
    assert latest["fedwidth.bytes"]["direction=down"] == 2900.0
    assert latest["fedwidth.global_accuracy"] == {"": 0.8}

    before = len(collector.received)
    process.terminate()
    assert process.wait(30) == 0
    assert len(collector.received) > before, "what there is at the end is sent before the end"
    assert not collector.refused


def test_a_collector_that_is_not_ready_is_tried_again(start):
    collector, process, _ = start(busy=2)
    assert values(collector.wait(1))["fedwidth.round"] == {"": 3.0}
    assert process.poll() is None


@pytest.mark.parametrize("wrong", ["127.0.0.1:4318", "grpc://127.0.0.1:4317", "http://", "http://here:port"])
def test_an_address_that_is_none_is_refused_in_one_line(tmp_path, capsys, wrong):
    folder = write_deployment(tmp_path / "fed")
    assert run_command(["deploy", "metrics", str(folder), "--otlp", wrong]) == 2
    said = capsys.readouterr().err
    assert f"'{wrong}', which must be a URL such as http://127.0.0.1:4318" in said
    assert len(said.strip().splitlines()) == 1
