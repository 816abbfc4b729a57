from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import dataset, parquet

from tidemill.core.errors import TidemillError
from tidemill.spark.pipelines.logs.log_pipeline import LogPipeline
from tidemill.spark.pipelines.logs.minute_history import MinuteHistory
from tidemill.spark.pipelines.logs.minute_table import MINUTE_COLUMNS, minute_table
from tidemill.spark.pipelines.logs.minutes import Minute, minute_from_json, read_minutes
from tidemill.spark.pipelines.logs.report_page import page, size_text, top_paths, write_page
from tidemill.spark.pipelines.logs.settings import LogSettings
from tidemill.spark.pipelines.logs.svg_plot import Series, time_plot

START = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
VOID = frozenset({"meta"})


def minute(index: int = 0, *, paths=(("/", 5),), latency: float | None = 12.5) -> Minute:
    return Minute(
        start=START + timedelta(minutes=index),
        requests=100 + index,
        status={"2xx": 90, "3xx": 5, "4xx": 3, "5xx": 2},
        size_bytes=123_456,
        latency_p50_ms=latency,
        latency_p95_ms=latency,
        latency_p99_ms=latency,
        top_paths=paths,
    )


class Strict(HTMLParser):
    """Checks that every element is closed, in the right order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.addresses += [value for name, value in attrs if name in {"src", "href"}]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def parsed(text: str) -> Strict:
    parser = Strict()
    parser.feed(text)
    parser.close()
    assert parser.open == []
    return parser


def test_the_page_is_well_formed_and_needs_nothing_else():
    seen = parsed(page([minute(n) for n in range(60)], title="Access log"))

    assert seen.seen.count("svg") == 3
    assert not {"script", "link", "img", "iframe"} & set(seen.seen)
    assert seen.addresses == []


@pytest.mark.parametrize("path", ["/<script>alert(1)</script>", '/"><svg onload=x>', "/&amp;"])
def test_a_path_from_the_log_never_becomes_markup(path):
    text = page([minute(paths=((path, 9),))], title=f"log of {path}")

    assert escape(path) in text
    assert "script" not in parsed(text).seen
    assert parsed(text).seen.count("svg") == 3


def test_a_log_without_latencies_has_no_plot_of_them():
    assert parsed(page([minute(latency=None)], title="x")).seen.count("svg") == 2


def test_a_page_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "deep" / "report.html"

    write_page(path, [minute()], title="first")
    write_page(path, [minute()], title="second")

    assert "second" in path.read_text()
    assert [file.name for file in path.parent.iterdir()] == ["report.html"]


@pytest.mark.parametrize(
    "values", [[], [None], [0.0], [5.0], [1.0, None, 3.0], [1e9, 2.0], [5e-324], [1e12]]
)
def test_a_plot_accepts_every_shape_of_series(values):
    times = [START + timedelta(minutes=n) for n in range(len(values))]

    text = time_plot("t", times, [Series("s", "--c1", values, filled=True)], " ms")

    parsed(text)
    assert "nan" not in text


def test_paths_are_summed_over_minutes_and_ties_are_in_order():
    minutes = [minute(paths=(("/b", 2), ("/a", 2))), minute(1, paths=(("/c", 3), ("/b", 1)))]

    assert top_paths(minutes, 2) == [("/b", 3), ("/c", 3)]


def test_the_table_has_a_cell_for_each_column():
    table = minute_table([minute(), minute(1, latency=None, paths=())])

    assert table.columns == MINUTE_COLUMNS
    assert {len(row) for row in table.rows} == {len(MINUTE_COLUMNS)}
    assert table.rows[1][-1] is None


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (1_500, "1.5 kB"), (2e13, "20.0 TB")]
)
def test_sizes_are_short(size, text):
    assert size_text(size) == text


def store(
    folder: Path, batch: str, rows: list[dict[str, object]], date: str = "2026-05-01"
) -> None:
    by_date = folder / f"date={date}" / f"batch={batch}"
    by_date.mkdir(parents=True)
    parquet.write_table(pa.Table.from_pylist(rows), by_date / "part-0.parquet")


def test_the_last_hour_counts_back_from_the_newest_window_and_has_each_once(tmp_path):
    rows = [
        {"time": START + timedelta(minutes=n), "requests": n, "bytes": 1, "status_5xx": 0}
        for n in range(90)
    ]
    store(tmp_path, "a-0", rows)
    store(tmp_path, "b-0", rows[80:])

    found = read_minutes(str(tmp_path), minutes=60, window_s=60)

    assert [m.requests for m in found] == list(range(30, 90))
    assert read_minutes(str(tmp_path / "nothing"), 60, 60) == []


def window_rows(*numbers: int) -> list[dict[str, object]]:
    return [{"time": START + timedelta(minutes=n), "requests": n} for n in numbers]


def test_a_report_opens_no_file_of_windows_that_it_does_not_cover(tmp_path):
    for number in range(12):
        store(tmp_path, f"q-{number}", window_rows(number))
    for number in range(8):  # 8 is opened too: the first one that is too old
        [file] = tmp_path.glob(f"date=*/batch=q-{number}/*")
        file.write_bytes(b"not Parquet")

    found = read_minutes(str(tmp_path), minutes=3, window_s=60)

    assert [m.requests for m in found] == [9, 10, 11]


def test_a_report_covers_windows_of_several_queries_and_dates(tmp_path):
    store(tmp_path, "old-7", window_rows(1))
    store(tmp_path, "old-40", window_rows(4))
    store(tmp_path, "old-40", window_rows(3), date="2026-04-30")
    store(tmp_path, "old-9", window_rows(2))
    store(tmp_path, "new-0", window_rows(5), date="2026-05-02")
    store(tmp_path, "merged-by-hand", window_rows(0, 6))

    assert [m.requests for m in read_minutes(str(tmp_path), minutes=1_440, window_s=60)] == [
        *(0, 1, 2, 3, 4, 5, 6),
    ]


def test_windows_of_batches_that_were_merged_are_read_in_the_order_of_their_batches(tmp_path):
    store(tmp_path, "q-9", window_rows(9))
    store(tmp_path, "q-0-8", window_rows(*range(9)))
    store(tmp_path, "q-10", window_rows(10))

    found = read_minutes(str(tmp_path), minutes=4, window_s=60)

    assert [m.requests for m in found] == [7, 8, 9, 10]


def test_windows_of_a_batch_that_was_left_out_of_a_merge_are_read_too(tmp_path):
    store(tmp_path, "q-0-3", window_rows(0, 9, 10))
    store(tmp_path, "q-1", window_rows(7, 8))
    store(tmp_path, "q-4", window_rows(11))

    found = read_minutes(str(tmp_path), minutes=5, window_s=60)

    assert [m.requests for m in found] == [7, 8, 9, 10, 11]


def test_windows_that_are_merged_while_they_are_read_are_read_again(tmp_path, monkeypatch):
    store(tmp_path, "q-0", window_rows(0))
    store(tmp_path, "q-1", window_rows(1))
    real = dataset.dataset

    def merged_first(files, **options):
        monkeypatch.setattr(dataset, "dataset", real)
        store(tmp_path, "q-0-1", window_rows(0, 1))
        for number in (0, 1):
            shutil.rmtree(tmp_path / f"date=2026-05-01/batch=q-{number}")
        return real(files, **options)

    monkeypatch.setattr(dataset, "dataset", merged_first)

    assert [m.requests for m in read_minutes(str(tmp_path), 60, 60)] == [0, 1]


def test_a_window_in_the_topic_reads_like_one_in_a_file():
    found = minute_from_json(
        {
            "start": "2026-05-01T12:00:00.000Z",
            "requests": 7,
            "status_5xx": 1,
            "bytes": 9,
            "latency_p50_ms": 3,
            "latency_p99_ms": float("inf"),
            "top_paths": [{"path": "/", "requests": 7}],
        }
    )

    assert (found.start, found.requests, found.errors) == (START, 7, 1)
    assert (found.latency_p50_ms, found.latency_p95_ms) == (3.0, None)
    assert found.latency_p99_ms is None, "no plot has a place for it"
    assert found.top_paths == [("/", 7)]


def test_the_history_reads_files_once_and_then_grows_by_batches(tmp_path):
    settings = LogSettings(output_dir=str(tmp_path), report_minutes=60)
    stored = [{"time": START + timedelta(minutes=n), "requests": 100 + n} for n in range(60)]
    store(tmp_path / "minutes", "a-0", stored)
    history = MinuteHistory(settings)

    first = history.extend([minute(60)])
    store(tmp_path / "minutes", "never-read", [{"time": START, "requests": 0}])
    second = history.extend([minute(62), minute(61)])

    assert [m.requests for m in first] == list(range(101, 161))
    assert [m.requests for m in second] == list(range(103, 163))


def test_a_report_that_cannot_be_made_does_not_stop_the_pipeline(tmp_path, caplog):
    settings = LogSettings(output_dir=str(tmp_path))
    pipeline = LogPipeline(settings)
    for latency in (float("nan"), float("inf")):
        pipeline._refresh_report([minute(latency=latency)])
    folder = Path(settings.minutes_dir) / "date=2026-05-01" / "batch=q-0"
    folder.mkdir(parents=True)
    (folder / "part-0.parquet").write_bytes(b"")
    LogPipeline(settings)._refresh_report([minute()])
    assert caplog.text.count("the report was not written") == 3
    with pytest.raises(TidemillError, match="cannot be read"):
        LogPipeline(settings).report()
