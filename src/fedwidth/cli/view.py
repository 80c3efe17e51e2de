"""Commands that show runs: report, and view while they go on."""

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


def report(
    folders: Annotated[list[Path], typer.Argument(help="Run folders.")],
    out: Annotated[Path | None, typer.Option("--out", help="File to write; default: report.html in the first.")] = None,
    figures: Annotated[Path | None, typer.Option("--figures", help="Also write PNG and SVG figures here.")] = None,
    target: Annotated[str, typer.Option("--target", help="Also say what reaching this accuracy took, e.g. 0.8")] = "",
) -> None:
    """Write one self-contained report.html about finished or running runs."""
    from fedwidth.cli.targets import parse_target, print_targets
    from fedwidth.report import write_figures, write_report

    wanted = parse_target(target) if target else None
    print(write_report(folders, out or folders[0] / "report.html"))
    if figures:
        for path in write_figures(folders, figures):
            print(path)
    if wanted is not None:
        print_targets(folders, wanted)
