"""The file that `--config` names."""

from __future__ import annotations

from pathlib import Path

from tidemill.core.errors import UserError

__all__ = ["read_config_file"]


def read_config_file(path: str | None) -> str:
    """Its text; empty if none is named."""
    if not path:
        return ""
    try:
        return Path(path).read_text()
    except OSError as error:
        raise UserError(f"--config {path}: {error.strerror}") from error
