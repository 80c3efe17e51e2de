"""The command line. Exit codes: 0 done, 2 bad input (one clear line), 1 anything else."""

from __future__ import annotations

import errno
import os
import sys
import traceback
import warnings
from itertools import pairwise
from typing import Annotated, Any

import typer

import fedwidth
from fedwidth.errors import ClientError, FedwidthError, OptionError
from fedwidth.importing import what_failed

# Typer brings its own copy of click or uses the installed one, depending on its version: take the classes from it.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]

app = typer.Typer(
    name="fedwidth",
    help="Federated learning in which every device trains the width it can afford.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"fedwidth {fedwidth.__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    del version


def _add_commands() -> None:
    from fedwidth.cli import deploy, export, fit, inspect, privacy, reproduce, run, sweep, together, view

    app.command("run")(run.run)
    app.command("sweep")(sweep.sweep)
    app.command("report")(view.report)
    app.command("view")(view.view)
    app.command("reproduce")(reproduce.reproduce)
    app.command("methods")(inspect.list_methods)
    app.command("plan")(inspect.show_plan)
    app.command("cost")(inspect.show_cost)
    app.command("coverage")(inspect.show_coverage)
    app.command("partition")(inspect.show_partition)
    app.command("privacy")(privacy.privacy)
    app.command("fit")(fit.fit)
    app.command("export")(export.export_model)
    app.command("together")(together.answer_together)
    app.add_typer(deploy.app, name="deploy")


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit."""
    sys.exit(run_command(sys.argv[1:] if arguments is None else arguments))


def run_command(arguments: list[str]) -> int:
    """Run one command; returns the exit code."""
    if "" not in sys.path:
        sys.path.append("")  # a user's my_file:factory in the current folder; last, so that it hides nothing
    try:
        _refuse_empty(arguments)
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            return int(app(arguments, prog_name="fedwidth", standalone_mode=False) or 0)
    except ClientError as error:  # it may be the user's own model that failed, and where is for them to see
        traceback.print_exception(error.__cause__)
        return _fail(str(error), 1)
    except FedwidthError as error:
        return _fail(str(error), 2)
    except UsageError as error:
        message = str(getattr(error, "format_message", error.__str__)())
        if type(error).__name__ == "NoArgsIsHelpError":  # `fedwidth` alone: the message is the help
            print(message)
            return 2
        return _fail(message, 2)
    except typer.Exit as error:
        return error.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return _fail("interrupted", 1)
    except SystemExit as left:  # no command of ours says this: a model, data set or method of the user's own does
        if isinstance(left.__context__, BrokenPipeError):  # or Rich, where a table meets a closed pipe
            return _pipe_closed()
        return _fail(f"the program was ended from within: {what_failed(left)}", 1)
    except BrokenPipeError:
        return _pipe_closed()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:  # of a path that was given, wherever it is looked at first
            return _fail(f"the name of a file or folder is too long: {error.filename}", 2)
        raise


def _refuse_empty(arguments: list[str]) -> None:
    """Refuse empty texts: they come of variables that a shell does not know, and would count as not given."""
    for before, text in pairwise(["fedwidth", *arguments]):
        name, equals, value = text.partition("=")
        if not text or (name.startswith("--") and equals and not value):
            where = f"'{text}' has no value" if text else f"there is an empty text after '{before}'"
            raise OptionError(f"{where}: give a value or leave it out (is a variable of the shell not set?)")


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"warning: {' '.join(str(message).split())}", file=sys.stderr)


def _pipe_closed() -> int:
    """`fedwidth … | head` has seen enough, and wants no word about it; nor is one left for the interpreter's end."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 — what is left of the output goes there
    return 1


def _fail(message: str, code: int) -> int:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    return code


_add_commands()

if __name__ == "__main__":
    main()
