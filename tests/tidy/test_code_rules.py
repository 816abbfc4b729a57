"""The package keeps its layers, its rings and its banned calls."""

from __future__ import annotations

import pytest

from tests.tidy import layers
from tests.tidy.banned import BANS, YIELDS, bare_yields, finalizers, violations
from tests.tidy.layers import (
    asyncio_outside_shells,
    core_beyond_standard_library,
    ghosts,
    heavy_library,
    impure,
    unlisted_purity,
    wrong_layer,
)
from tests.tidy.modules import (
    ENTRY_POINTS,
    dead_modules,
    missing_all,
    repeated_class_names,
    unlisted_handlers,
    vague_name,
)
from tests.tidy.rooms import crowded_rooms, room_cycles
from tests.tidy.set_order import unordered_iteration
from tests.tidy.source import assert_none, package_modules

TABLES = {
    "MAY_IMPORT": [f"{row}.py" if row == "__init__" else f"{row}/" for row in layers.MAY_IMPORT],
    "EXCEPTIONS": layers.EXCEPTIONS,
    "PURE": layers.PURE,
    "IMPURE_BETWEEN_PURE": layers.IMPURE_BETWEEN_PURE,
    "ASYNC_SHELLS": layers.ASYNC_SHELLS,
    "LAZY_LIBRARIES": [home for homes in layers.LAZY_LIBRARIES.values() for home in homes],
    "ENTRY_POINTS": ENTRY_POINTS,
    "BANS": [allowed for ban in BANS for allowed in ban.allowed],
    "YIELDS": YIELDS,
}


def _no_call_breaks(rule: str) -> None:
    bans = [ban for ban in BANS if ban.rule == rule]
    assert bans, f"no ban is filed under {rule}"
    assert_none(
        found for module in package_modules() for ban in bans for found in violations(module, ban)
    )


def test_imports_point_down_only():
    assert_none(found for module in package_modules() for found in wrong_layer(module))


def test_rooms_import_each_other_without_cycles():
    assert_none(room_cycles(package_modules()))


def test_no_room_is_crowded():
    assert_none(crowded_rooms(package_modules()))


@pytest.mark.parametrize("table", TABLES)
def test_table_of_the_rules_names_only_what_exists(table):
    assert_none(ghosts(table, TABLES[table], (module.path for module in package_modules())))


def test_core_and_hot_use_the_standard_library_only():
    assert_none(
        found for module in package_modules() for found in core_beyond_standard_library(module)
    )


def test_R8_pure_code_has_no_event_loop_clock_chance_or_disk():
    assert_none(found for module in package_modules() for found in impure(module))


def test_R8_code_that_calls_itself_pure_is_checked():
    assert_none(found for module in package_modules() for found in unlisted_purity(module))


def test_only_async_shells_import_asyncio():
    assert_none(found for module in package_modules() for found in asyncio_outside_shells(module))


def test_heavy_libraries_are_imported_where_they_are_needed():
    assert_none(found for module in package_modules() for found in heavy_library(module))


def test_R1_time_and_chance_come_from_their_seams():
    _no_call_breaks("R1")


def test_R2_threads_are_behind_disk_run_and_the_stores():
    _no_call_breaks("R2")


def test_R3_files_and_sockets_are_behind_disk_and_net():
    _no_call_breaks("R3")


def test_R4_uvloop_is_chosen_in_one_place():
    _no_call_breaks("R4")


def test_R5_nothing_depends_on_the_order_of_a_set_or_listing():
    assert_none(found for module in package_modules() for found in unordered_iteration(module))


def test_R5_nothing_is_left_to_the_garbage_collector():
    _no_call_breaks("R5")
    assert_none(found for module in package_modules() for found in finalizers(module))


def test_R7_background_tasks_start_in_lifecycle_only():
    _no_call_breaks("R7")


def test_only_pacing_yields_to_the_loop():
    assert_none(found for module in package_modules() for found in bare_yields(module))


def test_R17_data_never_becomes_code():
    _no_call_breaks("R17")


def test_only_the_command_line_reads_the_environment():
    _no_call_breaks("house style")


@pytest.mark.parametrize("rule", [vague_name, missing_all], ids=lambda rule: rule.__name__)
def test_each_module_is_named_and_says_what_it_offers(rule):
    assert_none(found for module in package_modules() for found in rule(module))


def test_every_module_is_imported():
    assert_none(dead_modules(package_modules()))


def test_every_public_class_has_a_name_of_its_own():
    assert_none(repeated_class_names(package_modules()))


def test_every_handler_is_in_the_list():
    assert_none(unlisted_handlers(package_modules()))
