"""How a broker divides its file descriptors between clients, other brokers and files. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple, final

from tidemill.core.errors import UserError
from tidemill.core.limits import INTERNAL_CONNECTIONS_MAX

__all__ = ["DescriptorPlan", "plan_descriptors"]

RESERVED: Final = 256
"""For the listeners, the coordination store, log files and libraries (S13)."""


@final
class DescriptorPlan(NamedTuple):
    """How a process divides its file descriptors."""

    connections: int
    """What is left for clients; `max.connections` may allow fewer."""
    internal: int
    """Kept for other brokers."""
    files: int


def plan_descriptors(descriptors: int, *, files_max: int) -> DescriptorPlan:
    """Divide the process's descriptors: at most a quarter for files, the rest for connections.

    Other brokers get an eighth of the rest at most: clients cannot use up their share.
    """
    files = min(files_max, descriptors // 4)
    free = descriptors - files - RESERVED
    if free < 1:
        raise UserError(f"a limit of {descriptors} open files is too low; see `ulimit -n`")
    internal = min(INTERNAL_CONNECTIONS_MAX, free // 8)
    return DescriptorPlan(connections=free - internal, internal=internal, files=files)
