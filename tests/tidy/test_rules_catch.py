"""The rules themselves: each finds a planted offence and leaves the proper form alone."""

from __future__ import annotations

import ast

import pytest

from tests.tidy import documents, harness, layers, modules, rooms
from tests.tidy.banned import banned, bare_yields, finalizers
from tests.tidy.set_order import unordered_iteration
from tests.tidy.source import Finding, assert_none, snippet
from tools.folder_map import head
from tools.folder_map import render as render_folder_map
from tools.requirement_table import Outcome, meanings, numbers_in_test_name, render

LAYER_CASES = [
    (layers.wrong_layer, "wire/batch.py", "from tidemill.storage.files.disk import Disk"),
    (layers.wrong_layer, "storage/log/segment.py", "from tidemill.replication import isr"),
    (
        layers.wrong_layer,
        "coordinators/runtime/coordinator_runtime.py",
        "import tidemill.replication.partition",
    ),
    (layers.wrong_layer, "hot/varint.py", "from tidemill.core.errors import KafkaError"),
    (layers.wrong_layer, "core/ids.py", "from tidemill.hot.varint import read"),
    (
        layers.wrong_layer,
        "cli/commands/topic.py",
        "def f():\n    from tidemill.broker import Broker",
    ),
    (
        layers.wrong_layer,
        "server/request/context.py",
        "from tidemill.testing.clock import ManualClock",
    ),
    (layers.wrong_layer, "gateway/mqtt.py", "x = 1"),
    (layers.wrong_layer, "__init__.py", "from tidemill.server.handlers import HANDLERS"),
    (layers.core_beyond_standard_library, "core/config/keys.py", "import click"),
    (layers.impure, "wire/frames.py", "import asyncio"),
    (layers.impure, "coordinators/group/shard.py", "from time import monotonic"),
    (layers.impure, "replication/isr.py", "from tidemill.core.clock import Clock"),
    (layers.asyncio_outside_shells, "storage/log/segment.py", "import asyncio.events"),
    (layers.heavy_library, "cli/text.py", "import rich"),
    (layers.heavy_library, "server/request/dispatch.py", "def f():\n    import pyarrow"),
]

CLEAN_LAYER_CASES = [
    (layers.wrong_layer, "cli/commands/up.py", "from tidemill.broker import Broker"),
    (layers.wrong_layer, "wire/batch.py", "from tidemill.hot.record_walk import walk"),
    (
        layers.wrong_layer,
        "server/request/dispatch.py",
        "from tidemill.replication.partition import P",
    ),
    (layers.wrong_layer, "__init__.py", "__version__ = '1'"),
    (layers.core_beyond_standard_library, "core/config/keys.py", "import difflib"),
    (layers.core_beyond_standard_library, "core/loop/event_loop.py", "import uvloop"),
    (layers.impure, "storage/log/segment.py", "import os"),
    (layers.asyncio_outside_shells, "server/connection/listener.py", "import asyncio"),
    (layers.heavy_library, "cli/text.py", "def f():\n    import rich"),
]

BANNED_CALLS = [
    "import time\nnow = time.time()",
    "import time as t\nstart = t.monotonic",
    "from time import perf_counter",
    "import datetime\ndatetime.datetime.now()",
    "from datetime import datetime\ndatetime.now()",
    "import random\nrandom.random()",
    "from random import Random",
    "import secrets\nsecrets.token_hex()",
    "from uuid import uuid4",
    "import os\nos.urandom(4)",
    "import threading\nthreading.Thread()",
    "from concurrent.futures import ThreadPoolExecutor",
    "import asyncio\nasyncio.to_thread(f)",
    "loop.run_in_executor(None, f)",
    "open('x')",
    "import os\nos.fsync(3)",
    "import os\nos.path.exists('x')",
    "from pathlib import Path",
    "import mmap\nmmap.mmap(-1, 1)",
    "import socket\nsocket.socket()",
    "import asyncio\nasyncio.open_connection('h', 1)",
    "loop.create_server(f)",
    "import uvloop\nuvloop.run(f())",
    "import weakref\nweakref.finalize(x, f)",
    "import asyncio\nasyncio.create_task(f())",
    "loop.create_task(f())",
    "import pickle\npickle.loads(b'')",
    "eval('1')",
    "import subprocess\nsubprocess.run([])",
    "import os\nos.environ['X']",
]

ALLOWED_CALLS = [
    ("core/clock.py", "import time\ntime.monotonic()"),
    ("core/rng.py", "import secrets\nsecrets.randbits(8)"),
    ("core/net.py", "loop.create_server(f)"),
    ("core/loop/lifecycle.py", "loop.create_task(f())"),
    ("storage/files/disk.py", "import os\nos.fsync(3)"),
    ("storage/files/disk_work.py", "loop.run_in_executor(None, f)"),
    ("metadata/store/sqlite_store.py", "import threading\nthreading.Lock()"),
    ("core/loop/event_loop.py", "import uvloop\nuvloop.new_event_loop()"),
    ("cli/commands/produce.py", "open('x')"),
    ("storage/log/segment.py", "disk.open('x')\nself._disk.rename('a', 'b')"),
    ("storage/log/segment.py", "import posixpath\nposixpath.join('a', 'b')"),
    ("storage/log/segment.py", "from uuid import UUID\nUUID(int=0)"),
    ("server/connection/listener.py", "def f(open):\n    open()"),
    ("server/telemetry.py", "from datetime import datetime\ndatetime.fromtimestamp(0)"),
]

UNORDERED = [
    "for x in {1, 2}:\n    pass",
    "y = [f(x) for x in set(xs)]",
    "y = {x: 1 for x in frozenset(xs)}",
    "def f(xs: set[str]):\n    for x in xs:\n        pass",
    "class A:\n    def __init__(self):\n        self.tasks = set()\n"
    "    def f(self):\n        return list(self.tasks)",
    "class A:\n    members: set[str]\n    def f(self):\n        return ','.join(self.members)",
    "seen: set[int] = set()\nrows = (*seen,)",
    "a = {1}\nfor x in a | b:\n    pass",
    "import os\nfor name in os.listdir('.'):\n    pass",
    "import asyncio\nfor task in asyncio.all_tasks():\n    pass",
    "y = list({x for x in xs})",
]

ORDERED = [
    "for x in sorted({1, 2}):\n    pass",
    "for x in (1, 2):\n    pass",
    "total = sum(f(x) for x in {1, 2})",
    "y = {f(x) for x in {1, 2}}",
    "def f(xs: list[str]):\n    for x in xs:\n        pass",
    "def f(xs: set[str]):\n    return 'a' in xs",
    "import os\nfor name in sorted(os.listdir('.')):\n    pass",
    "a = {1}\nb = {*a, 2}",
    "for x in dict.fromkeys(xs):\n    pass",
]


@pytest.mark.parametrize(("rule", "path", "text"), LAYER_CASES)
def test_layer_rule_finds_the_offence(rule, path, text):
    assert list(rule(snippet(path, text)))


@pytest.mark.parametrize(("rule", "path", "text"), CLEAN_LAYER_CASES)
def test_layer_rule_leaves_the_proper_form_alone(rule, path, text):
    assert not list(rule(snippet(path, text)))


@pytest.mark.parametrize("text", BANNED_CALLS)
def test_banned_call_is_found_with_its_replacement(text):
    found = list(banned(snippet("replication/partition.py", text)))
    assert found
    assert "): " in found[0].message


@pytest.mark.parametrize(("path", "text"), ALLOWED_CALLS)
def test_call_in_its_own_seam_is_allowed(path, text):
    assert not list(banned(snippet(path, text)))


@pytest.mark.parametrize("text", UNORDERED)
def test_iteration_without_order_is_found(text):
    assert list(unordered_iteration(snippet("server/request/dispatch.py", text)))


@pytest.mark.parametrize("text", ORDERED)
def test_iteration_with_order_is_left_alone(text):
    assert not list(unordered_iteration(snippet("server/request/dispatch.py", text)))


def test_finalizer_is_found():
    assert list(finalizers(snippet("a.py", "class A:\n    def __del__(self):\n        pass")))


@pytest.mark.parametrize(
    "text",
    [
        "import asyncio\nasync def f():\n    await asyncio.sleep(0)",
        "from asyncio import sleep\nasync def f():\n    await sleep(0)",
    ],
)
def test_bare_yield_is_found(text):
    assert list(bare_yields(snippet("server/request/dispatch.py", text)))
    assert not list(bare_yields(snippet("core/loop/pacing.py", text)))
    assert not list(bare_yields(snippet("client/poll.py", text.replace("(0)", "(0.1)"))))


def test_vague_module_name_is_found():
    assert list(modules.vague_name(snippet("server/utils.py", "")))
    assert list(modules.vague_name(snippet("common/ids.py", "")))
    assert not list(modules.vague_name(snippet("server/limits/quotas.py", "")))


def test_module_without_all_is_found():
    assert list(modules.missing_all(snippet("server/limits/quotas.py", "def f(): ...")))
    assert not list(
        modules.missing_all(snippet("server/limits/quotas.py", "__all__ = []\ndef f(): ..."))
    )
    assert not list(modules.missing_all(snippet("core/limits.py", "KIB = 1024")))


def test_dead_module_is_found_and_a_lazily_named_one_is_not():
    tree = [
        snippet("cli/main.py", "COMMANDS = {'topic': 'Manage topics.'}"),
        snippet("cli/commands/topic.py", "from tidemill.client.admin.topic_admin import Admin"),
        snippet("client/__init__.py", "LAZY = 'tidemill.client.consuming.consumer:Consumer'"),
        snippet("client/consuming/consumer.py", ""),
        snippet("client/admin/topic_admin.py", ""),
        snippet("client/forgotten.py", ""),
    ]
    assert [found.path for found in modules.dead_modules(tree)] == [
        "src/tidemill/client/forgotten.py"
    ]


def test_second_class_of_a_name_is_found():
    server = snippet("server/connection/connection.py", "class Connection: ...\nclass _State: ...")
    client = snippet("client/network/connection.py", "class Connection: ...\nclass _State: ...")
    message = snippet("wire/generated/fetch.py", "class Connection: ...")
    assert len(list(modules.repeated_class_names([client, server, message]))) == 1
    assert not list(modules.repeated_class_names([client, message]))


def test_import_of_a_test_from_outside_is_found():
    for text in ("from tests.support import clients", "import tests.support.clients"):
        assert list(harness.imports_of_tests("interop/run.py", ast.parse(text)))
        assert not list(harness.imports_of_tests("tests/e2e/test_up.py", ast.parse(text)))
    assert not list(harness.imports_of_tests("bench/lab.py", ast.parse("from bench import rows")))


@pytest.mark.parametrize(
    "text",
    [
        "import asyncio\nasyncio.run(f())",
        "import asyncio\nrun = asyncio.run",
        "from asyncio import Runner",
    ],
)
def test_second_way_to_run_a_coroutine_is_found(text):
    tree = ast.parse(text)
    assert list(harness.second_runner("tests/unit/core/test_logs.py", tree))
    assert not list(harness.second_runner("tests/support/coroutines.py", tree))
    assert not list(harness.second_runner("bench/lab.py", tree))


def test_annotated_test_function_is_found():
    for text in ("def test_a() -> None: ...", "def test_a(run: Run): ..."):
        assert list(harness.annotated_test("tests/unit/test_a.py", ast.parse(text)))
    for text in ("def test_a(run): ...", "def helper(run: Run) -> None: ..."):
        assert not list(harness.annotated_test("tests/unit/test_a.py", ast.parse(text)))


def test_unlisted_handler_is_found():
    tree = [
        snippet("server/handlers/__init__.py", "from tidemill.server.handlers.data import delete"),
        snippet("server/handlers/data/delete.py", "HANDLER = 1"),
        snippet("server/handlers/data/fetch.py", "HANDLER = 1"),
        snippet("server/handlers/partition_errors.py", "def f(): ..."),
    ]
    assert [found.path for found in modules.unlisted_handlers(tree)] == [
        "src/tidemill/server/handlers/data/fetch.py"
    ]


@pytest.mark.parametrize("word", ["FIX" + "ME", "TO" + "DO", "X" + "XX"])
def test_leftover_is_found(word):
    assert list(documents.leftovers("a.py", f"x = 1  # {word}: later"))
    assert not list(documents.leftovers("a.py", f"{word.lower()} {word}S"))


@pytest.mark.parametrize("folder", ["work", "root", "home"])
def test_path_of_a_machine_is_found(folder):
    assert list(documents.machine_paths("a.md", f"see /{folder}/me/project"))
    assert not list(documents.machine_paths("a.md", f"see docs/{folder}/me"))


@pytest.mark.parametrize("number", ["1", "8", "15"])
def test_number_of_a_decision_is_found(number):
    assert list(documents.decision_numbers("a.py", f"# one round at a time (D{number})"))
    assert not list(documents.decision_numbers("a.py", f"ADR 000{number}, ID{number}, D{number}x"))


def test_registry_host_is_found():
    assert list(documents.registry_hosts("a.txt", "https://py" + "pi.org/simple"))
    assert not list(documents.registry_hosts("a.txt", "from PyPI"))


@pytest.mark.parametrize(
    "text",
    [
        "--index-url https://example.invalid/simple\n",
        "click @ file:///wheels/click.whl\n",
        "click>=8\n",
        "click==8.1\n",
    ],
)
def test_foreign_line_in_a_lock_is_found(text):
    assert list(documents.lock_lines("requirements/a.txt", text))


def test_proper_lock_passes():
    text = "# Made by `make lock`.\n\nclick==8.1 \\\n    --hash=sha256:" + "0" * 64 + "\n"
    assert not list(documents.lock_lines("requirements/a.txt", text))


def test_broken_link_is_found():
    assert list(documents.broken_links("docs/a.md", "see [it](gone.md#part)"))
    assert not list(documents.broken_links("docs/a.md", "[a](../pyproject.toml) [b](https://b.c)"))


def test_name_of_a_missing_file_is_found():
    files = ["src/tidemill/storage/log/segment.py", "setup.py"]
    text = "`log/segment.py` and `setup.py`"
    assert not list(documents.missing_files("docs/a.md", text, files))
    assert list(documents.missing_files("docs/a.md", "`storage/segment.py`", files))


def test_stale_line_of_the_folder_map_is_found():
    heads = {"core": "Words.", "server/handlers": "One file per API."}
    text = f"# A\n\n## Folder map\n\n```\n{render_folder_map(heads)}```\n\n## Next\n"
    assert not list(documents.stale_folder_map("A.md", text, heads))
    for changed in ({**heads, "wire": "Bytes."}, {"core": "Words."}, {**heads, "core": "Ids."}):
        assert list(documents.stale_folder_map("A.md", text, changed))
    assert list(documents.stale_folder_map("A.md", "no map", heads))


def test_head_of_a_folder_is_the_first_paragraph_of_its_docstring():
    assert head('"""One\ntwo.\n\nThree."""\nx = 1') == "One two."
    assert head("x = 1") == ""


def test_long_head_takes_two_lines_and_a_folder_without_layer_comes_last():
    text = render_folder_map({"zoo": "word " * 40, "testing": "Seams."})
    assert [line.split("/")[0].strip()[:7] for line in text.splitlines()] == [
        "testing",
        "zoo",
        "word wo",
    ]


def test_pure_list_that_differs_from_the_checked_one_is_found():
    text = "Three rings. **Pure** code (`wire/`,\n`core/{ids,\nlimits}.py`) knows no clock (`x`)."
    assert not list(documents.pure_list("A.md", text, ["wire/", "core/ids.py", "core/limits.py"]))
    assert list(documents.pure_list("A.md", text, ["wire/", "core/ids.py"]))
    assert list(documents.pure_list("A.md", text.replace("wire/", "hot/"), ["wire/", "hot/"]))
    assert list(documents.pure_list("A.md", "no list", ["wire/"]))


def test_missing_row_of_a_table_is_found():
    assert not list(documents.missing_rows("a.md", "| `varint` | x |", ["varint"]))
    assert list(documents.missing_rows("a.md", "`varint` in prose", ["varint"]))


def test_unchecked_claim_of_purity_is_found():
    claim = '"""Decides. Pure."""'
    assert list(layers.unlisted_purity(snippet("server/limits/quotas.py", claim)))
    assert list(layers.unlisted_purity(snippet("server/limits/__init__.py", claim)))
    assert not list(layers.unlisted_purity(snippet("replication/isr.py", claim)))
    assert not list(layers.unlisted_purity(snippet("wire/__init__.py", claim)))


def test_row_for_a_package_that_does_not_exist_is_found():
    paths = ["wire/batch.py", "broker.py"]
    assert not list(layers.ghosts("PURE", ["wire/", "broker.py", "**/batch.py"], paths))
    assert len(list(layers.ghosts("PURE", ["wires/", "brokers.py", "batch.py"], paths))) == 3


def test_cycle_of_rooms_is_found_between_neighbours_and_between_parent_and_child():
    log = snippet("storage/log/log.py", "from tidemill.storage.index.offsets import Offsets")
    back = snippet("storage/index/offsets.py", "def f():\n    import tidemill.storage.log.log")
    child = snippet("storage/index/offsets.py", "from tidemill.storage.disk import Disk")
    parent = snippet("storage/disk.py", "from tidemill.storage.index import offsets")
    assert not list(rooms.room_cycles([log, child, snippet("storage/disk.py", "")]))
    assert "storage/log -> storage/index -> storage/log" in "".join(
        str(found) for found in rooms.room_cycles([log, back])
    )
    assert list(rooms.room_cycles([child, parent]))


def test_crowded_room_is_found():
    files = [snippet(f"server/limits/limit_{n}.py", "") for n in range(rooms.FILES_MAX + 1)]
    assert not list(rooms.crowded_rooms([*files[1:], snippet("server/limits/__init__.py", "")]))
    assert list(rooms.crowded_rooms(files))


def test_claims_are_single_numbers_and_ranges_outside_negative_sections():
    text = "# It holds\nF07 and R1\u2013R3\n## What is not there yet\nF114\n## Files\nS3"
    numbers = {number for _, number in documents.claims(text)}
    assert numbers == {"F7", "R1", "R2", "R3", "S3"}


def test_claim_without_test_is_found():
    known = {"F7": "a", "F8": "b"}
    found = list(documents.unproven_claims("a.md", "F07 F08 F99", known=known, proven={"F8"}))
    assert [finding.message.split()[0] for finding in found] == ["F7"]


def test_findings_are_told_with_file_and_line():
    with pytest.raises(AssertionError, match=r"a\.py:3: no"):
        assert_none([Finding("a.py", 3, "no")])


def test_numbers_are_read_from_the_head_of_a_test_name():
    assert numbers_in_test_name("test_T25_S23_lying_counts_are_refused") == ["T25", "S23"]
    assert numbers_in_test_name("test_F01_topics") == ["F1"]
    assert numbers_in_test_name("test_an_F20_in_the_middle") == []


def test_table_tells_proven_failing_skipped_and_missing_apart():
    rows = "| F01 | one |\n| F02 | two |\n| F03 | three |\n| F04 | four |\n"
    tests = [
        Outcome("t.test_F01_a[x]", "passed"),
        Outcome("t.test_F02_a", "passed"),
        Outcome("t.test_F02_b", "failed"),
        Outcome("t.test_F03_a", "skipped"),
    ]
    table = render(meanings(rows), tests)
    assert "| F1 | one | proven | `t.test_F01_a` |" in table
    assert "| F2 | two | failing |" in table
    assert "| F3 | three | skipped |" in table
    assert "| F4 | four | no test |" in table
