"""One record in and out of an installed Tidemill, through its own commands.

Run it with the Python of the environment to try; "compiled" or "plain" says what it must find
there:

    VENV/bin/python tools/smoke_round_trip.py compiled
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import NoReturn

__all__ = ["main"]

TIDEMILL = str(Path(sys.executable).parent / "tidemill")
READY_WITHIN_S = 20.0
COMMAND_WITHIN_S = 20.0
STOPPED_WITHIN_S = 10.0
TOPIC = "smoke"
RECORD = "what goes in comes out"


def main() -> None:
    _check_flavour(sys.argv[1])
    with tempfile.TemporaryDirectory() as data_dir, _start(data_dir) as broker:
        try:
            bootstrap = _wait_ready(broker)
            _round_trip(bootstrap)
            _stop(broker)
        finally:
            broker.kill()
    print(f"smoke: one record through {bootstrap}, clean stop")


def _check_flavour(expected: str) -> None:
    from tidemill.core.compiled import HOT_LOOPS, REQUEST_PATH, is_compiled

    modules = (*HOT_LOOPS, *REQUEST_PATH)
    wrong = [name for name in modules if is_compiled(name) != (expected == "compiled")]
    if wrong:
        _fail(f"these modules are not {expected}: {', '.join(wrong)}")


def _start(data_dir: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [TIDEMILL, "up", "--data-dir", data_dir, "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        text=True,
    )


def _wait_ready(broker: subprocess.Popen[str]) -> str:
    """The address in the line `ready: HOST:PORT`; killing a silent broker ends the read."""
    assert broker.stdout is not None
    overdue = threading.Timer(READY_WITHIN_S, broker.kill)
    overdue.start()
    try:
        for line in broker.stdout:
            if line.startswith("ready: "):
                return line.removeprefix("ready: ").strip()
    finally:
        overdue.cancel()
    _fail(f"no line `ready: HOST:PORT` within {READY_WITHIN_S:.0f} s; exit code {broker.wait()}")


def _round_trip(bootstrap: str) -> None:
    _tidemill("topic", "create", TOPIC, "--partitions", "1", "--bootstrap", bootstrap)
    _tidemill("produce", TOPIC, "--bootstrap", bootstrap, stdin=f"{RECORD}\n")
    options = ("--from", "beginning", "--count", "1", "--bootstrap", bootstrap)
    printed = _tidemill("consume", TOPIC, *options)
    if RECORD not in printed:
        _fail(f"sent {RECORD!r}, got {printed!r}")


def _tidemill(*arguments: str, stdin: str = "") -> str:
    done = subprocess.run(
        [TIDEMILL, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=COMMAND_WITHIN_S,
        check=False,
    )
    if done.returncode != 0:
        _fail(f"`tidemill {' '.join(arguments)}` ended with {done.returncode}: {done.stderr}")
    return done.stdout


def _stop(broker: subprocess.Popen[str]) -> None:
    broker.send_signal(signal.SIGTERM)
    code = broker.wait(STOPPED_WITHIN_S)
    if code != 0:
        _fail(f"the broker ended with {code} after SIGTERM, not 0")


def _fail(message: str) -> NoReturn:
    sys.exit(f"smoke: {message}")


if __name__ == "__main__":
    main()
