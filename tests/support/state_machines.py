"""Drives code through the rows of docs/internals/states.toml."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from tools.state_tables import Machine, load

__all__ = ["each_step", "machines"]

machines = load()


def each_step(name: str, *, everywhere: Iterable[str] = ()) -> pytest.MarkDecorator:
    """Parametrizes a test by state, event and next state.

    Events of `everywhere` can come in every state, the others in those that their rows name.
    """
    machine = machines[name]
    return pytest.mark.parametrize(
        ("state", "event", "after"),
        list(_steps(machine, frozenset(everywhere))),
        ids=lambda part: part.replace(" ", "-"),
    )


def _steps(machine: Machine, everywhere: frozenset[str]) -> Iterator[tuple[str, str, str]]:
    for event, named in machine.events.items():
        for state in machine.meanings if event in everywhere else named:
            yield state, event, machine.target(state, event)
