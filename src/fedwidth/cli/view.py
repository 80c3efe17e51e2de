"""The command that shows runs while they go on: view."""

from __future__ import annotations

import signal
import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer


def view(
    folder: Annotated[Path, typer.Argument(help="Folder of the run or runs; it may be empty or missing yet.")],
    port: Annotated[int, typer.Option("--port", help="Port to listen on; 0: any that is free.")] = 8750,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    expose: Annotated[bool, typer.Option("--expose", help="Allow a --host that other machines can reach.")] = False,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Show the report of a run in progress on 127.0.0.1, updating by itself."""
    import torch

    from fedwidth.report.serve import is_local, make_server, serve

    torch.set_num_threads(1)  # the run needs the others
    server = make_server(folder, host=host, port=port, expose=expose)
    if not is_local(host):
        print(f"warning: every machine that reaches {host} can read the runs in {folder}", file=sys.stderr)

    def announce(url: str) -> None:
        print(f"{url}  (Ctrl-C ends it)", flush=True)
        if open_page:
            webbrowser.open(url)

    for number in (signal.SIGINT, signal.SIGTERM):  # also where a shell that starts it in the background ignores Ctrl-C
        signal.signal(number, signal.default_int_handler)
    serve(server, announce)
