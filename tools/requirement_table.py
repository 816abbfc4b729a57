"""Which requirement is proven by which test: `make test` writes build/requirement_table.md.

A test proves what its name says: `test_T25_S23_...` stands for T25 and S23. The outcomes come from
pytest's JUnit file, the meaning of the numbers from docs/reference/numbers.md. The last lines that
this prints are the closing summary of `make test`.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

__all__ = ["Outcome", "meanings", "numbers_in_test_name", "render"]

ROOT = Path(__file__).resolve().parent.parent
NUMBERS = ROOT / "docs" / "reference" / "numbers.md"

_NUMBERED_NAME = re.compile(r"test_((?:[FTSIR]\d+_)+)")
_ROW = re.compile(r"\| ([FTSIR])(\d+) \| (.+?) \|")
_FAMILIES = {
    "F": "features",
    "T": "protocol traps",
    "S": "abuse cases",
    "I": "invariants",
    "R": "code rules",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """One test as pytest reported it; `status` is passed, failed or skipped."""

    name: str
    status: str


def numbers_in_test_name(name: str) -> list[str]:
    """The numbers at the head of a test's name, without leading zeros: `F1`, not `F01`."""
    match = _NUMBERED_NAME.match(name)
    if match is None:
        return []
    return [part[0] + str(int(part[1:])) for part in match.group(1).split("_") if part]


def meanings(numbers_md: str) -> dict[str, str]:
    """From `F1` to its line in numbers.md, in the order of the file."""
    return {f"{letter}{int(n)}": text for letter, n, text in _ROW.findall(numbers_md)}


def outcomes(junit_xml: str) -> list[Outcome]:
    root = ElementTree.fromstring(junit_xml)  # noqa: S314 - pytest wrote it a moment ago
    return [
        Outcome(f"{case.get('classname', '')}.{case.get('name', '')}", _status(case))
        for case in root.iter("testcase")
    ]


def _status(case: ElementTree.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    return "skipped" if case.find("skipped") is not None else "passed"


def tests_by_number(tests: list[Outcome]) -> dict[str, list[Outcome]]:
    found: dict[str, list[Outcome]] = {}
    for test in tests:
        function = test.name.split("[")[0].rpartition(".")[2]
        for number in numbers_in_test_name(function):
            found.setdefault(number, []).append(test)
    return found


def verdict(tests: list[Outcome]) -> str:
    """Failing beats all; a number whose tests were all skipped is not proven."""
    statuses = {test.status for test in tests}
    if "failed" in statuses:
        return "failing"
    if "passed" in statuses:
        return "proven"
    return "skipped" if statuses else "no test"


def render(known: dict[str, str], tests: list[Outcome]) -> str:
    by_number = tests_by_number(tests)
    lines = ["# What the tests prove", "", "Made by `make test`.", ""]
    for letter, family in _FAMILIES.items():
        lines += [f"## {family.capitalize()}", "", "| # | Meaning | Status | Tests |"]
        lines.append("|---|---|---|---|")
        for number, meaning in known.items():
            if number.startswith(letter):
                proofs = by_number.get(number, [])
                names = sorted({test.name.split("[")[0] for test in proofs})
                listed = "<br>".join(f"`{name}`" for name in names)
                lines.append(f"| {number} | {meaning} | {verdict(proofs)} | {listed} |")
        lines.append("")
    return "\n".join(lines)


def summary(known: dict[str, str], tests: list[Outcome]) -> str:
    by_number = tests_by_number(tests)
    lines = []
    for letter, family in _FAMILIES.items():
        counts = Counter(verdict(by_number.get(n, [])) for n in known if n.startswith(letter))
        parts = [f"{counts['proven']} of {counts.total()} proven"]
        parts += [f"{counts[bad]} {bad}" for bad in ("failing", "skipped") if counts[bad]]
        lines.append(f"{family:>15}: {', '.join(parts)}")
    statuses = Counter(test.status for test in tests)
    totals = ", ".join(f"{statuses[s]} {s}" for s in ("passed", "failed", "skipped"))
    return "\n".join([*lines, f"{'tests':>15}: {totals}"])


def main() -> None:
    junit, table = Path(sys.argv[1]), Path(sys.argv[2])
    if not junit.exists():
        sys.exit("no test ran: there is nothing to sum up")
    known = meanings(NUMBERS.read_text())
    tests = outcomes(junit.read_text())
    table.write_text(render(known, tests))
    print(f"\n{summary(known, tests)}\n{'details':>15}: {table}")


if __name__ == "__main__":
    main()
