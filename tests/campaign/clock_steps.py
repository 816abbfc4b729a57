"""A real broker whose wall clock is set by an hour while records are held (libfaketime).

    python -m tests.campaign.clock_steps --records 10000 [--json]

Half of the records ask for a delay, half for a time of day. The boot clock is not touched.

- An hour ahead: nothing comes before its time, though the wall clock says so.
- An hour back: delays come in time, times of day wait; when the clock is right again and the broker
  was restarted, all have come, each once.

libfaketime is taken from the system, or from the Debian package without installing it; if it cannot
be had, one line says so and the exit code is 0, or 1 with CI=true. The exit code is 1 if a promise
was broken.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic, time

from tests.campaign.hold_clients import DeliveryWatch, HeldSend, send_held
from tests.support.topics import create_replicated
from tidemill.testing.broker_process import TIDEMILL, BrokerProcess

__all__ = ["ClockRun", "ClockSummary", "find_libfaketime"]

PACKAGE = "libfaketime"
LIBRARY = "libfaketime.so.1"
HOUR_S = 3_600
WAIT_S = 25.0
"""From the first send to the due time of all: sending must be over by then."""
RIGHT_AGAIN_S = 5.0
"""The clock is right again so long before."""
LATE_S_MAX = 60.0
SEEN_S = 2.0
"""The library looks for another offset once a second."""
PROBE = b"probe"
DOWNLOAD_S_MAX = 120.0


def find_libfaketime(folder: Path) -> Path | None:
    """The library of the system, or from the package, unpacked into `folder`."""
    for place in (Path("/usr/lib"), Path("/usr/local/lib")):
        for found in place.glob(f"**/faketime/{LIBRARY}"):
            return found
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        return None
    get = ["apt-get", "download", PACKAGE]
    got = subprocess.run(get, cwd=folder, capture_output=True, timeout=DOWNLOAD_S_MAX, check=False)
    packages = list(folder.glob(f"{PACKAGE}_*.deb"))
    if got.returncode or not packages:
        return None
    subprocess.run(["dpkg-deb", "-x", str(packages[0]), str(folder)], check=True)
    return next(folder.glob(f"**/faketime/{LIBRARY}"), None)


@dataclass(slots=True)
class ClockSummary:
    """What a run has shown."""

    records: int
    step_s: int
    sent: int = 0
    in_time: int = 0
    """Came within a minute of their time."""
    delivered: int = 0
    violations: list[str] = field(default_factory=list)


class ClockRun:
    """One broker, and one step of its clock."""

    def __init__(self, folder: Path, library: Path, records: int, step_s: int) -> None:
        self.summary = ClockSummary(records, step_s)
        self._topic = f"later{step_s}"
        self._offset = folder / "offset"
        self._set_clock(0)
        environment = (
            f"LD_PRELOAD={library}",
            f"FAKETIME_TIMESTAMP_FILE={self._offset}",
            "FAKETIME_CACHE_DURATION=1",
            "FAKETIME_DONT_FAKE_MONOTONIC=1",
            "DONT_FAKE_MONOTONIC=1",
        )
        command = ("env", *environment, *TIDEMILL)
        self._broker = BrokerProcess(folder / f"data{step_s}", command=command).start()
        create_replicated(self._broker.bootstrap, self._topic, replication=1)

    def _set_clock(self, offset_s: int) -> None:
        """The library reads the file once a second: it must never be found half written."""
        fresh = self._offset.with_suffix(".new")
        fresh.write_text(f"{offset_s:+d}s\n")
        fresh.replace(self._offset)

    def run(self) -> ClockSummary:
        watch = DeliveryWatch(self._broker.bootstrap, self._topic)
        try:
            due_s, due_at = self._fill()
            self._set_clock(self.summary.step_s)
            self._check_clock(watch)
            _sleep_until(due_s - RIGHT_AGAIN_S)
            if self.summary.step_s > 0:
                self._check_none(watch)
                self._set_clock(0)
                watch.wait_for(due_at, RIGHT_AGAIN_S + LATE_S_MAX)
            else:
                delays = [value for value in due_at if value.startswith(b"delay")]
                watch.wait_for(delays, RIGHT_AGAIN_S + LATE_S_MAX)
                self._check_waits(watch, due_at)
                self._set_clock(0)
                self._broker.kill()
                self._broker.start()
                watch.wait_for(due_at, LATE_S_MAX)
            self._check(watch, due_at)
        finally:
            watch.stop()
            self._broker.stop()
        return self.summary

    def _fill(self) -> tuple[float, dict[bytes, float]]:
        """Hold all; when they are due, all and each, on the clock that nobody sets."""
        began, began_ms = monotonic(), int(time() * 1000)
        wait_ms = int(WAIT_S * 1000)
        at = "tidemill.deliver-at", b"%d" % (began_ms + wait_ms)
        delay = "tidemill.delay-ms", b"%d" % wait_ms
        half = self.summary.records // 2
        sends = [HeldSend(b"at %d" % number, at) for number in range(half)]
        sends += [HeldSend(b"delay %d" % number, delay) for number in range(half)]
        tickets = send_held(self._broker.bootstrap, self._topic, sends)
        self.summary.sent = len(tickets)
        due_s = began + WAIT_S
        # A wall clock shows whole milliseconds.
        return due_s, dict.fromkeys(tickets, due_s - 0.001)

    # --- checks ----------------------------------------------------------------------------------

    def _check_clock(self, watch: DeliveryWatch) -> None:
        """A release has the broker's wall clock as its time: it must have been set."""
        _sleep_until(monotonic() + SEEN_S)
        probe = HeldSend(PROBE, ("tidemill.delay-ms", b"1"))
        send_held(self._broker.bootstrap, self._topic, [probe])
        watch.wait_for([PROBE], LATE_S_MAX)
        ahead_s = watch.stamp_ms.get(PROBE, 0) / 1000 - time()
        if abs(ahead_s - self.summary.step_s) > LATE_S_MAX:
            self.summary.violations.append(f"the clock is ahead by {ahead_s:.0f} s: it was not set")

    def _check_none(self, watch: DeliveryWatch) -> None:
        came = watch.came.keys() - {PROBE}
        if came:
            self.summary.violations.append(f"I31: {len(came)} came while the clock was ahead")

    def _check_waits(self, watch: DeliveryWatch, due_at: dict[bytes, float]) -> None:
        """Times of day follow the wall clock, which is an hour behind."""
        came = [value for value in due_at if value in watch.came and value.startswith(b"at")]
        if came:
            self.summary.violations.append(f"I31: {len(came)} came before their time of day")

    def _check(self, watch: DeliveryWatch, due_at: dict[bytes, float]) -> None:
        summary, violations = self.summary, self.summary.violations
        late_s = {one: watch.first_s[one] - due for one, due in due_at.items() if one in watch.came}
        summary.delivered = len(late_s)
        summary.in_time = sum(late < LATE_S_MAX for late in late_s.values())
        early = [one for one, late in late_s.items() if late < 0]
        twice = [one for one, count in watch.came.items() if count > 1]
        if early:
            violations.append(f"I31: {len(early)} came early, one of them {early[0].decode()}")
        if twice:
            violations.append(f"I32: {len(twice)} came twice")
        if summary.delivered < summary.records:
            violations.append(f"I32: {summary.records - summary.delivered} did not come")


def _sleep_until(deadline: float) -> None:
    threading.Event().wait(max(0.0, deadline - monotonic()))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Set a broker's clock while records are held.")
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="tidemill-clocks-") as name:
        folder = Path(name)
        library = find_libfaketime(folder)
        if library is None:
            print(f"clock steps: {PACKAGE} cannot be had: nothing was run", file=sys.stderr)
            return int(os.environ.get("CI") == "true")
        summaries = []
        for step_s in (HOUR_S, -HOUR_S):
            print(f"a step of {step_s} s", file=sys.stderr, flush=True)
            run = ClockRun(folder, library, options.records, step_s)
            summaries.append(asdict(run.run()))
    if options.json:
        print(json.dumps({"steps": summaries}, indent=2))
    else:
        for summary in summaries:
            for key, value in summary.items():
                print(f"{key.replace('_', ' '):12} {value}")
    return int(any(summary["violations"] for summary in summaries))


if __name__ == "__main__":
    sys.exit(main())
