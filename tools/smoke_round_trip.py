"""Sends one record through an installed Tidemill and reads it back, with its own commands.

Run it with the Python of the environment to test. "compiled" or "plain" is the kind of installation
that it must find there:

    VENV/bin/python tools/smoke_round_trip.py compiled
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

from tidemill.testing.broker_process import BrokerProcess, BrokerStartFailed

__all__ = ["main"]

TIDEMILL = str(Path(sys.executable).parent / "tidemill")
READY_WITHIN_S = 20.0
COMMAND_WITHIN_S = 20.0
STOPPED_WITHIN_S = 10.0
TOPIC = "smoke"
RECORD = "what goes in comes out"


def main() -> None:
    _check_flavour(sys.argv[1])
    with tempfile.TemporaryDirectory() as directory:
        broker = BrokerProcess(Path(directory) / "data", command=(TIDEMILL,))
        try:
            broker.start(READY_WITHIN_S)
            _round_trip(broker.bootstrap)
            code = broker.stop(STOPPED_WITHIN_S)
        except BrokerStartFailed as failure:
            _fail(str(failure))
        finally:
            broker.kill()
    if code != 0:
        _fail(f"the broker ended with {code} after SIGTERM, not 0")
    print(f"smoke: one record through {broker.bootstrap}, clean stop")


def _check_flavour(expected: str) -> None:
    from tidemill.core.compiled import HOT_LOOPS, REQUEST_PATH, is_compiled

    modules = (*HOT_LOOPS, *REQUEST_PATH)
    wrong = [name for name in modules if is_compiled(name) != (expected == "compiled")]
    if wrong:
        _fail(f"these modules are not {expected}: {', '.join(wrong)}")


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


def _fail(message: str) -> NoReturn:
    sys.exit(f"smoke: {message}")


if __name__ == "__main__":
    main()
