"""Tidemill as a subject: started as users start it, with the metrics page enabled."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import final

from bench.processes import Launch, free_port
from bench.wire_client import Address
from tidemill.testing.broker_process import TIDEMILL, up_command

__all__ = ["NULL_COMMAND", "TidemillSubject"]

GROUPS_DO_NOT_WAIT = ("group.initial.rebalance.delay.ms=0",)
"""No initial delay for more members; Kafka has the same setting."""
NULL_COMMAND = (sys.executable, "-m", "bench.null_broker")


@final
class TidemillSubject:
    """`command` may be that of another checkout, to compare two versions."""

    def __init__(
        self,
        command: tuple[str, ...] = TIDEMILL,
        settings: tuple[str, ...] = (),
        *,
        name: str = "tidemill",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._environment = environment or {}
        self._command = command
        self._settings = settings

    def prepare(self, data_dir: Path, port: int) -> None:
        """Does nothing: the broker creates its files itself."""

    def launch(self, data_dir: Path, port: int) -> Launch:
        metrics = Address("127.0.0.1", free_port())
        settings = (f"metrics.listen={metrics}", *GROUPS_DO_NOT_WAIT, *self._settings)
        command = up_command(self._command, data_dir, f"127.0.0.1:{port}", settings)
        return Launch(command=command, environment=self._environment, metrics=metrics)

    def topic_config(self, *, flush: str) -> dict[str, str]:
        return {"tidemill.flush": flush}
