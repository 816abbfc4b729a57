"""Sessions with a real ZooKeeper: connections that break, leases by the clock, rights."""

from __future__ import annotations

import asyncio
import math
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Iterator

import pytest

from tests.support.relay import Relay
from tests.support.zookeeper import SESSION_S, new_coord
from tidemill.core.clock import SystemClock
from tidemill.core.config.zookeeper_config import ZookeeperConfig
from tidemill.core.errors import StoreUnavailable, UserError
from tidemill.metadata.store.coord import Create, Delete, Node, Put, SessionState
from tidemill.metadata.store.zookeeper_store import LeasePaths, ZookeeperCoord
from tidemill.testing.zookeeper_process import (
    TICK_MS,
    ZookeeperEnsemble,
    ZookeeperProcess,
    free_ports,
)

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

CLOCK = SystemClock()


@pytest.fixture
def relay(zookeeper: ZookeeperProcess) -> Iterator[Relay]:
    made = Relay(zookeeper.address)
    yield made
    made.close()


@pytest.fixture
def play(run, zookeeper, relay, chroot) -> Callable[..., None]:
    """Run a scenario with a session through the relay and one directly."""

    async def whole(scenario: Callable[[ZookeeperCoord, ZookeeperCoord], Awaitable[None]]) -> None:
        relayed = new_coord(f"{relay.address}{chroot}")
        direct = new_coord(f"{zookeeper.address}{chroot}", broker_id=1)
        await relayed.start()
        await direct.start()
        try:
            await scenario(relayed, direct)
        finally:
            relay.mend()
            await relayed.close()
            await direct.close()

    return lambda scenario: run(whole(scenario))


class States:
    """The states of a session from now on."""

    def __init__(self, coord: ZookeeperCoord) -> None:
        self.seen: list[SessionState] = []
        self._changed = asyncio.Event()
        coord.on_state(self._add)

    def _add(self, state: SessionState) -> None:
        self.seen.append(state)
        self._changed.set()

    async def until(self, *states: SessionState) -> None:
        """Wait for one of them."""
        while not set(states) & set(self.seen):
            await self._changed.wait()
            self._changed.clear()
        self.seen.clear()


async def is_renewed(coord: ZookeeperCoord, until: float) -> None:
    """Wait until the lease lasts longer than `until`."""
    while coord.lease_until <= until:
        await coord.get("/nothing")


def test_a_multi_whose_answer_is_lost_is_unknown_and_may_be_done(play, relay):
    async def scenario(relayed: ZookeeperCoord, direct: ZookeeperCoord) -> None:
        heard = asyncio.Event()
        direct.watch("/a", lambda _: heard.set())
        relay.mute()
        sent = asyncio.ensure_future(relayed.multi([Create("/a", b"1")]))
        while await direct.get("/a") is None:
            await heard.wait()
            heard.clear()
        relay.cut()
        with pytest.raises(StoreUnavailable):
            await sent
        assert await direct.get("/a") == Node(b"1", 0)

    play(scenario)


def test_a_request_without_a_connection_is_refused(play, relay):
    async def scenario(relayed: ZookeeperCoord, direct: ZookeeperCoord) -> None:
        states = States(relayed)
        relay.cut()
        await states.until(SessionState.SUSPENDED)
        with pytest.raises(StoreUnavailable):
            await relayed.multi([Create("/a", b"1")])
        with pytest.raises(StoreUnavailable):
            await relayed.get("/a")
        assert await direct.get("/a", newest=True) is None

    play(scenario)


def test_a_session_that_returns_in_time_keeps_its_nodes_and_all_its_watches_are_called(play, relay):
    async def scenario(relayed: ZookeeperCoord, direct: ZookeeperCoord) -> None:
        await relayed.multi([Create("/e", b"", ephemeral=True), Create("/t/a", b"")])
        states, calls = States(relayed), []
        relayed.watch("/t", calls.append)
        relayed.watch("/other", calls.append)
        while len(calls) < 2:  # a new watch is called once
            await relayed.get("/e")
        relay.cut()
        await states.until(SessionState.SUSPENDED)
        calls.clear()
        await direct.multi([Put("/t/a", b"1", 0)])
        relay.mend()
        await states.until(SessionState.CONNECTED)
        assert set(calls) == {"/t", "/other"}
        calls.clear()
        await direct.multi([Put("/t/a", b"2", 1)])  # and they are set again
        while not calls:
            await relayed.get("/e")
        assert await relayed.get("/e") is not None
        assert states.seen == []

    play(scenario)


def test_a_session_that_returns_too_late_is_lost_and_can_be_begun_again(play, relay):
    async def scenario(relayed: ZookeeperCoord, direct: ZookeeperCoord) -> None:
        await relayed.multi([Create("/e", b"", ephemeral=True)])
        gone, states = asyncio.Event(), States(relayed)
        relay.cut()
        direct.watch("/e", lambda _: gone.set())
        while await direct.get("/e") is not None:
            await gone.wait()
            gone.clear()
        assert relayed.lease_until < CLOCK.boottime()
        assert SessionState.LOST not in states.seen
        relay.mend()
        await states.until(SessionState.LOST)
        assert relayed.lease_until == -math.inf
        await relayed.start()
        assert await relayed.get("/e") is None
        assert relayed.lease_until > CLOCK.boottime()

    play(scenario)


def test_a_lease_ends_two_thirds_of_a_session_after_the_last_renewal_was_sent(play, relay):
    async def scenario(relayed: ZookeeperCoord, direct: ZookeeperCoord) -> None:
        first = relayed.lease_until
        assert first - CLOCK.boottime() < SESSION_S * 2 / 3
        await is_renewed(relayed, first)
        relay.mute()
        last = CLOCK.boottime() + SESSION_S * 2 / 3
        relay.cut()
        assert relayed.lease_until <= last

    play(scenario)


def test_the_session_timeout_that_the_server_chooses_is_the_one_that_counts(run, zookeeper, chroot):
    async def scenario() -> None:
        coord = new_coord(f"{zookeeper.address}{chroot}", session_s=60)
        sent_at = CLOCK.boottime()
        await coord.start()
        assert coord.lease_until - sent_at < 20 * TICK_MS / 1000
        await coord.close()

    run(scenario())


def test_a_renewal_counts_once_the_image_has_caught_up_with_the_head_behind_it(play):
    async def scenario(relayed: ZookeeperCoord, direct: ZookeeperCoord) -> None:
        await relayed.multi([Create("/head", b"")])
        await direct.multi([Put("/head", b"1", 0)])
        relayed.caught_up(0)
        direct.caught_up(1)
        behind = relayed.lease_until
        await is_renewed(direct, direct.lease_until)
        await is_renewed(direct, direct.lease_until)
        assert relayed.lease_until == behind
        relayed.caught_up(1)
        assert relayed.lease_until > behind

    play(scenario)


def test_a_registration_that_another_session_made_again_ends_this_one(play):
    async def scenario(relayed: ZookeeperCoord, direct: ZookeeperCoord) -> None:
        states = States(relayed)
        await relayed.multi([Create("/brokers/0", b"", ephemeral=True)])
        await direct.multi([Delete("/brokers/0", 0), Create("/brokers/0", b"", ephemeral=True)])
        await states.until(SessionState.LOST)
        assert await direct.get("/brokers/0", newest=True) == Node(b"", 0)

    play(scenario)


def test_a_registration_of_an_earlier_life_does_not_end_the_session(play):
    async def scenario(relayed: ZookeeperCoord, direct: ZookeeperCoord) -> None:
        await direct.multi([Create("/brokers/0", b"", ephemeral=True)])
        await is_renewed(relayed, relayed.lease_until)
        await relayed.multi([Delete("/brokers/0", 0), Create("/brokers/0", b"", ephemeral=True)])
        await is_renewed(relayed, relayed.lease_until)
        assert relayed.state is SessionState.CONNECTED

    play(scenario)


def test_what_is_stored_with_credentials_is_closed_to_others(run, zookeeper, chroot, tmp_path):
    def coord(line: str) -> ZookeeperCoord:
        auth = tmp_path / "auth"
        auth.write_text(line)
        connect = f"{zookeeper.address}{chroot}"
        config = ZookeeperConfig(connect=connect, auth_file=str(auth) if line else "")
        return ZookeeperCoord(config, CLOCK, LeasePaths("/renew/0", "/head", "/brokers/0"))

    async def scenario() -> None:
        first = coord("digest broker:secret\n")
        await first.start()
        await first.multi([Create("/a", b"1")])
        for line in ("", "digest broker:wrong"):
            with pytest.raises(UserError, match=r"tidemill.zookeeper.auth.file"):
                await coord(line).start()
        again = coord("digest broker:secret")
        await again.start()
        assert await again.get("/a") == Node(b"1", 0)
        await again.close()
        await first.close()

    run(scenario())


@pytest.fixture
def tls_server(zookeeper, tmp_path) -> Iterator[tuple[str, str]]:
    """The encrypted address of a server of its own, and the file with its certificate."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl, for a certificate")
    key, certificate, both = (tmp_path / name for name in ("key.pem", "cert.pem", "both.pem"))
    name = ("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1")
    files = ("-keyout", str(key), "-out", str(certificate))
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *files, *name],
        check=True,
        capture_output=True,
    )
    both.write_text(key.read_text() + certificate.read_text())
    (port,) = free_ports(1)
    server = ZookeeperProcess(
        tmp_path / "zookeeper",
        settings=[
            f"secureClientPort={port}",
            "secureClientPortAddress=127.0.0.1",
            "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
            f"ssl.keyStore.location={both}",
            f"ssl.trustStore.location={certificate}",
            "ssl.clientAuth=none",
        ],
    )
    yield server.start() and f"127.0.0.1:{port}", str(certificate)
    server.stop()


@pytest.mark.filterwarnings(  # kazoo leaves the socket of a failed handshake to the collector
    "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_a_connection_is_encrypted_and_only_to_a_server_that_is_trusted(run, tls_server):
    address, certificate = tls_server

    def coord(ca_file: str) -> ZookeeperCoord:
        config = ZookeeperConfig(connect=address, tls_enable=True, tls_ca_file=ca_file)
        return ZookeeperCoord(config, CLOCK, LeasePaths("/renew/0", "/head", "/brokers/0"))

    async def scenario() -> None:
        trusting = coord(certificate)
        await trusting.start()
        await trusting.multi([Create("/a", b"1")])
        assert await trusting.get("/a") == Node(b"1", 0)
        await trusting.close()
        with pytest.raises(StoreUnavailable, match="a certificate that we trust"):
            await coord("").start()

    run(scenario())


def test_a_session_outlives_the_server_that_it_is_connected_to(run, zookeeper, tmp_path):
    async def scenario() -> None:
        ensemble = ZookeeperEnsemble(tmp_path)
        await asyncio.to_thread(ensemble.start)
        coord = new_coord(ensemble.address, session_s=5)
        try:
            await coord.start()
            await coord.multi([Create("/e", b"1", ephemeral=True)])
            for server in ensemble.servers:
                server.kill()
                await _answers(coord)
                assert await coord.get("/e", newest=True) == Node(b"1", 0)
                await asyncio.to_thread(server.start)
            await coord.close()
        finally:
            ensemble.stop()

    run(scenario())


def test_a_server_that_stands_still_is_left_for_another_one(run, tmp_path):
    async def scenario() -> None:
        ensemble = ZookeeperEnsemble(tmp_path)
        await asyncio.to_thread(ensemble.start)
        coord = new_coord(ensemble.address, session_s=5)
        states = States(coord)
        try:
            await coord.start()
            assert coord._session is not None
            port = coord._session._connection._socket.getpeername()[1]
            (server,) = (one for one in ensemble.servers if one.address.endswith(f":{port}"))
            server.pause()
            await states.until(SessionState.SUSPENDED)
            # Another server answers. It has ended the session if it first had to be elected.
            await states.until(SessionState.CONNECTED, SessionState.LOST)
            server.resume()
            await coord.close()
        finally:
            ensemble.stop()

    run(scenario())


async def _answers(coord: ZookeeperCoord) -> None:
    """Wait until a newest read is answered: the session has found another server, if it had to."""
    changed = asyncio.Event()
    coord.on_state(lambda _: changed.set())
    while True:
        try:
            await coord.get("/e", newest=True)
        except StoreUnavailable:
            assert coord.state is not SessionState.LOST
            await changed.wait()
            changed.clear()
        else:
            return


def test_a_registration_that_its_own_session_removes_does_not_end_the_session(play):
    async def scenario(_relayed: ZookeeperCoord, direct: ZookeeperCoord) -> None:
        await direct.multi([Create("/brokers/1", b"", ephemeral=True)])
        states = States(direct)
        await is_renewed(direct, direct.lease_until)
        await direct.multi([Delete("/brokers/1", 0)])
        for _ in range(3):  # renewals that find no registration
            await is_renewed(direct, direct.lease_until)
        assert states.seen == []
        await direct.multi([Create("/brokers/1", b"", ephemeral=True)])
        await is_renewed(direct, direct.lease_until)
        assert states.seen == []

    play(scenario)


def test_a_lease_goes_on_after_somebody_has_removed_the_node_that_it_is_renewed_by(play):
    async def scenario(relayed: ZookeeperCoord, direct: ZookeeperCoord) -> None:
        node = await relayed.get("/renew/1")
        assert node is not None
        await relayed.multi([Delete("/renew/1", node.version)])
        await is_renewed(direct, CLOCK.boottime() + SESSION_S)

    play(scenario)


def test_what_is_newest_is_read_after_somebody_has_removed_the_node_that_leases_are_renewed_by(
    play,
):
    async def scenario(relayed: ZookeeperCoord, direct: ZookeeperCoord) -> None:
        await relayed.multi([Create("/a", b"1")])
        node = await relayed.get("/renew/1")
        assert node is not None
        await relayed.multi([Delete("/renew/1", node.version)])
        assert await direct.get("/a", newest=True) == Node(b"1", 0)

    play(scenario)
