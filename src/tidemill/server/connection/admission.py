"""Which connections a listener admits: limits in total, per address and on the rate (S12, S13)."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from tidemill.core.clock import Clock
from tidemill.core.config.keys import INT32_MAX
from tidemill.core.config.live_config import LiveConfig
from tidemill.core.telemetry import Telemetry
from tidemill.server.connection.connection_log import ConnectionLog
from tidemill.server.limits.token_buckets import TokenBuckets

if TYPE_CHECKING:
    from tidemill.server.connection.connection import Connection

__all__ = ["Admission"]


@final
class Admission:
    """The admitted connections, in the order in which they came, and the limits for more."""

    def __init__(
        self,
        *,
        config: LiveConfig,
        clock: Clock,
        telemetry: Telemetry,
        connection_log: ConnectionLog,
        connections_max: int,
        is_internal: bool = False,
    ) -> None:
        """`is_internal`: for other brokers, to whom the limits that users set do not apply."""
        self.connections: dict[Connection, None] = {}
        self.is_open = True
        """False once the listener stops: every further connection is turned away, unlogged."""
        self.is_cut_off = False
        """True while this broker is of no use to clients (`cut_off.py`): the same."""
        self._clock = clock
        self._telemetry = telemetry
        self._connection_log = connection_log
        self._config = config
        self._connections_max = connections_max
        self._is_internal = is_internal
        self._count_by_address: dict[str, int] = {}
        self._rate = INT32_MAX
        self._connection_rate: TokenBuckets | None = None
        """How often each address may connect; None for no limit."""
        if not is_internal:
            self._follow_rate()
            config.subscribe(self._follow_rate)

    def admit(self, connection: Connection, address: str) -> bool:
        """Count the connection in, or refuse it."""
        if not self.is_open or self.is_cut_off:
            return False
        refusal = self._try_find_refusal(address)
        if refusal is not None:
            self._telemetry.connections_refused += 1
            self._connection_log.note_closed(address, refusal)
            return False
        self._telemetry.connections_accepted += 1
        self.connections[connection] = None
        self._count_by_address[address] = self._count_by_address.get(address, 0) + 1
        return True

    def _try_find_refusal(self, address: str) -> str | None:
        """Why the address may not open one more connection now; None if it may."""
        if self._is_internal:
            full = len(self.connections) >= self._connections_max
            return "too many connections of brokers" if full else None
        config = self._config.current
        if len(self.connections) >= min(self._connections_max, config.max_connections):
            return "too many connections"
        if self._count_by_address.get(address, 0) >= config.max_connections_per_ip:
            return "too many connections"
        rate = self._connection_rate
        if rate is not None and not rate.take(address, 1, self._clock.monotonic()):
            return "it connects too often"
        return None

    def forget(self, connection: Connection, address: str) -> None:
        """The connection is lost, or was never admitted."""
        if connection not in self.connections:
            return
        del self.connections[connection]
        left = self._count_by_address[address] - 1
        if left:
            self._count_by_address[address] = left
        else:
            del self._count_by_address[address]

    def _follow_rate(self) -> None:
        """A new rate begins with full buckets."""
        rate = self._config.current.max_connection_creation_rate_per_ip
        if rate != self._rate:
            self._rate = rate
            self._connection_rate = (
                None if rate == INT32_MAX else TokenBuckets(per_s=rate, burst=rate)
            )
