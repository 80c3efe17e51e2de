"""Figures for Prometheus and OpenTelemetry, scraped and received by the real ones where they are there."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress

import pytest
from deployment_folder import write_deployment

pytest.importorskip("typer")  # some pairs of typer and click warn when they are imported

from fedwidth.cli.entry import run_command


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


@pytest.fixture
def endpoint(tmp_path):
    pytest.importorskip(
        "prometheus_client", reason="prometheus-client is not installed: pip install 'fedwidth[metrics]'"
    )
    from fedwidth.watching.exporters import serve_prometheus

    server, thread = serve_prometheus(write_deployment(tmp_path / "fed"), port=0)
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_endpoint_says_what_the_folder_says(endpoint):
    text = get(f"http://{endpoint}/metrics")
    assert "fedwidth_round 3.0" in text
    assert 'fedwidth_devices{state="late"} 1.0' in text
    assert 'fedwidth_bytes_total{direction="down"} 1900.0' in text
    assert 'fedwidth_absent_total{client="3"} 2.0' in text
    assert "# TYPE fedwidth_bytes_total counter" in text


def test_a_real_prometheus_scrapes_it(endpoint, tmp_path):
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("Prometheus is not installed (Debian: apt-get install prometheus)")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    config = tmp_path / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 1s}\nscrape_configs:\n- job_name: fedwidth\n"
        f"  static_configs: [{{targets: ['{endpoint}']}}]\n"
    )
    words = [
        program,
        f"--config.file={config}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with open(tmp_path / "log", "w") as log:
        process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT)
    try:
        query = f"http://127.0.0.1:{port}/api/v1/query?query=fedwidth_devices%7Bstate%3D%22quarantined%22%7D"
        deadline, found = time.monotonic() + 60, []
        while not found and time.monotonic() < deadline:
            with suppress(OSError, urllib.error.URLError):
                found = json.loads(get(query))["data"]["result"]
            time.sleep(0.5)
        assert found, (tmp_path / "log").read_text()[-2000:]
        assert found[0]["value"][1] == "1"
        assert found[0]["metric"]["state"] == "quarantined"
    finally:
        process.terminate()
        process.wait(30)


def test_opentelemetry_is_handed_the_same(tmp_path):
    pytest.importorskip(
        "opentelemetry.sdk", reason="opentelemetry-sdk is not installed: pip install 'fedwidth[metrics]'"
    )
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    from fedwidth.watching.exporters import send_telemetry

    reader = InMemoryMetricReader()
    provider = send_telemetry(write_deployment(tmp_path / "fed"), reader)
    found = {
        metric.name: {tuple(point.attributes.items()): point.value for point in metric.data.data_points}
        for resource in reader.get_metrics_data().resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    provider.shutdown()
    assert found["fedwidth.round"] == {(): 3.0}
    assert found["fedwidth.devices"][(("state", "late"),)] == 1.0
    assert found["fedwidth.bytes"][(("direction", "up"),)] == 1600.0


def test_the_command_listens_on_this_machine_alone_and_reads_deployments_alone(tmp_path, capsys):
    folder = write_deployment(tmp_path / "fed")
    assert run_command(["deploy", "metrics", str(folder), "--host", "0.0.0.0"]) == 2
    assert "lets other machines read the metrics" in capsys.readouterr().err
    assert run_command(["deploy", "metrics", str(tmp_path)]) == 2
    assert "is no deployment" in capsys.readouterr().err


def test_the_command_answers_and_ends(tmp_path):
    pytest.importorskip(
        "prometheus_client", reason="prometheus-client is not installed: pip install 'fedwidth[metrics]'"
    )
    folder = write_deployment(tmp_path / "fed")
    words = [sys.executable, "-m", "fedwidth", "deploy", "metrics", str(folder), "--port", "0"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        url = process.stdout.readline().split()[0]
        assert "fedwidth_round 3.0" in get(url)
    finally:
        process.terminate()
    assert process.wait(30) == 0
    process.stdout.close()


def test_the_audit_command_prints_and_checks(tmp_path, capsys):
    folder = write_deployment(tmp_path / "fed")
    assert run_command(["deploy", "audit", str(folder)]) == 0
    printed = capsys.readouterr()
    assert "enrolled  client=0" in printed.out
    assert "2 lines, none of them changed" in printed.err
    path = folder / "audit.jsonl"
    path.write_text(path.read_text().replace('"client": 0', '"client": 1'))
    assert run_command(["deploy", "audit", str(folder)]) == 2
    assert "the log was changed" in capsys.readouterr().err
