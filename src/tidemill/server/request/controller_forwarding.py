"""Sends the broker's own requests to the controller, where only the controller can serve them."""

from __future__ import annotations

from typing import TypeVar

from tidemill.client.network.broker_connection import BrokerConnection
from tidemill.client.network.errors import ClientError
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.net import Net
from tidemill.metadata.image.metadata_image import MetadataImage
from tidemill.wire.message import Message

__all__ = ["ask_controller"]

R = TypeVar("R", bound=Message)

TIMEOUT_S = 5.0


async def ask_controller(
    net: Net, image: MetadataImage, request: Message, response_type: type[R]
) -> R:
    """The controller's answer; KafkaError NOT_CONTROLLER if there is none or it does not answer."""
    controller = image.brokers.get(image.controller_broker_id)
    if controller is None:
        raise KafkaError(ErrorCode.NOT_CONTROLLER, "there is no controller at present")
    try:
        connection = await BrokerConnection.open(
            net, controller.host, controller.port, timeout_s=TIMEOUT_S
        )
        try:
            return await connection.request(request, response_type, timeout_s=TIMEOUT_S)
        finally:
            connection.close()
    except ClientError as error:
        raise KafkaError(ErrorCode.NOT_CONTROLLER, str(error)) from error
