from __future__ import annotations

import os
import signal

import pytest

from tidemill.spark.pipelines.framework.stopping import StopRequest


def test_a_signal_ends_the_start_at_once_and_later_only_asks():
    stop, reached = StopRequest(), []

    with stop.signals():
        with stop.interrupting():
            os.kill(os.getpid(), signal.SIGTERM)
            reached.append("never")
        os.kill(os.getpid(), signal.SIGTERM)
        reached.append("the end")

    assert stop.is_set
    assert reached == ["the end"]


def test_an_interrupt_that_nobody_asked_for_is_passed_on():
    with pytest.raises(KeyboardInterrupt), StopRequest().interrupting():
        raise KeyboardInterrupt


def test_handlers_are_put_back():
    before = signal.getsignal(signal.SIGTERM)

    with StopRequest().signals():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before
