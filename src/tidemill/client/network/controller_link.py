"""A broker's requests to whoever is the controller, over one connection at a time.

The outcome is one of three, as with the store: an answer; KafkaError NOT_CONTROLLER, nothing was
sent; ClientError, it may have been done or not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, final

from tidemill.client.network.broker_link import BrokerLink
from tidemill.core.config.endpoint import Endpoint
from tidemill.core.errors import ErrorCode
from tidemill.core.net import Net
from tidemill.wire.message import Message

__all__ = ["ControllerLink"]

R = TypeVar("R", bound=Message)


@final
class ControllerLink:
    """Connects when it is first used, and again when the controller is another one."""

    def __init__(self, net: Net, find: Callable[[], Endpoint | None], *, client_id: str) -> None:
        """`find` says where the controller is; None while there is none."""
        self._link = BrokerLink(
            net, find, client_id=client_id, name="the controller", refusal=ErrorCode.NOT_CONTROLLER
        )

    async def request(
        self, message: Message, response_type: type[R], *, version: int, timeout_s: float
    ) -> R:
        """The controller's answer; the module's head has the three outcomes."""
        return await self._link.request(
            message, response_type, version=version, timeout_s=timeout_s
        )

    def close(self) -> None:
        """Drop the connection, also one that is being made; whoever asks is refused from now on."""
        self._link.close()
