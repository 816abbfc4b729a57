"""Draws the state machines of docs/internals/states.toml, and writes their tables into the page.

    python -m tools.state_tables            write the pictures and the tables
    python -m tools.state_tables --check    fail if one differs from the data

A row of a table has a number, and the picture has the number at the row's arrow. Tests drive the
code through the same rows (`tests/support/state_machines.py`).
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.state_picture import Arrow, Box, draw

__all__ = ["Machine", "Row", "load", "main", "outputs"]

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "internals"
DATA = FOLDER / "states.toml"
PAGE = FOLDER / "replication.md"


@dataclass(frozen=True, slots=True)
class Row:
    """What an event does in some states."""

    sources: tuple[str, ...]
    event: str
    target: str


@dataclass(frozen=True, slots=True)
class Machine:
    """One state machine, as the data has it."""

    name: str
    title: str
    code: str
    meanings: Mapping[str, str]
    """By state, in the order of the data."""
    places: Mapping[str, tuple[int, int]]
    rows: tuple[Row, ...]
    idle_events: Mapping[str, tuple[str, ...]]
    """Events without a row, and the states in which they come: they change none of them."""

    def target(self, state: str, event: str) -> str:
        """Where the event leads; an event that no row names leaves the state as it is."""
        for row in self.rows:
            if row.event == event and state in row.sources:
                return row.target
        return state

    @property
    def events(self) -> dict[str, tuple[str, ...]]:
        """All events, with the states that rows name for each."""
        found = dict(self.idle_events)
        for row in self.rows:
            found[row.event] = (*found.get(row.event, ()), *row.sources)
        return found


def load(path: Path = DATA) -> dict[str, Machine]:
    """The machines by name. Raises ValueError where a row names a state that there is not."""
    data = tomllib.loads(path.read_text())
    return {name: _machine(name, fields) for name, fields in data.items()}


def _machine(name: str, fields: Mapping[str, Any]) -> Machine:
    rows = tuple(Row(tuple(row["from"]), row["event"], row["to"]) for row in fields["rows"])
    machine = Machine(
        name=name,
        title=fields["title"],
        code=fields["code"],
        meanings={state: one["meaning"] for state, one in fields["states"].items()},
        places={state: (one["at"][0], one["at"][1]) for state, one in fields["states"].items()},
        rows=rows,
        idle_events={event: tuple(states) for event, states in fields.get("events", {}).items()},
    )
    unknown = {state for row in rows for state in (*row.sources, row.target)} - {*machine.meanings}
    if unknown:
        raise ValueError(f"{name} has no state {sorted(unknown)[0]}")
    return machine


def _table(machine: Machine) -> str:
    code = ", ".join(f"`{one.strip()}`" for one in machine.code.split(","))
    states = "".join(f"| {state} | {text} |\n" for state, text in machine.meanings.items())
    rows = "".join(
        f"| {number} | {', '.join(row.sources)} | {row.event} | {row.target} |\n"
        for number, row in enumerate(machine.rows, 1)
    )
    return (
        f"![{machine.title}](states/{machine.name}.svg)\n\n{machine.title} ({code}):\n\n"
        f"| state | meaning |\n|---|---|\n{states}\n"
        f"| | in state | event | next state |\n|---|---|---|---|\n{rows}"
    )


def _picture(machine: Machine) -> str:
    boxes = [Box(state, *place) for state, place in machine.places.items()]
    numbers: dict[tuple[str, str], list[int]] = {}
    for number, row in enumerate(machine.rows, 1):
        for source in row.sources:
            numbers.setdefault((source, row.target), []).append(number)
    arrows = [
        Arrow(source, target, ", ".join(map(str, found)))
        for (source, target), found in numbers.items()
    ]
    return draw(machine.title, boxes, arrows)


def _with_table(page: str, machine: Machine) -> str:
    begin, end = f"<!-- states: {machine.name} -->\n", "<!-- end of states -->"
    before, found, rest = page.partition(begin)
    if not found:
        raise ValueError(f"{PAGE.name} has no place for the states of {machine.name}")
    return f"{before}{begin}{_table(machine)}{end}{rest.partition(end)[2]}"


def outputs() -> dict[Path, str]:
    """Every file that is made from the data, and what belongs into it."""
    page = PAGE.read_text()
    made: dict[Path, str] = {}
    for name, machine in load().items():
        page = _with_table(page, machine)
        made[FOLDER / "states" / f"{name}.svg"] = _picture(machine)
    return {**made, PAGE: page}


def main(arguments: Sequence[str]) -> int:
    stale = [
        path for path, text in outputs().items() if not path.exists() or path.read_text() != text
    ]
    if "--check" in arguments:
        for path in stale:
            print(f"{path.name} differs from states.toml: run python -m tools.state_tables")
        return 1 if stale else 0
    for path, text in outputs().items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
