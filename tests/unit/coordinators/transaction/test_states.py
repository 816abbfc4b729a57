from __future__ import annotations

from pathlib import Path

from tidemill.coordinators.transaction.states import TRANSITIONS, TransactionStatus, may_become

PAGE = Path(__file__).parents[4] / "docs" / "internals" / "coordinators_transactions.md"


def shown(status):
    return "(unknown)" if status is None else status.shown


def test_the_page_has_the_table_of_states():
    section = PAGE.read_text().split("## States")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| ")]
    written = [tuple(cell.strip() for cell in row) for row in rows[1:]]
    assert written == [(shown(row.before), row.event, shown(row.after)) for row in TRANSITIONS]


def test_a_decision_is_never_taken_back():
    for decided, outcome in (
        (TransactionStatus.PREPARE_COMMIT, TransactionStatus.COMPLETE_COMMIT),
        (TransactionStatus.PREPARE_ABORT, TransactionStatus.COMPLETE_ABORT),
    ):
        follows = [status for status in [None, *TransactionStatus] if may_become(decided, status)]
        assert follows == [outcome]


def test_states_have_the_names_and_numbers_of_kafka():
    assert [(status.value, status.shown) for status in TransactionStatus] == [
        (0, "Empty"),
        (1, "Ongoing"),
        (2, "PrepareCommit"),
        (3, "PrepareAbort"),
        (4, "CompleteCommit"),
        (5, "CompleteAbort"),
    ]
