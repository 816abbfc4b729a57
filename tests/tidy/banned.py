"""Calls that are allowed in one place only, and what to call instead.

These are the rules R1 to R5, R7 and R17 of docs/reference/numbers.md. They keep time, chance,
threads, files and sockets behind seams, so that a whole cluster can run in one thread on virtual
time.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from tests.tidy.source import Finding, Module, matches

EDGES = ("cli/", "spark/", "testing/")
STORES = (
    "metadata/store/local_disk.py",
    "metadata/store/session_files.py",
    "metadata/store/session_watch.py",
    "metadata/store/sqlite_file.py",
    "metadata/store/sqlite_store.py",
    "metadata/store/lease_renewal.py",
    "metadata/store/zookeeper_auth.py",
    "metadata/store/zookeeper_session.py",
    "metadata/store/zookeeper_store.py",
)
"""The store of one host has locks, a FIFO and threads of its own; the Disk seam has no such. That
of several hosts has a thread that renews, beside those of kazoo."""
DISK = ("storage/files/disk.py", "storage/files/os_file.py")
DISK_WORKER = "hot/disk_worker.py"
"""The threads of flushes, and the few calls that they make; `storage/files/disk_jobs.py` alone
uses them."""
YIELDS = ("core/loop/pacing.py",)


@dataclass(frozen=True, slots=True)
class Ban:
    """`names` are dotted (`time.time`, or `secrets.*` for a whole module); `methods` are attribute
    names on any object, for what cannot be resolved by import."""

    rule: str
    names: tuple[str, ...]
    allowed: tuple[str, ...]
    instead: str
    methods: tuple[str, ...] = ()


def _in(module: str, names: str) -> tuple[str, ...]:
    return tuple(f"{module}.{name}" for name in names.split())


FILE_CALLS = (
    *_in("os", "open close read write pread pwrite preadv pwritev fsync fdatasync sync lseek"),
    *_in("os", "rename replace remove unlink link symlink mkdir makedirs rmdir removedirs"),
    *_in("os", "listdir scandir walk stat lstat fstat statvfs truncate ftruncate posix_fallocate"),
    *_in("os", "chmod chown utime access fdopen sendfile copy_file_range posix_fadvise"),
    *_in("os.path", "exists isfile isdir islink getsize getmtime realpath"),
    *("pathlib.Path", "pathlib.PosixPath", "io.open", "io.FileIO"),
    *("shutil.*", "tempfile.*", "glob.*", "fcntl.*"),
)

BANS = (
    Ban(
        rule="R1",
        names=(
            *_in("time", "time time_ns monotonic monotonic_ns perf_counter perf_counter_ns"),
            *_in("time", "process_time process_time_ns thread_time thread_time_ns sleep"),
            *_in("time", "clock_gettime clock_gettime_ns"),
            *_in("datetime.datetime", "now utcnow today"),
            "datetime.date.today",
        ),
        allowed=("core/clock.py",),
        instead="ask the Clock seam (core/clock.py) that your owner passes in",
    ),
    Ban(
        rule="R1",
        names=("random.*", "secrets.*", "uuid.uuid1", "uuid.uuid4", "os.urandom", "os.getrandom"),
        allowed=("core/rng.py",),
        instead="ask the Rng seam (core/rng.py) that your owner passes in",
    ),
    Ban(
        rule="R2",
        names=(
            "threading.*",
            "_thread.*",
            "concurrent.*",
            "multiprocessing.*",
        ),
        methods=("run_in_executor", "to_thread"),
        allowed=("storage/files/disk_work.py", DISK_WORKER, *STORES, "testing/"),
        instead="hand the blocking call to `await disk.run(operation)`",
    ),
    Ban(
        rule="R3",
        names=("open", *FILE_CALLS),
        allowed=(*DISK, DISK_WORKER, *STORES, *EDGES),
        instead="use the Disk seam (storage/files/disk.py)",
    ),
    Ban(
        rule="R3",
        names=("mmap.*",),
        # The second maps no file: blocks of memory.
        allowed=(*DISK, "server/limits/memory_blocks.py", *STORES, *EDGES),
        instead="use the Disk seam (storage/files/disk.py)",
    ),
    Ban(
        rule="R3",
        names=(
            *("socket.*", "select.*", "selectors.*"),
            *_in("asyncio", "start_server open_connection start_unix_server open_unix_connection"),
        ),
        methods=("create_server", "create_connection", "create_datagram_endpoint"),
        # The second waits for its FIFO; the third asks whether it can write its log without a wait.
        allowed=(
            "core/net.py",
            "metadata/store/session_files.py",
            "cli/supervising/broker_log.py",
            "testing/",
        ),
        instead="use the Net seam (core/net.py): `listen` and `connect`",
    ),
    Ban(
        rule="R4",
        names=("uvloop.*",),
        allowed=("core/loop/event_loop.py",),
        instead="nothing may depend on uvloop; take the loop from core/loop/event_loop.py",
    ),
    Ban(
        rule="R5",
        names=("weakref.finalize",),
        allowed=(),
        instead="close it in its owner's `stop` or in a `finally` block; collection has no order",
    ),
    Ban(
        rule="R7",
        names=("asyncio.create_task", "asyncio.ensure_future", "asyncio.TaskGroup"),
        methods=("create_task", "ensure_future"),
        allowed=("core/loop/lifecycle.py",),
        instead="start it with `Supervisor.spawn` (core/loop/lifecycle.py), which reports failures",
    ),
    Ban(
        rule="R17",
        names=("pickle.*", "marshal.*", "shelve.*", "eval", "exec", "os.system", "os.popen"),
        allowed=(),
        instead="data is parsed by a schema, never turned into objects or code",
    ),
    Ban(
        rule="R17",
        names=("subprocess.*", "asyncio.create_subprocess_exec", "asyncio.create_subprocess_shell"),
        allowed=EDGES,
        instead="the broker starts no programs; a command of cli/ may",
    ),
    Ban(
        rule="house style",
        names=("os.environ", "os.getenv", "os.environb"),
        # Spark tells a process by variables what it is, and is told by one which Python to start.
        allowed=("cli/", "testing/", "spark/session.py", "spark/source/range_reading.py"),
        instead="make it a configuration key (core/config/keys.py); only cli/ reads variables",
    ),
)


def banned(module: Module) -> Iterator[Finding]:
    yield from (finding for ban in BANS for finding in violations(module, ban))


def violations(module: Module, ban: Ban) -> Iterator[Finding]:
    if matches(module.path, ban.allowed):
        return
    for node, name in _used_names(module):
        if any(_covers(pattern, name) for pattern in ban.names):
            yield module.finding(node, f"`{name}` ({ban.rule}): {ban.instead}")
    for node, name in _called_methods(module):
        if name in ban.methods:
            yield module.finding(node, f"`.{name}()` ({ban.rule}): {ban.instead}")


def _covers(pattern: str, name: str) -> bool:
    if pattern.endswith(".*"):
        return name.startswith(pattern[:-1])
    return name == pattern


@cache
def _called_methods(module: Module) -> tuple[tuple[ast.AST, str], ...]:
    return tuple(
        (node, node.func.attr)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    )


@cache
def _used_names(module: Module) -> tuple[tuple[ast.AST, str], ...]:
    return tuple(resolved_names(module.tree))


def resolved_names(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """Dotted names as far as imports tell: `import time as t; t.time` is `time.time`.

    A name that comes in by `from module import name` is reported at the import. Built-ins are
    reported where they are called, unless the module defines the name itself.
    """
    aliases = _module_aliases(tree)
    defined = _defined_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((node, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Attribute):
            name = _dotted(node, aliases)
            if name is not None:
                yield node, name
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield from ((node, name) for name in {node.func.id} - defined - aliases.keys())


def _module_aliases(tree: ast.Module) -> dict[str, str]:
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.split(".")[0]
                aliases[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return aliases


def _defined_names(tree: ast.Module) -> set[str]:
    """Functions of the module and parameters of functions: they hide a built-in of that name."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            names.add(node.arg)
    return names


def _dotted(node: ast.Attribute, aliases: dict[str, str]) -> str | None:
    parts = [node.attr]
    value: ast.expr = node.value
    while isinstance(value, ast.Attribute):
        parts.append(value.attr)
        value = value.value
    if not isinstance(value, ast.Name) or value.id not in aliases:
        return None
    return ".".join([aliases[value.id], *reversed(parts)])


def bare_yields(module: Module) -> Iterator[Finding]:
    """`asyncio.sleep(0)`: it does not say why it yields, or how long its caller may run."""
    if matches(module.path, YIELDS):
        return
    aliases = _module_aliases(module.tree)
    for node in ast.walk(module.tree):
        match node:
            case ast.Call(func=function, args=[ast.Constant(value=0)]):
                if _name_of_function(function, aliases) == "asyncio.sleep":
                    yield module.finding(
                        node, "`asyncio.sleep(0)`: call what core/loop/pacing.py offers by name"
                    )


def _name_of_function(function: ast.expr, aliases: dict[str, str]) -> str | None:
    if isinstance(function, ast.Attribute):
        return _dotted(function, aliases)
    return aliases.get(function.id) if isinstance(function, ast.Name) else None


CLOSES_WITH_THE_LAST_REFERENCE = ("storage/files/os_file.py",)
"""A thread may still sync or read an evicted file, so `__del__` closes the descriptor with the last
user. It does nothing else."""


def finalizers(module: Module) -> Iterator[Finding]:
    if matches(module.path, CLOSES_WITH_THE_LAST_REFERENCE):
        return
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef) and node.name == "__del__":
            yield module.finding(
                node, "`__del__` (R5): close it in its owner's `stop` or in a `finally` block"
            )
