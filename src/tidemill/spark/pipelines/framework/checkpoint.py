"""The folder of a pipeline under `checkpoint.dir`: who uses it, and for which settings it was made.

    checkpoints/logs/events/...         a stage's own, kept by Spark
                     settings.json      version and settings that the stages were made with
                     run.lock           locked by the run that uses the folder
                     failure.txt        the whole text of the last failure

Spark continues with whatever settings a query has now, and so would mix two sorts of results. Terms
that have changed are refused. A folder on storage that is not a local path (`hdfs://...`) is not
checked and not locked.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, final

from tidemill.core.errors import UserError
from tidemill.spark.bridge.local_path import try_local_path

__all__ = ["CheckpointTerms", "PipelineCheckpoint"]

_UNRECORDED_VERSION: Final = 1
"""Of folders that have no file of settings."""


@final
@dataclass(frozen=True, slots=True)
class CheckpointTerms:
    """What a checkpoint is bound to."""

    version: int = _UNRECORDED_VERSION
    """Of the queries and their state; a new one cannot continue an old checkpoint."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """By key."""


@final
class PipelineCheckpoint:
    """The folder of one pipeline."""

    def __init__(self, checkpoint_dir: str, pipeline: str) -> None:
        self.location = f"{checkpoint_dir}/{pipeline}"
        self._folder = try_local_path(self.location)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep other runs away until the block, or this process, ends. UserError if one is here."""
        if self._folder is None:
            yield
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "run.lock").open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(f"another run uses the checkpoint {self.location}") from None
            yield

    def bind(self, terms: CheckpointTerms) -> None:
        """Record the terms of a new checkpoint. UserError if it was made with others."""
        if self._folder is None:
            return
        path = self._folder / "settings.json"
        if any(self._folder.glob("*/offsets/*")):
            self._check(_recorded(path), terms)
        facts = {"version": terms.version, "settings": dict(terms.settings)}
        fresh = path.with_name(".settings.json.new")
        fresh.write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        fresh.replace(path)

    def keep_failure(self, text: str) -> str:
        """Store the text of a failure; where to find it."""
        if self._folder is None:
            return "--verbose shows more"
        path = self._folder / "failure.txt"
        try:
            path.write_text(text, encoding="utf-8", errors="replace")
        except OSError as error:
            return f"no more is stored: {error.strerror}"
        return f"all of it is in {path}"

    def _check(self, made: CheckpointTerms, now: CheckpointTerms) -> None:
        advice = "use a new checkpoint.dir and a new output directory"
        if made.version != now.version:
            raise UserError(
                f"the checkpoint {self.location} was made by another version of this pipeline, "
                f"which this one cannot continue: {advice}"
            )
        for key, value in now.settings.items():
            before = made.settings.get(key, value)
            if before != value:
                raise UserError(
                    f"the checkpoint {self.location} was made with {key}={before}, and {key} is "
                    f"{value} now: set it back, or {advice}"
                )


def _recorded(path: Path) -> CheckpointTerms:
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        settings = {str(key): str(value) for key, value in facts["settings"].items()}
        return CheckpointTerms(int(facts["version"]), settings)
    except FileNotFoundError:
        return CheckpointTerms()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is damaged: {error!r}") from error
