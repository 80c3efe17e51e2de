"""Flower's SuperLink behind a guard.

    python -m fedwidth.flower.superlink [--most-bytes N] [--most-reply N] [--control any] …

The rest of the command line is `flower-superlink`'s own. Flower 1.41 serves nodes, operators and apps on one port, and
reads a request before it knows who sent it. The guard

- refuses request bodies above `--most-bytes` (16 MiB; honest parts are 5 MiB) unread, with status 413;
- refuses the parts of a reply beyond `--most-reply` bytes (128 MiB; set it to a little more than the model): Flower
  holds up to three times as much in memory, and gigabytes in its database lock it for all nodes;
- waits for a locked database longer than Flower's 5 seconds, after which SuperExec would give up for good and no run
  would start any more;
- lets only this machine register nodes, start runs and fetch results (`--control any` lifts it): else whoever reaches
  the port could register a key of their own, and node authentication would keep nobody out.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from fedwidth.errors import OptionError
from fedwidth.flower.guard import MOST_BYTES, MOST_REPLY, Guard
from fedwidth.flower.versions import check_flower

LOCK_MILLISECONDS = "25000"
"""Below the 30 seconds after which Flower's own clients give up."""


def main() -> None:
    """Start the SuperLink with the guard in front."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--most-bytes", type=int, default=MOST_BYTES)
    parser.add_argument("--most-reply", type=int, default=MOST_REPLY)
    parser.add_argument("--control", choices=("local", "any"), default="local")
    own, rest = parser.parse_known_args()
    try:
        check_flower()
    except OptionError as error:
        raise SystemExit(f"error: {error}") from None
    from flwr.supercore import sql_mixin
    from flwr.superlink import extensions
    from flwr.superlink.cli import flower_superlink

    configure = extensions.configure_app

    def guarded(app: Any) -> None:
        configure(app)
        app.add_middleware(Guard, most=own.most_bytes, most_reply=own.most_reply, local_control=own.control == "local")

    extensions.configure_app = guarded
    sql_mixin.SQLITE_PRAGMAS = (*sql_mixin.SQLITE_PRAGMAS, ("busy_timeout", LOCK_MILLISECONDS))
    sys.argv = ["flower-superlink", *rest]
    flower_superlink()


if __name__ == "__main__":
    main()
