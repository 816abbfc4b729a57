"""A deferred value is resolved once and heard once."""

from __future__ import annotations

import pytest

from tidemill.core.errors import ErrorCode, InvariantViolation
from tidemill.core.loop.deferred import Deferred


def test_the_listener_hears_a_value_that_comes_later():
    heard: list[int] = []
    deferred: Deferred[int] = Deferred()
    deferred.then(heard.append)
    deferred.resolve(7)
    assert heard == [7]


def test_the_listener_hears_a_value_that_was_there_before_it():
    heard: list[int] = []
    deferred: Deferred[int] = Deferred()
    deferred.resolve(7)
    deferred.then(heard.append)
    assert heard == [7]


def test_resolving_twice_is_a_bug():
    deferred: Deferred[int] = Deferred()
    deferred.resolve(1)
    with pytest.raises(InvariantViolation):
        deferred.resolve(2)


def test_two_listeners_are_a_bug():
    deferred: Deferred[int] = Deferred()
    deferred.then(lambda _value: None)
    with pytest.raises(InvariantViolation):
        deferred.then(lambda _value: None)


def test_a_refused_value_is_what_its_refusal_makes_of_the_code():
    heard: list[str] = []
    deferred = Deferred(lambda code: f"refused: {code.name}")
    deferred.then(heard.append)
    deferred.refuse(ErrorCode.NOT_COORDINATOR)
    assert heard == ["refused: NOT_COORDINATOR"]
