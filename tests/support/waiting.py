"""Waits for what other processes do, and leaves the cores to them between two looks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic

from confluent_kafka.admin import AdminClient

from tests.support.clients import DEADLINE_S

__all__ = ["wait_for_brokers", "wait_until"]

LOOK_EVERY_S = 0.05


def wait_until(is_so: Callable[[], bool], otherwise: str = "it never came about") -> None:
    """Return once it is so; fail with `otherwise` if it takes too long."""
    deadline = monotonic() + DEADLINE_S
    pause = threading.Event()
    while not is_so():
        assert monotonic() < deadline, otherwise
        pause.wait(LOOK_EVERY_S)


def wait_for_brokers(bootstrap: str, wanted: set[int]) -> None:
    """Return once the brokers behind this address name all of these, and no other."""

    def are_there() -> bool:
        # Another client each time: one that knows more brokers may ask any of them.
        admin = AdminClient({"bootstrap.servers": bootstrap})
        return set(admin.list_topics(timeout=DEADLINE_S).brokers) == wanted

    wait_until(are_there, f"{bootstrap} does not name {wanted}")
