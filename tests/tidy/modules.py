"""Rules about modules as a whole: names, `__all__`, dead files, repeated class names, handlers."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from tests.tidy.source import Finding, Module, imported_names, matches

VAGUE_NAMES = frozenset({"util", "utils", "helper", "helpers", "common", "misc", "shared", "stuff"})
HANDLERS = "server/handlers/"

ENTRY_POINTS = (
    "cli/main.py",  # the `tidemill` script
    "testing/",  # a product of its own: users' tests import it
    "wire/generated/",  # looked up by API on first use
    "storage/log/memory_log.py",  # the second PartitionLog, for tests and simulation
    "spark/data_source.py",  # what pyspark_tidemill hands to Spark
)


def vague_name(module: Module) -> Iterator[Finding]:
    for part in module.path.removesuffix(".py").split("/"):
        if part.strip("_") in VAGUE_NAMES:
            yield module.finding(1, f"`{part}` says nothing: name the module after the noun in it")


def missing_all(module: Module) -> Iterator[Finding]:
    """Every module that defines a public function or class says what it offers."""
    if matches(module.path, ("wire/generated/", "**/__main__.py")):
        return
    if any(_assigns(node, "__all__") for node in module.tree.body):
        return
    for node in module.tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield module.finding(1, "has no `__all__`: list what others may import, in one line")
            return


def _assigns(node: ast.stmt, name: str) -> bool:
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target]
    return any(isinstance(target, ast.Name) and target.id == name for target in targets)


def dead_modules(modules: Iterable[Module]) -> Iterator[Finding]:
    """No module imports them, neither by an import statement nor by name, as lazy commands are."""
    everything = list(modules)
    wanted: set[str] = set()
    for module in everything:
        wanted.update(reference for reference in _references(module) if reference != module.name)
    for module in everything:
        if module.path.endswith("__init__.py") or matches(module.path, ENTRY_POINTS):
            continue
        if module.name not in wanted:
            yield module.finding(
                1, "no module imports it: use it, delete it, or name it in ENTRY_POINTS"
            )


def _references(module: Module) -> Iterator[str]:
    for _, name in imported_names(module):
        yield name
        yield name.rpartition(".")[0]
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value.partition(":")[0]
            if module.path == "cli/main.py":  # its table of commands names their modules
                yield f"tidemill.cli.commands.{node.value}"


def repeated_class_names(modules: Iterable[Module]) -> Iterator[Finding]:
    """Public classes of one name in two files: a reader cannot tell which one a text means."""
    first: dict[str, str] = {}
    for module in modules:
        if matches(module.path, ("wire/generated/",)):
            continue
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                home = first.setdefault(node.name, module.path)
                if home != module.path:
                    yield module.finding(
                        node, f"`{node.name}` is also in {home}: name it after what it is here"
                    )


def unlisted_handlers(modules: Iterable[Module]) -> Iterator[Finding]:
    handlers = [module for module in modules if module.path.startswith(HANDLERS)]
    listed = {
        reference
        for module in handlers
        if module.path == f"{HANDLERS}__init__.py"
        for reference in _references(module)
    }
    for module in handlers:
        stem = module.path.removeprefix(HANDLERS)
        if stem.startswith("_") or not _is_handler(module):
            continue
        if module.name not in listed:
            yield module.finding(1, "is not listed in server/handlers/__init__.py: add it")


def _is_handler(module: Module) -> bool:
    """A handler's module binds HANDLER; parts that several handlers share do not."""
    return any(_assigns(node, "HANDLER") for node in module.tree.body)
