"""Rules about folders ("rooms"): how they import each other, and how many files one may hold.

A cycle between rooms means that neither can be read, tested or moved without the other. A parent
and its child are two rooms: files of `storage/` may import `storage/log/` or the other way round,
not both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tests.tidy.source import Finding, Module, imported_names

FILES_MAX = 14
"""Not counting `__init__.py`. The fullest room today has twelve; two are left for growth. A longer
list hides a second room. What a tool generates may be longer: its files are not read one by one."""

GENERATED = "wire/generated"
"""Written by a tool, and one room with its parent: the messages use `wire/primitives.py`, and the
hand-written fast paths of `wire/` read and make the same messages."""

ROOT_ROOM = ""
"""`broker.py`, which builds everything. The package's own `__init__.py` belongs to no room: it only
names what users import."""


def crowded_rooms(modules: Iterable[Module]) -> Iterator[Finding]:
    counts: dict[str, int] = {}
    for module in modules:
        if not module.path.endswith("__init__.py"):
            counts[_room(module)] = counts.get(_room(module), 0) + 1
    for room, count in counts.items():
        if count > FILES_MAX and room != GENERATED:
            yield Finding(
                f"src/tidemill/{room}",
                1,
                f"holds {count} files, the bound is {FILES_MAX}: give a part of them a room",
            )


def room_cycles(modules: Iterable[Module]) -> Iterator[Finding]:
    """One finding per import that closes a cycle of rooms, the cycle named in it."""
    everything = {module.name: module for module in modules if module.path != "__init__.py"}
    imports = {(source, target): place for source, target, place in _imports(everything)}
    targets: dict[str, set[str]] = {}
    for source, target in imports:
        targets.setdefault(source, set()).add(target)
    for (source, target), place in imports.items():
        path = _path(target, source, targets)
        if path:
            rooms = " -> ".join(room or "tidemill" for room in (source, *path))
            yield Finding(place.path, place.line, f"closes the cycle {rooms}: move the shared part")


def _imports(modules: Mapping[str, Module]) -> Iterator[tuple[str, str, Finding]]:
    """Every import from one room into another: the two rooms, and where it is."""
    for module in modules.values():
        for node, name in imported_names(module):
            # `from tidemill.wire import batch` names a module, others name something in one.
            imported = modules.get(name) or modules.get(name.rpartition(".")[0])
            if imported is None:
                continue
            source, target = _room_with_generated(module), _room_with_generated(imported)
            if source != target:
                yield source, target, module.finding(node, "")


def _path(start: str, end: str, targets: Mapping[str, set[str]]) -> list[str]:
    """The rooms from `start` to `end`, both included; empty where imports do not lead there."""
    came_from: dict[str, str | None] = {start: None}
    queue = [start]
    for room in queue:
        if room == end:
            return _steps_to(end, came_from)
        for target in sorted(targets.get(room, ())):
            if target not in came_from:
                came_from[target] = room
                queue.append(target)
    return []


def _steps_to(end: str, came_from: Mapping[str, str | None]) -> list[str]:
    steps: list[str] = []
    room: str | None = end
    while room is not None:
        steps.append(room)
        room = came_from[room]
    return steps[::-1]


def _room(module: Module) -> str:
    return module.path.rpartition("/")[0] or ROOT_ROOM


def _room_with_generated(module: Module) -> str:
    room = _room(module)
    return room.rpartition("/")[0] if room == GENERATED else room
