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
