"""The command: `python -m bench [--quick] [--rows ROW,...]`, or `make bench`."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from bench import fresh_memory, kafka, other_revision, qbench
from bench.environment import ROOT, facts
from bench.lab import Lab, Sizes
from bench.other_revision import judged_as_revision
from bench.plot import draw
from bench.processes import MeasurementFailed, Subject
from bench.progress import RunProgress
from bench.report import Report, print_table, write_json
from bench.rows import ROWS, Row
from bench.tidemill_broker import NULL_COMMAND, TidemillSubject
from tidemill.testing.broker_process import TIDEMILL

__all__ = ["main"]

BUSY_SHARE = 0.25
FULL = Sizes(
    rounds=3,
    small_megabytes=300,
    large_megabytes=800,
    consume_megabytes=1_000,
    latency_records=4_000,
    e2e_seconds=8,
    raw_seconds=3.0,
    backlog_gb=(1, 20),
    idle_topics=2_000,
    idle_connections=15_000,
    spark_records=5_000_000,
)
QUICK = Sizes(
    rounds=1,
    small_megabytes=100,
    large_megabytes=200,
    consume_megabytes=300,
    latency_records=1_000,
    e2e_seconds=3,
    raw_seconds=1.0,
    backlog_gb=(0.2, 1),
    idle_topics=200,
    idle_connections=2_000,
    spark_records=500_000,
)


def main() -> int:
    options = _parser().parse_args()
    signal.signal(signal.SIGTERM, _terminate)
    # As in the Makefile: a broker that keeps no bytecode compiles all its sources at each start.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    rows = _selected(options)
    if not qbench.build():
        return 0
    rival = _rival(options)
    with_kafka = isinstance(rival, kafka.KafkaSubject)
    report = Report(facts=facts(with_kafka=with_kafka, options=shlex.join(sys.argv[1:])))
    _warn_if_busy(report)
    _touch_memory(report)
    if rival is None:
        report.skipped.append("Apache Kafka: ratios against it are missing")
    _measure(rows, report, options, rival)
    if rival is not None and options.against:
        report.facts["against"] = rival.name
        report.outcomes = [judged_as_revision(one, rival.name) for one in report.outcomes]
    kept = _keep(report, options.out)
    print_table(report, sys.stdout)
    print("kept:", *kept)
    return 1 if report.failures or (options.strict and report.missed) else 0


def _rival(options: argparse.Namespace) -> Subject | None:
    """What ours is compared with; None: nothing."""
    if options.against:
        return other_revision.provide(options.against).subject(tuple(options.set))
    return kafka.KafkaSubject() if not options.no_kafka and kafka.provide() else None


def _measure(
    rows: list[Row], report: Report, options: argparse.Namespace, rival: Subject | None
) -> None:
    command = tuple(shlex.split(options.tidemill)) if options.tidemill else TIDEMILL
    subjects: list[Subject] = [
        TidemillSubject(command, tuple(options.set)),
        TidemillSubject(NULL_COMMAND, name="nothing"),
    ]
    if rival is not None:
        subjects.append(rival)
    with RunProgress(len(rows)) as progress:
        sizes, name = _sizes(options), rival.name if rival else ""
        lab = Lab(subjects, sizes, options.scratch, progress.tick, rival=name)
        try:
            for row in rows:
                progress.begin(row.title)
                try:
                    report.outcomes += row.run(lab)
                except (MeasurementFailed, OSError, subprocess.SubprocessError) as error:
                    report.failures[row.key] = str(error)
                    lab.stop_shared()  # after any failure the next row has new brokers
                progress.end()
        finally:
            lab.close()


def _warn_if_busy(report: Report) -> None:
    """Warn if the machine is busy: its rates mean little, only CPU per record is steady."""
    load, cpus = os.getloadavg()[0], os.cpu_count() or 1
    if load > BUSY_SHARE * cpus:
        report.warnings.append(f"the machine was busy before the run: load {load:.1f}, {cpus} CPUs")


def _touch_memory(report: Report) -> None:
    wanted = int(fresh_memory.free_bytes() * fresh_memory.SHARE)
    print(f"bench: touching {wanted / 1e9:.1f} GB of free memory once", file=sys.stderr)
    report.facts["memory_touched_gb"] = round(fresh_memory.touch(wanted) / 1e9, 1)


def _keep(report: Report, directory: Path) -> list[Path]:
    """Write the numbers and their chart; the paths of both."""
    stamp = str(report.facts["date"]).replace(":", "").rstrip("Z")
    stem = directory / f"{stamp}-{str(report.facts['commit']).rstrip('+')}"
    directory.mkdir(parents=True, exist_ok=True)
    pictures = draw(report, stem)
    numbers = stem.with_suffix(".json")
    write_json(report, numbers)
    return [numbers, *pictures]


def _selected(options: argparse.Namespace) -> list[Row]:
    if options.rows is None:
        return [
            row
            for row in _allowed(options)
            if (row.quick or not options.quick) and (options.large or not row.large)
        ]
    by_key = {row.key: row for row in _allowed(options)}
    wanted = options.rows.split(",")
    unknown = [key for key in wanted if key not in by_key]
    if unknown:
        raise SystemExit(f"no row {', '.join(unknown)}; there are {', '.join(by_key)}")
    return [by_key[key] for key in wanted]


def _allowed(options: argparse.Namespace) -> list[Row]:
    return [row for row in ROWS if row.beside_rival or not options.against]


def _sizes(options: argparse.Namespace) -> Sizes:
    sizes = QUICK if options.quick else FULL
    return replace(sizes, rounds=options.rounds) if options.rounds else sizes


def _terminate(number: int, frame: object) -> NoReturn:
    """SIGTERM unwinds like Ctrl-C, so that brokers are stopped and data is removed."""
    raise SystemExit(128 + number)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bench", description="Measure Tidemill side by side with Apache Kafka."
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="fewer rows, smaller samples: two to three minutes")
    add("--large", action="store_true", help="also the rows that need tens of gigabytes of disk")
    add("--rows", metavar="ROW,...", help=f"only these: {', '.join(row.key for row in ROWS)}")
    add("--rounds", type=int, metavar="N", help="rounds of A B B A  [3; 1 with --quick]")
    add("--strict", action="store_true", help="exit with 1 when a bar is missed")
    add("--no-kafka", action="store_true", help="measure Tidemill alone")
    add("--out", type=Path, default=ROOT / "bench" / "results", help="where results are kept")
    add("--scratch", type=Path, default=ROOT / "build" / "bench", help="where brokers write")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="a key of the broker")
    add("--against", metavar="REVISION", help="another revision of Tidemill instead of Kafka")
    add("--tidemill", metavar="COMMAND", help="how to start another Tidemill than this one")
    return parser


if __name__ == "__main__":
    sys.exit(main())
