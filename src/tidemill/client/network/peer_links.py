"""A broker's requests to other brokers, over one connection to each.

The outcome is one of three: an answer; KafkaError BROKER_NOT_AVAILABLE, nothing was sent;
ClientError, it may have been done or not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar, final

from tidemill.client.network.broker_link import BrokerLink
from tidemill.core.config.endpoint import Endpoint
from tidemill.core.errors import ErrorCode
from tidemill.core.net import Net
from tidemill.wire.message import Message

__all__ = ["PeerLinks"]

R = TypeVar("R", bound=Message)


@final
class PeerLinks:
    """Connects to a broker when it is first asked, and again when it is somewhere else."""

    def __init__(self, net: Net, find: Callable[[int], Endpoint | None], *, client_id: str) -> None:
        """`find` says where brokers reach a broker; None while it is not alive."""
        self._net = net
        self._find = find
        self._client_id = client_id
        self._links: dict[int, BrokerLink] = {}
        """By broker; bounded by the brokers that ever joined the cluster."""
        self._is_closed = False

    async def request(
        self,
        broker_id: int,
        message: Message,
        response_type: type[R],
        *,
        version: int,
        timeout_s: float,
    ) -> R:
        """The broker's answer; the module's head has the three outcomes."""
        return await self._link(broker_id).request(
            message, response_type, version=version, timeout_s=timeout_s
        )

    def _link(self, broker_id: int) -> BrokerLink:
        link = self._links.get(broker_id)
        if link is None:
            link = self._links[broker_id] = BrokerLink(
                self._net,
                partial(self._find, broker_id),
                client_id=self._client_id,
                name=f"broker {broker_id}",
                refusal=ErrorCode.BROKER_NOT_AVAILABLE,
            )
            if self._is_closed:
                link.close()
        return link

    def close(self) -> None:
        """Drop all connections; whoever asks is refused from now on."""
        self._is_closed = True
        for link in self._links.values():
            link.close()
