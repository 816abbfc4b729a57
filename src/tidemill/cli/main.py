"""The `tidemill` command: finds the subcommand, runs it, and reports a failure in one line.

Only the subcommand that is called is imported: `tidemill up` must not pay for the imports of
`tidemill demo`. Therefore the list of commands with their one-line help is a table here.

Exit codes: 0 done, 1 refused or failed, 2 wrong use, 3 no broker reached, 130 interrupted.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import NoReturn, final

import click

from tidemill.core.errors import UserError

__all__ = ["LazyGroup", "cli", "main"]

_COMMANDS = {
    "up": "Run a broker, or several.",
    "topic": "Create, list, describe, alter and delete topics.",
    "view": "Create, list, describe and delete views of topics.",
    "delay": "List, show, cancel and move records that are held.",
    "group": "List, describe, reset and delete consumer groups.",
    "transaction": "List, describe and abort transactions.",
    "cluster": "Describe the cluster, elect leaders, and move replicas.",
    "produce": "Send lines from standard input to a topic.",
    "consume": "Print the records of a topic.",
    "pipeline": "Run data pipelines on Apache Spark.",
    "log": "Inspect the log files of a broker that is not running.",
    "doctor": "Check this machine and advise how to fix what is missing.",
    "demo": "Start a broker, send web-server log lines through it, and count them.",
}

_NOT_YET = {
    "bench": "a checkout has `make bench`",
}


@final
class LazyGroup(click.Group):
    """A group that knows the names and help of its commands and imports a command when called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _NOT_YET:
            raise UserError(
                f"`tidemill {cmd_name}` is not part of this version yet; {_NOT_YET[cmd_name]}"
            )
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"tidemill.cli.commands.{cmd_name}")
        command = getattr(module, cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> object:
        """Run the subcommand; every expected failure becomes one line and an exit code."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except (click.exceptions.Exit, click.exceptions.NoArgsIsHelpError):
            raise
        except BrokenPipeError:
            from tidemill.cli.text import drop_stdout

            drop_stdout()
            ctx.exit(0)
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - `_report` decides
            ctx.exit(_report(error))
        return result


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tidemill", message="%(prog)s %(version)s")
def cli() -> None:
    """A durable message queue that speaks the Kafka protocol."""


def _report(error: BaseException) -> int:
    """Print what went wrong in one line; the exit code. A bug is printed with its traceback."""
    from tidemill.cli.failures import explain

    failure = explain(error)
    if failure is None:
        raise error
    if failure.line:
        click.echo(f"error: {failure.line}", err=True)
    return failure.exit_code


def main(args: Sequence[str] | None = None) -> NoReturn:
    """The console script."""
    try:
        exit_code = cli.main(args=args, prog_name="tidemill", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        exit_code = error.exit_code
    except (click.ClickException, KeyboardInterrupt) as error:
        exit_code = _report(error)
    sys.exit(exit_code if isinstance(exit_code, int) else 0)


if __name__ == "__main__":
    main()
