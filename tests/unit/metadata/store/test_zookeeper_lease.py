"""How long a lease lasts where the servers of ZooKeeper have chosen a long session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidemill.core.config.zookeeper_config import ZookeeperConfig
from tidemill.core.limits import FORMER_LEADER_KEPT_S
from tidemill.metadata.store.lease_renewal import LeaseRenewal
from tidemill.metadata.store.zookeeper_store import LeasePaths, ZookeeperCoord
from tidemill.testing.manual_clock import ManualClock

PATHS = LeasePaths("/renew/0", "/head", "/brokers/0")


class LongSession:
    """A session of eighteen seconds that answers everything at once; there is no head yet."""

    timeout_s = 18.0
    is_over = False
    is_connected = True
    session_id = 1

    def write(self, path: str) -> None:
        return None

    def exists(self, path: str) -> None:
        return None

    def answer(self, result: None) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.set_result(None)
        return future

    def renew(
        self, *, write: str, head: str, registration: str, renewed: Callable[[int, int], None]
    ) -> None:
        renewed(-1, self.session_id)


def test_a_former_leader_has_no_lease_any_more_when_it_is_forgotten(run):
    async def scenario() -> None:
        clock, session = ManualClock(), LongSession()
        coord = ZookeeperCoord(ZookeeperConfig(connect="zk"), clock, PATHS)
        coord._session = session  # type: ignore[assignment]
        await coord._first_renewal(session)  # type: ignore[arg-type]
        assert 0 < coord._lease.until - clock.boottime() <= FORMER_LEADER_KEPT_S
        clock.advance(10.0)
        coord._renew(session)  # type: ignore[arg-type]
        assert 0 < coord._lease.until - clock.boottime() <= FORMER_LEADER_KEPT_S

    run(scenario())


def test_a_lease_that_is_shorter_than_the_session_is_renewed_in_time():
    renewal = LeaseRenewal(
        ManualClock(),
        LongSession.timeout_s,
        renew=lambda: None,
        lease_until=lambda: 0.0,
        hung=lambda: None,
    )
    assert renewal.turn_interval_s < FORMER_LEADER_KEPT_S / 4
