"""Runs a command in this process, against brokers in memory."""

from __future__ import annotations

from click.testing import CliRunner, Result

from tests.support.fake_cluster import FIRST_PORT, HOST, FakeCluster
from tidemill.cli.main import cli

BOOTSTRAP = f"{HOST}:{FIRST_PORT}"


def tidemill(
    *args: str, cluster: FakeCluster | None = None, stdin: bytes | str | None = None
) -> Result:
    """The result of `tidemill ARGS`; a bug raises here instead of becoming an exit code."""
    result = CliRunner(env={"TIDEMILL_BOOTSTRAP": BOOTSTRAP}).invoke(
        cli,
        list(args),
        input=stdin,
        obj=cluster.net if cluster is not None else None,
        prog_name="tidemill",
    )
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result
