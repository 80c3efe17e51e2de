"""Commands for whoever runs a deployment: deploy metrics and deploy audit."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from typing import Annotated

import typer

from fedwidth.errors import OptionError

Folder = Annotated[Path, typer.Argument(help="Folder of the deployment.")]


def metrics(
    folder: Folder,
    port: Annotated[int, typer.Option("--port", help="Port for Prometheus to ask at; 0: any that is free.")] = 9464,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    expose: Annotated[bool, typer.Option("--expose", help="Allow a --host that other machines can reach.")] = False,
    otlp: Annotated[
        str,
        typer.Option(
            "--otlp", help="Also send to this OpenTelemetry collector, such as http://127.0.0.1:4318 (OTLP over HTTP)."
        ),
    ] = "",
    seconds: Annotated[float, typer.Option("--every", help="Seconds between two sendings.", min=0.1)] = 15.0,
) -> None:
    """Answer Prometheus at /metrics, on this machine alone unless told otherwise; it only reads the folder."""
    from fedwidth.report.serve import is_local
    from fedwidth.watching.exporters import otlp_reader, send_telemetry, serve_prometheus

    if not (folder / "enrolled").is_dir():
        raise OptionError(f"{folder} is no deployment: it has no folder of enrolled devices")
    if not is_local(host) and not expose:
        raise OptionError(f"--host {host} lets other machines read the metrics; add --expose if that is wanted")
    provider = send_telemetry(folder, otlp_reader(otlp, seconds)) if otlp else None
    server, thread = serve_prometheus(folder, host=host, port=port)
    print(f"http://{host}:{server.server_address[1]}/metrics  (Ctrl-C ends it)", flush=True)
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    ended.wait()
    server.shutdown()
    thread.join()
    if provider is not None:
        provider.shutdown()


def audit(
    folder: Folder,
    as_json: Annotated[bool, typer.Option("--json", help="Print the lines as they are.")] = False,
) -> None:
    """Print the audit log, and say whether it is as it was written. Exit code 2: it was changed."""
    from fedwidth.watching.audit import NAME, AuditLog

    log = AuditLog(folder / NAME)
    if not log.path.exists():
        raise OptionError(f"{folder} has no {NAME} yet")
    for line in log.lines():
        if as_json:
            import json

            print(json.dumps(line))
            continue
        facts = " ".join(f"{name}={value}" for name, value in line.items() if name not in ("time", "event", "previous"))
        print(f"{line['time']}  {line['event']}  {facts}".rstrip())
    print(f"{log.check()} lines, none of them changed", file=sys.stderr)
