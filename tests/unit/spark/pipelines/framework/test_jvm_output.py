"""A small Python process stands for the JVM."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tidemill.spark.pipelines.framework.jvm_output import JvmOutput


@pytest.fixture
def output() -> Iterator[JvmOutput]:
    made = JvmOutput()
    yield made
    made.close()


def start(program: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)


def test_a_captured_process_writes_nothing_to_the_terminal_and_its_last_lines_are_kept(
    output, capfd
):
    program = "import sys; print('WARNING: chatter', flush=True); sys.exit('java.lang.Error: boom')"
    with output.captured():
        process = start(program)
    process.communicate()

    assert capfd.readouterr() == ("", "")
    assert output.last_lines(1) == ["java.lang.Error: boom"]
    assert output.last_lines(9) == ["WARNING: chatter", "java.lang.Error: boom"]


def test_our_own_output_is_back_on_the_terminal_after_the_start(output, capfd):
    with pytest.raises(OSError, match="no Java"), output.captured():
        raise OSError("no Java")
    sys.stderr.write("ours\n")

    assert capfd.readouterr().err == "ours\n"


def test_trimming_keeps_the_newest_output_of_a_process_that_goes_on_writing(
    output,
):
    program = (
        "import sys\n"
        "print('x' * 99 + '\\n' + '0123456789' * 200_000 + '\\nfirst', flush=True)\n"
        "sys.stdin.read(1)\n"
        "print('second', flush=True)\n"
    )
    with output.captured():
        process = start(program)
    while output.last_lines(1) != ["first"]:
        assert process.poll() is None
    output.trim()
    process.communicate(b"x")

    lines = output.last_lines(1_000)
    assert lines[-2:] == ["first", "second"]
    assert sum(map(len, lines)) < 64 * 1024


def test_closed_standard_streams_are_closed_again_after_the_start():
    """As in `tidemill pipeline run ... >&- 2>&-`, where a new file would get the free numbers."""
    program = (
        "import os, subprocess, sys\n"
        "os.dup2(1, 9); os.close(1); os.close(2); sys.stdout = None\n"
        "from tidemill.spark.pipelines.framework.jvm_output import JvmOutput\n"
        "output = JvmOutput()\n"
        "with output.captured():\n"
        "    subprocess.run([sys.executable, '-c', 'print(7)'], check=True)\n"
        "lines = output.last_lines(1)\n"
        "try:\n"
        "    os.fstat(1)\n"
        "except OSError:\n"
        "    os.write(9, repr(lines).encode())\n"
    )

    found = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)

    assert found.stdout == b"['7']"
