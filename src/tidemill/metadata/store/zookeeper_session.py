"""One session with ZooKeeper: a kazoo client that is used until its session ends, and never again.

kazoo begins another session by itself after one has expired. Here that would be wrong: its owner
must register again first. So the session is over for good when kazoo says LOST, and the client is
closed; what it answers from then on does not count.

`open` and `close` block and run in a thread. Requests only queue, and are sent in order: a read is
answered behind a write that was queued before it. Their results arrive in kazoo's threads; `answer`
brings them to the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, final

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionDropped,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
)
from kazoo.interfaces import IAsyncResult
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import Connect
from kazoo.protocol.states import KeeperState, ZnodeStat
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from tidemill.core.config.zookeeper_config import ZookeeperConfig
from tidemill.core.errors import StoreUnavailable, UserError
from tidemill.metadata.store.coord import Check, Create, Delete, Op, Put, SessionState
from tidemill.metadata.store.renewed_lease import unanswered_max
from tidemill.metadata.store.zookeeper_auth import ZookeeperAuth

__all__ = ["Watched", "ZookeeperSession"]

OPEN_TIMEOUT_S = 10.0
"""How long a start waits for a server; the caller tries again."""
_RETRY_S = 0.1
_RETRY_S_MAX = 1.0

_STATES = {
    KazooState.CONNECTED: SessionState.CONNECTED,
    KazooState.SUSPENDED: SessionState.SUSPENDED,
    KazooState.LOST: SessionState.LOST,
}
_kazoo_log = logging.getLogger("kazoo")
_kazoo_log.setLevel(logging.ERROR)  # every attempt to connect; the store reports what changes

Watched = Callable[[Any], None]
"""Called in a thread of kazoo with the event."""


class _Connection(ConnectionHandler):  # type: ignore[misc]  # kazoo has no types
    """Remembers the session timeout that the server has chosen, which kazoo forgets, and leaves a
    server that does not answer.

    kazoo asks a server whether it lives only when it has nothing else to send for a third of a
    session. We renew more often than that, so it would wait for ever for one that stands still.
    """

    negotiated_ms = 0
    gives_up = False
    """Whether the next request is to drop the connection instead; set in another thread."""

    def _invoke(self, timeout: float, request: object, xid: int | None = None) -> object:
        answer = super()._invoke(timeout, request, xid)
        if isinstance(request, Connect):
            self.negotiated_ms = answer[0].time_out
            self.gives_up = False
        return answer

    def _send_request(self, read_timeout: float, connect_timeout: float) -> None:
        if self.gives_up:
            raise ConnectionDropped("the server does not answer")
        super()._send_request(read_timeout, connect_timeout)


@final
class ZookeeperSession:
    """Paths are those of the contract; `chroot` is put before them."""

    def __init__(
        self,
        config: ZookeeperConfig,
        auth: ZookeeperAuth,
        *,
        changed: Callable[[ZookeeperSession, SessionState], None],
    ) -> None:
        """`changed` is called in a thread of kazoo."""
        self._config = config
        self._root = config.chroot
        self._changed = changed
        self._settled = threading.Event()
        self._client = KazooClient(
            hosts=config.hosts,
            timeout=config.session_timeout_ms / 1000,
            connection_retry=KazooRetry(max_tries=-1, delay=_RETRY_S, max_delay=_RETRY_S_MAX),
            auth_data=auth.digests,
            sasl_options=auth.sasl_options,
            default_acl=CREATOR_ALL_ACL if auth.is_given else OPEN_ACL_UNSAFE,
            use_ssl=config.tls_enable,
            ca=config.tls_ca_file or None,
            certfile=config.tls_certificate_file or None,
            keyfile=config.tls_certificate_file or None,
            check_hostname=config.tls_enable,
            logger=_kazoo_log,
        )
        self._connection = _Connection(
            self._client,
            self._client._conn_retry.copy(),
            logger=_kazoo_log,
            sasl_options=auth.sasl_options,
        )
        self._client._connection = self._connection
        self.is_over = False
        """Whether it has expired or was closed; set before anyone is told."""
        self._unanswered = 0
        """Renewals since the last one that was answered, or since another server was tried."""

    @property
    def timeout_s(self) -> float:
        """What the server has chosen."""
        return self._connection.negotiated_ms / 1000

    @property
    def session_id(self) -> int:
        return int(self._client.client_id[0])

    @property
    def is_connected(self) -> bool:
        """As far as kazoo knows; what is asked without a connection would wait for one."""
        return not self.is_over and bool(self._client.connected)

    # --- open and close, in a thread -------------------------------------------------------------

    def open(self, folders: Sequence[str], nodes: Sequence[str]) -> None:
        """Connect, and make what every session needs. StoreUnavailable: nobody answers."""
        self._client.add_listener(self._listen)
        self._client.start_async()
        is_settled = self._settled.wait(OPEN_TIMEOUT_S)
        if self._client.client_state == KeeperState.AUTH_FAILED:
            raise UserError(f"ZooKeeper at {self._config.hosts} refuses our credentials")
        if not is_settled or self.is_over:
            how = " over TLS, with a certificate that we trust" if self._config.tls_enable else ""
            raise StoreUnavailable(f"no ZooKeeper server answers at {self._config.hosts}{how}")
        try:
            parts = self._root.split("/")[1:]
            for depth in range(len(parts)):
                self._make("/" + "/".join(parts[: depth + 1]), None)
            for folder in folders:
                self._make(self._root + folder, None)
            for node in nodes:
                self._make(self._root + node, b"")
        except (NoAuthError, AuthFailedError) as error:
            raise UserError(
                f"ZooKeeper does not let us use {self._root}: it was made with other credentials, "
                "or ours are wrong; see tidemill.zookeeper.auth.file"
            ) from error
        except KazooException as error:
            raise StoreUnavailable(f"ZooKeeper: {error!r}") from error

    def _make(self, path: str, value: bytes | None) -> None:
        with suppress(NodeExistsError):
            self._client.create_async(path, value).get(timeout=OPEN_TIMEOUT_S)

    def close(self) -> None:
        """End the session; its ephemeral nodes vanish. Blocks for seconds if nobody answers."""
        self.is_over = True
        with suppress(Exception):  # nobody answers: it ends by its timeout then
            self._client.stop()
        with suppress(Exception):  # its thread did not end: a socket stays open
            self._client.close()

    def _listen(self, kazoo_state: str) -> None:
        """In kazoo's thread."""
        state = _STATES[kazoo_state]
        if state is SessionState.LOST:
            self.is_over = True
        if state is not SessionState.SUSPENDED:
            self._settled.set()
        self._changed(self, state)

    # --- requests --------------------------------------------------------------------------------

    def get(self, path: str) -> IAsyncResult:
        return self._client.get_async(self._root + path)

    def exists(self, path: str, watch: Watched | None = None) -> IAsyncResult:
        return self._client.exists_async(self._root + path, watch)

    def children(self, path: str, watch: Watched | None = None) -> IAsyncResult:
        return self._client.get_children_async(self._root + path, watch)

    def make_folder(self, path: str) -> IAsyncResult:
        """A node without a value: it only has nodes below it."""
        return self._client.create_async(self._root + path, None)

    def make_node(self, path: str) -> IAsyncResult:
        """A node for `write`."""
        return self._client.create_async(self._root + path, b"")

    def write(self, path: str) -> IAsyncResult:
        """Change a node that nobody reads; what is read behind it is as new as this."""
        return self._client.set_async(self._root + path, b"")

    def commit(self, ops: Sequence[Op]) -> IAsyncResult:
        transaction = self._client.transaction()
        for op in ops:
            path = self._root + op.path
            match op:
                case Create():
                    transaction.create(path, op.value, ephemeral=op.ephemeral)
                case Put():
                    transaction.set_data(path, op.value, op.version)
                case Delete():
                    transaction.delete(path, op.version)
                case Check():
                    transaction.check(path, op.version)
        return transaction.commit_async()

    def renew(
        self, *, write: str, head: str, registration: str, renewed: Callable[[int, int], None]
    ) -> None:
        """Write, then read behind it; `renewed(head version, owner of the registration)`.

        Called in a thread of kazoo, and only if all of it was answered. -1 and 0 if there is none.
        A server that leaves too many renewals unanswered is left for another one.
        """
        if self._unanswered >= unanswered_max(self.timeout_s):
            self._unanswered = 0
            self._connection.gives_up = True
        self._unanswered += 1
        results = [self.write(write), self.exists(head), self.exists(registration)]

        def done(last: IAsyncResult) -> None:
            if isinstance(results[0].exception, NoNodeError):
                self.make_node(write)  # somebody has removed it; the next renewal finds it
            if self.is_over or not all(one.successful() for one in (*results, last)):
                return
            self._unanswered = 0
            found: list[ZnodeStat | None] = [results[1].value, results[2].value]
            renewed(
                -1 if found[0] is None else found[0].version,
                0 if found[1] is None else found[1].ephemeralOwner,
            )

        results[-1].rawlink(done)

    def answer(self, result: IAsyncResult) -> asyncio.Future[Any]:
        """The result on the event loop that runs now."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def settle(done: IAsyncResult) -> None:
            if future.done():
                return
            if done.successful():
                future.set_result(done.value)
            else:
                future.set_exception(done.exception)

        def cross(done: IAsyncResult) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(settle, done)

        result.rawlink(cross)
        return future
