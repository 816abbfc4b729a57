"""Counts the hops of a request through the broker, and writes docs/internals/walks.md.

    python -m tools.walk                        a table: hops, files, folder changes
    python -m tools.walk produce-os             one walk, hop by hop
    python -m tools.walk --src ../old/src       the same for another tree, also an older one
    python -m tools.walk --write                put table and walks into docs/internals/walks.md

A *hop* is a call from one function of `tidemill` to another; a function called several times in a
row is one hop. A *folder change* is a hop into another folder than that of the hop before, a
*package change* one into another folder directly below `tidemill`: a tree that divides its folders
more finely has more of the first, not of the second.
`tools/walk_trace.py` records the calls, in a process of its own for each walk.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby, pairwise
from pathlib import Path
from typing import NamedTuple

__all__ = ["Counts", "count", "listing", "main", "without_repeats"]

ROOT = Path(__file__).resolve().parent.parent
TRACE = ROOT / "tools" / "walk_trace.py"
PAGE = ROOT / "docs" / "internals" / "walks.md"

Hop = tuple[str, str]


class Counts(NamedTuple):
    hops: int
    files: int
    folder_changes: int
    package_changes: int


WALKS = {
    "produce-os": "produce, acks=all, `flush=os`",
    "produce-group": "produce, acks=all, `flush=group`",
    "fetch": "fetch with data",
    "parked-fetch": "parked fetch, woken by a produce",
    "offset-commit": "offset commit",
    "micro-batch": "Spark micro-batch",
}
BEFORE = {
    "produce-os": Counts(hops=100, files=28, folder_changes=49, package_changes=46),
    "produce-group": Counts(hops=178, files=35, folder_changes=72, package_changes=70),
    "fetch": Counts(hops=117, files=22, folder_changes=48, package_changes=29),
    "parked-fetch": Counts(hops=275, files=38, folder_changes=126, package_changes=91),
    "offset-commit": Counts(hops=245, files=52, folder_changes=87, package_changes=77),
    "micro-batch": Counts(hops=613, files=31, folder_changes=139, package_changes=79),
}
"""The tree before it was divided into rooms (commit 5bcfd1b), counted by this tool with `--src`."""
LEFT_OUT = ("wire/generated/", "wire/primitives.py", "core/errors.py", "core/telemetry.py")
"""Fields of messages, assertions and metrics: counted, but left out of the page."""
LEFT_OUT_OF_SPARK = ("wire/", "core/")
"""The connector and its client; the client's messages are many."""


def without_repeats(calls: Sequence[Hop]) -> list[Hop]:
    return [hop for hop, _ in groupby(calls)]


def count(calls: Sequence[Hop]) -> Counts:
    hops = without_repeats(calls)
    return Counts(
        hops=len(hops),
        files=len({file for file, _ in hops}),
        folder_changes=_changes(os.path.dirname(file) for file, _ in hops),
        package_changes=_changes(file.partition("/")[0] for file, _ in hops),
    )


def _changes(places: Iterable[str]) -> int:
    return sum(before != after for before, after in pairwise(places))


def listing(calls: Sequence[Hop], *, leave_out: tuple[str, ...] = ()) -> str:
    """A line for each stay in a file: `wire/headers.py: parse_request_header, RequestHeader`."""
    shown = [hop for hop in calls if not hop[0].startswith(leave_out)] if leave_out else calls
    stays = groupby(without_repeats(shown), key=lambda hop: hop[0])
    return "".join(
        f"{file}: {', '.join(_short(name) for _, name in hops)}\n" for file, hops in stays
    )


def _short(qualified_name: str) -> str:
    """`Reader.text` as it is, `Reader.__init__` as `Reader`, a local function by its own name."""
    name = qualified_name.removesuffix(".__init__")
    owner, _, local = name.rpartition(".<locals>.")
    return f"{owner.rpartition('.')[2]}'s lambda" if local == "<lambda>" else local


@contextmanager
def _interpreted(source: Path) -> Iterator[Path]:
    """A copy of the tree without its compiled modules: only Python can be followed."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder).resolve() / "src"
        shutil.copytree(source, copy, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        yield copy


def _record(name: str, source: Path) -> list[Hop]:
    done = subprocess.run(
        [sys.executable, TRACE, name],
        env={**os.environ, "PYTHONPATH": os.fspath(source)},
        stdout=subprocess.PIPE,
        check=True,
        timeout=120,
    )
    return [(file, function) for file, function in json.loads(done.stdout)]


def table(walks: dict[str, list[Hop]]) -> str:
    lines = [
        "| walk | hops | files | folder changes | package changes |",
        "|---|---|---|---|---|",
    ]
    for name, calls in walks.items():
        pairs = zip(BEFORE[name], count(calls), strict=True)
        cells = [f"{before} → {now}" for before, now in pairs]
        lines.append(f"| {WALKS[name]} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def with_walks(page: str, walks: dict[str, list[Hop]]) -> str:
    """The page with what stands between its marks, `<!-- NAME -->` and `<!-- end -->`, replaced."""
    parts = {"table": table(walks)}
    parts |= {
        name: f"```\n{listing(calls, leave_out=_left_out(name))}```\n"
        for name, calls in walks.items()
    }
    for name, text in parts.items():
        before, mark, rest = page.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition("<!-- end -->\n")
        if not end:
            raise ValueError(f"the page has no part `{name}` with an end")
        page = f"{before}{mark}{text}{end}{after}"
    return page


def _left_out(name: str) -> tuple[str, ...]:
    return LEFT_OUT_OF_SPARK if name == "micro-batch" else LEFT_OUT


def main() -> None:
    parser = argparse.ArgumentParser(description="Count the hops of a request.")
    parser.add_argument("walk", nargs="?", choices=list(WALKS), help="print this walk hop by hop")
    parser.add_argument("--src", type=Path, default=ROOT / "src", help="the tree to look at")
    parser.add_argument("--write", action="store_true", help=f"update {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    with _interpreted(options.src) as source:
        names = [options.walk] if options.walk else list(WALKS)
        walks = {name: _record(name, source) for name in names}
    if options.write:
        PAGE.write_text(with_walks(PAGE.read_text(), walks))
    elif options.walk:
        print(listing(walks[options.walk]), end="")
    else:
        print(*(f"{name:14} {count(calls)}" for name, calls in walks.items()), sep="\n")


if __name__ == "__main__":
    main()
