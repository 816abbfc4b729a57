"""Each room of handlers works with its own services alone; mypy checks what a context allows."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import tidemill.server.handlers as handlers

ROOT = Path(handlers.__file__).parent
CONTEXT_MODULE = "tidemill.server.request.context"
SERVICES_MODULE = "tidemill.server.request.services"
CONTEXT_OF_ROOM = {
    "cluster": "ClusterContext",
    "data": "DataContext",
    "groups": "GroupContext",
    "offsets": "GroupContext",
    "producing": "DataContext",
    "topics": "TopicContext",
    "transactions": "TransactionContext",
}


def imported(path, module):
    tree = ast.parse(path.read_text())
    return {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == module
        for alias in node.names
    }


def test_every_room_has_a_context():
    rooms = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert rooms == set(CONTEXT_OF_ROOM)


@pytest.mark.parametrize("room", sorted(CONTEXT_OF_ROOM))
def test_a_handler_takes_the_context_of_its_own_room(room):
    context = CONTEXT_OF_ROOM[room]
    services = context.replace("Context", "Services")
    for path in sorted((ROOT / room).glob("*.py")):
        assert imported(path, CONTEXT_MODULE) <= {context}, path.name
        assert imported(path, SERVICES_MODULE) <= {services}, path.name
