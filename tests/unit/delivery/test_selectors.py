"""Selectors on records: the language case by case, and the program against the oracle."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.support.flavours import FLAVOURS
from tests.unit.delivery.compiled_selectors import matches
from tests.unit.delivery.selector_oracle import Facts, condition
from tidemill.core.limits import SELECTOR_PATTERN_PARTS_MAX, SELECTOR_TERMS_MAX
from tidemill.delivery.filter.lexer import SelectorError
from tidemill.delivery.filter.parser import parse_selector

ORDER = Facts(
    key=b"order-7",
    timestamp=1_000,
    partition=3,
    headers=[
        ("region", b"us"),
        ("region", b"eu"),
        ("amount", b"150"),
        ("price", b"19.99"),
        ("big", b"900719925474099300"),
        ("urgent", b"True"),
        ("note", b""),
        ("percent", b"5%"),
        ("nothing", None),
        ("dotted.name-x", b"1"),
        ("city", "Köln".encode()),
        ("tidemill.tags", b"red, green ,,blue"),
        ("tidemill.routing-key", b"eu.orders.new"),
        ("tidemill.priority", b"7"),
    ],
)
PLAIN = Facts()

TRUE = [
    "region = 'eu'",
    "region <> 'us'",
    "'eu' = region",
    "amount > 100",
    "amount >= 150 AND amount <= 150",
    "100 < amount",
    "amount = 150.0",
    "price > 19.98 AND price < 20",
    "price * 2 = 39.98",
    "amount / 4 = 37.5",
    "amount - 50 + 1 = 101",
    "-amount = -150",
    "- - amount = 150",
    "amount + 2 * 3 = 156",
    "(amount + 2) * 3 = 456",
    "big = 900719925474099300",
    "big <> 900719925474099301",
    "amount BETWEEN 150 AND 151",
    "amount NOT BETWEEN 1 AND 2",
    "region IN ('us', 'eu')",
    "region NOT IN ('us', 'cn')",
    "amount IN (1, 150)",
    "region LIKE 'e_'",
    "region NOT LIKE 'u%'",
    "city LIKE 'K_ln'",
    "city LIKE 'Kö%'",
    "note LIKE '%' AND note = ''",
    "_key LIKE 'order-%'",
    "_key LIKE 'order__' AND percent LIKE '5!%' ESCAPE '!'",
    "_timestamp = 1000",
    "_partition = 3",
    "priority = 7",
    "urgent",
    "urgent = TRUE",
    "urgent <> FALSE",
    "NOT (urgent = FALSE)",
    '"dotted.name-x" = 1',
    "missing IS NULL",
    "nothing IS NULL",
    "region IS NOT NULL",
    "tag = 'red'",
    "tag = 'green'",
    "tag = 'blue' AND tag <> 'black'",
    "tag IN ('black', 'blue')",
    "tag LIKE 'gr%'",
    "tag IS NOT NULL",
    "routes('eu.orders.new')",
    "routes('eu.*.new')",
    "routes('eu.#')",
    "routes('#.new')",
    "routes('#')",
    "routes('eu.#.#.new')",
    "region = 'us' OR amount = 150",
    "missing = 1 OR amount = 150",
    "TRUE",
    "region = 'eu' and not FALSE",
    "amount = 150 OR amount = 1 AND region = 'us'",
]
FALSE_OR_UNKNOWN = [
    "region = 'us'",
    "amount < 100",
    "amount = 'abc'",
    "region > 5",
    "missing = 1",
    "missing <> 1",
    "NOT missing = 1",
    "missing LIKE '%'",
    "missing NOT LIKE 'x'",
    "missing NOT IN ('x')",
    "missing = 1 AND amount = 150",
    "nothing = ''",
    "note > 0",
    "amount / 0 = 1",
    "NOT (amount / 0 = 1)",
    "1e308 * 10 * amount > 1",
    "city LIKE 'K__ln'",
    "region = missing",
    "tag = 'black'",
    "tag = ''",
    "routes('eu.*')",
    "routes('us.#')",
    "routes('eu.orders.new.#.x')",
    "FALSE",
    "NOT urgent",
    "(amount = 150 OR amount = 1) AND region = 'us'",
]


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("selector", TRUE)
def test_a_selector_that_holds_matches(flavour, selector):
    assert matches(flavour, selector, [ORDER]) == [True]
    assert condition(parse_selector(selector))(ORDER) is True


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("selector", FALSE_OR_UNKNOWN)
def test_a_selector_that_is_false_or_unknown_does_not_match(flavour, selector):
    assert matches(flavour, selector, [ORDER]) == [False]
    assert condition(parse_selector(selector))(ORDER) is not True


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_record_without_headers_is_unknown_to_most_selectors(flavour):
    assert matches(flavour, "tag <> 'red'", [PLAIN]) == [False]
    assert matches(flavour, "NOT routes('a')", [PLAIN]) == [False]
    assert matches(flavour, "_key <> ''", [PLAIN]) == [False]
    assert matches(flavour, "priority = 4 AND tag IS NULL AND _key IS NULL", [PLAIN]) == [True]


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_an_empty_selector_matches_everything(flavour):
    assert matches(flavour, "  ", [PLAIN, ORDER]) == [True, True]


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_S37_a_like_bomb_takes_one_step_per_byte(flavour):
    """With going back it would take about 10**20 steps."""
    pattern = "%".join("a" * SELECTOR_PATTERN_PARTS_MAX) + "%"
    text = Facts(headers=[("x", b"a" * 20_000 + b"b")])
    assert matches(flavour, f"x LIKE '{pattern}'", [text]) == [True]
    assert matches(flavour, f"x LIKE '%{pattern[:-3]}%c'", [text]) == [False]


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_S37_a_route_of_many_hashes_takes_one_step_per_word(flavour):
    key = Facts(headers=[("tidemill.routing-key", b".".join([b"a"] * 500))])
    pattern = ".".join(["#.a"] * SELECTOR_PATTERN_PARTS_MAX)
    assert matches(flavour, f"routes('{pattern}')", [key]) == [True]
    assert matches(flavour, f"routes('{pattern[:-1]}b')", [key]) == [False]


LONG = Facts(
    headers=[(name, b"x" * 40_000) for name in ("a", "b", "tidemill.tags", "tidemill.routing-key")],
    key=b"x" * 40_000,
)


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize(
    "selector",
    [
        "a LIKE 'x%'",
        "_key LIKE 'x%'",
        "a = b",
        f"tag = '{'x' * 40}'",
        "tag LIKE 'x%'",
        "routes('#')",
    ],
)
def test_S37_it_is_unknown_what_a_very_long_text_is_like(flavour, selector):
    """A record of a megabyte would hold the loop for a tenth of a second."""
    assert matches(flavour, selector, [LONG]) == [False]
    assert matches(flavour, f"NOT ({selector})", [LONG]) == [False]


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_very_long_text_is_there_and_differs_from_a_short_one(flavour):
    selector = "a IS NOT NULL AND tag IS NOT NULL AND a <> 'x' AND a > 'x' AND NOT a = 'y'"
    assert matches(flavour, selector, [LONG]) == [True]


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_names_that_look_alike_are_told_apart(flavour):
    names = [f"a{middle}z" for middle in "bcdefgh"]
    record = Facts(headers=[(name, name.encode()) for name in [*names, ""]])
    selector = " AND ".join(f"{name} = '{name}'" for name in names)
    assert matches(flavour, f"{selector} AND \"\" = ''", [record]) == [True]
    assert matches(flavour, f"{selector} AND axz IS NULL", [record]) == [True]


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_as_many_terms_as_are_allowed_can_be_run(flavour):
    selector = " OR ".join(f"h{n} = '{n}'" for n in range(SELECTOR_TERMS_MAX))
    last = Facts(headers=[(f"h{SELECTOR_TERMS_MAX - 1}", str(SELECTOR_TERMS_MAX - 1).encode())])
    assert matches(flavour, selector, [PLAIN, last]) == [False, True]


# --- the program against the oracle --------------------------------------------------------------

NAMES = ["a", "b", "_key", "_timestamp", "_partition", "priority"]
TEXTS = ["", "a", "eu", "é", "%", "1", "a.b", "true"]
PATTERNS = ["", "%", "_", "a%", "%a", "_%_", "é_", "%e%u%", "a.b", "__"]
ROUTES = ["#", "*", "a.*", "a.#", "#.b", "*.#.b", "a.b", ""]
VALUES = [b"", b"a", b"eu", "é".encode(), b"\x80\xff", b"1", b"-2.5", b"1e3", b"1e999", b"0"]
VALUES += [b"true", b"FALSE", b"a.b", b"a.x.b", b"a,b", b" eu ,", b"123456789012345678901", b"+.5"]


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


numbers = st.one_of(
    st.integers(0, 2000).map(str),
    st.floats(0, 100, allow_nan=False).map(lambda n: f"{n:.3f}"),
    st.just("12345678901234567890"),
)
operands = st.deferred(
    lambda: st.one_of(
        numbers,
        st.sampled_from(["a", "b", "_timestamp", "_partition", "priority"]),
        st.tuples(operands, st.sampled_from("+-*/"), operands).map(lambda t: f"({' '.join(t)})"),
        operands.map(lambda o: f"(- {o})"),
    )
)
orders = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])
texts = st.sampled_from(TEXTS).map(_quoted)
headers = st.sampled_from(["a", "b", "_key"])
tests = st.one_of(
    st.tuples(operands, orders, numbers).map(" ".join),
    st.tuples(headers, orders, texts).map(" ".join),
    st.tuples(st.sampled_from(["a", "b"]), orders, st.sampled_from(["a", "b"])).map(" ".join),
    st.tuples(operands, numbers, numbers).map(lambda t: f"{t[0]} BETWEEN {t[1]} AND {t[2]}"),
    st.tuples(headers, texts, texts).map(lambda t: f"{t[0]} IN ({t[1]}, {t[2]})"),
    st.tuples(headers, st.sampled_from(PATTERNS)).map(lambda t: f"{t[0]} LIKE {_quoted(t[1])}"),
    st.tuples(st.sampled_from(["a", "b", "_key", "tag"])).map(lambda t: f"{t[0]} IS NULL"),
    texts.map(lambda t: f"tag = {t}"),
    st.sampled_from(PATTERNS).map(lambda p: f"tag LIKE {_quoted(p)}"),
    st.sampled_from(ROUTES).map(lambda p: f"routes({_quoted(p)})"),
    st.sampled_from(["a", "a = TRUE", "b <> FALSE", "TRUE", "FALSE"]),
)
conditions = st.recursive(
    tests,
    lambda inner: st.one_of(
        inner.map(lambda c: f"NOT ({c})"),
        st.tuples(inner, inner).map(lambda t: f"({t[0]}) AND ({t[1]})"),
        st.tuples(inner, inner).map(lambda t: f"{t[0]} OR {t[1]}"),
    ),
    max_leaves=5,
)
facts = st.builds(
    Facts,
    key=st.none() | st.sampled_from(VALUES),
    timestamp=st.integers(0, 2000),
    partition=st.just(1),
    headers=st.lists(
        st.tuples(
            st.sampled_from(
                ["a", "b", "c", "tidemill.tags", "tidemill.routing-key", "tidemill.priority"]
            ),
            st.none() | st.sampled_from(VALUES),
        ),
        max_size=6,
    ),
)


@pytest.mark.parametrize("flavour", FLAVOURS)
@given(selector=conditions, records=st.lists(facts, min_size=1, max_size=8))
def test_the_program_says_what_the_tree_says(flavour, selector, records):
    try:
        expected = condition(parse_selector(selector))
    except SelectorError as error:
        refusal = str(error)
        assume("deep" not in refusal and "terms" not in refusal)
        raise
    assert matches(flavour, selector, records) == [expected(one) is True for one in records]
