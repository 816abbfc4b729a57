"""Regular expressions over topic names: RE2's syntax, its limits, and what is remembered."""

from __future__ import annotations

import builtins
import subprocess
import sys

import pytest

from tidemill.coordinators.group import re2_matcher
from tidemill.coordinators.group.re2_matcher import Re2Matcher
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.limits import PATTERN_CHARS_MAX, PATTERNS_EVALUATED_MAX, PATTERNS_KEPT_MAX

NOBODY = object()


def topics(*names):
    return dict.fromkeys(names, NOBODY)


def try_match(matcher, pattern, names):
    return matcher.try_search(pattern).try_match(names)


def reason(pattern):
    with pytest.raises(KafkaError) as refusal:
        Re2Matcher().check(pattern)
    assert refusal.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
    return refusal.value.detail


@pytest.mark.parametrize(
    ("pattern", "matching"),
    [
        ("^orders-.*", ["orders-1", "orders-2"]),
        ("orders-[12]$", ["orders-1", "orders-2"]),
        ("orders", []),
        ("(?i)ORDERS-\\d", ["orders-1", "orders-2"]),
        ("[[:alpha:]]+", ["payments"]),
        ("\\Qorders-1\\E|pay.*", ["orders-1", "payments"]),
        ("", []),
        (".*", ["orders-1", "orders-2", "payments"]),
    ],
)
def test_T48_an_expression_in_the_syntax_of_re2_matches_whole_names(pattern, matching):
    found = try_match(Re2Matcher(), pattern, topics("payments", "orders-2", "orders-1"))
    assert found == tuple(matching)


def test_internal_topics_never_match():
    assert try_match(Re2Matcher(), ".*", topics("__consumer_offsets", "__mine")) == ("__mine",)


@pytest.mark.parametrize(
    ("pattern", "part"),
    [
        ("(", "missing )"),
        ("a)", "unexpected )"),
        ("(?=a)", "invalid perl operator"),
        ("(a)\\1", "invalid escape sequence"),
        ("[z-a]", "invalid character class range"),
        ("a{1001}", "invalid repetition size"),
    ],
)
def test_S37_an_expression_that_re2_does_not_know_is_refused_with_its_reason(pattern, part):
    assert part in reason(pattern)


def test_S37_a_long_expression_is_refused():
    assert str(PATTERN_CHARS_MAX) in reason("a" * (PATTERN_CHARS_MAX + 1))
    Re2Matcher().check("a" * (PATTERN_CHARS_MAX - 100))


def test_S37_an_expression_of_many_unicode_classes_is_refused_before_it_is_parsed():
    """A thousand characters of them would hold up the event loop for 200 ms."""
    assert "9 Unicode classes" in reason("(?i)" + "\\PL" * 9)
    Re2Matcher().check("orders-\\p{Greek}+")


@pytest.mark.parametrize("pattern", ["\\pL{1,500}", "(.{1,30}){1,9}x", "(a{1,30}){1,30}b?"])
def test_S37_a_short_expression_with_a_large_program_is_refused(pattern):
    assert "too large" in reason(pattern)


def slices_of(pattern, names, matcher=None):
    """The calls that an evaluation takes."""
    matcher = matcher or Re2Matcher()
    count = 1
    while try_match(matcher, pattern, names) is None:
        count += 1
        assert count < 10_000, "it never ends"
    return count


NAMES = topics(*(f"topic-{number}" for number in range(2_000)))


def test_S11_one_call_evaluates_one_slice():
    assert slices_of(".*", topics("one", "two")) == 1
    many = slices_of(".*", NAMES)
    assert many > 1
    twice = {**NAMES, **topics(*(f"event-{number}" for number in range(2_000)))}
    assert slices_of(".*", twice) == pytest.approx(2 * many, abs=2)


def test_S37_a_slice_has_fewer_names_the_larger_the_program_is():
    """The product is bounded, so that no expression holds up the event loop."""
    assert slices_of("(\\w{1,3}|x){1,20}", NAMES) > 4 * slices_of(".*", NAMES)


def test_S37_a_slice_has_fewer_names_the_longer_they_are():
    long_names = topics(*(name + "x" * 200 for name in NAMES))
    assert slices_of(".*", long_names) > 4 * slices_of(".*", NAMES)


def test_S37_an_expression_that_stops_a_backtracking_engine_is_evaluated():
    hostile = topics(*("a" * 200 + str(number) for number in range(100)))
    matcher = Re2Matcher()
    assert slices_of("(a+)+(b|c)", hostile, matcher) < 10
    assert try_match(matcher, "(a+)+(b|c)", hostile) == ()


def test_a_new_map_costs_only_the_names_that_are_new():
    matcher = Re2Matcher()
    slices_of("topic-\\d+", NAMES, matcher)
    after = {**NAMES, "topic-1000000": NOBODY, "other": NOBODY}
    del after["topic-7"]
    found = try_match(matcher, "topic-\\d+", after)  # one slice is enough
    assert "topic-1000000" in found
    assert "topic-7" not in found
    assert len(found) == len(NAMES)


def test_topics_that_change_during_an_evaluation_do_not_start_it_again():
    matcher = Re2Matcher()
    needed = slices_of(".*", NAMES)
    names = NAMES
    for number in range(needed + 1):
        names = {**names, f"late-{number}": NOBODY}
        found = try_match(matcher, ".*", names)
        if found is not None:
            break
    assert found is not None
    assert set(found) == set(names)


def test_S38_few_expressions_are_remembered():
    matcher = Re2Matcher()
    for number in range(PATTERNS_KEPT_MAX + 10):
        matcher.check(f"orders-{number}")
    assert len(matcher._alive) == PATTERNS_KEPT_MAX


def test_S37_few_expressions_are_evaluated_at_the_same_time():
    matcher = Re2Matcher()
    held = [matcher.try_search(f"orders-{number}") for number in range(PATTERNS_EVALUATED_MAX)]
    for number in range(PATTERNS_KEPT_MAX):
        matcher.try_search(f"payments-{number}")
    assert matcher.try_search("one-more") is None
    assert matcher.try_search("orders-0") is held[0]
    matcher.check("one-more")
    assert reason("one-more(")
    held.pop()
    assert matcher.try_search("one-more") is not None


def test_without_the_engine_an_expression_is_refused_and_says_so(monkeypatch):
    real_import = builtins.__import__

    def fail(name, *args, **options):
        if name == "re2":
            raise ImportError(name)
        return real_import(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", fail)
    assert "google-re2 is not installed" in reason("orders-.*")


@pytest.mark.slow
def test_the_engine_is_not_loaded_before_the_first_expression():
    script = f"import sys, {re2_matcher.__name__}, tidemill.broker; assert 're2' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
