"""A handler serves one API: its versions, and what to do with a request.

`handle` starts a request. It never suspends, and the requests of a connection are started strictly
in the order in which they came. It returns one of
- the response, which leaves at once;
- a `Deferred` response (Produce waits for its acknowledgement, Fetch for more bytes): later
  requests of the connection start meanwhile, but answers leave in order;
- a coroutine, for requests that talk to the coordination store or work in slices: the connection's
  next request starts after it has ended;
- `Unfinished` (Produce that costs more than a slice): what is left runs in slices that all
  connections share, and the connection's next request starts after the last one;
- None: no answer at all (Produce with acks=0).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, final

from tidemill.core.errors import KafkaError
from tidemill.core.loop.deferred import Deferred
from tidemill.server.request.context import RequestContext
from tidemill.server.request.services import Services
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.message import Message

__all__ = [
    "Answer",
    "FastCodec",
    "Handle",
    "Handler",
    "Progress",
    "SlicedWork",
    "Unfinished",
    "refuse_with_error_code",
]


class Progress(Enum):
    """How a slice of a request ended."""

    DONE = "done"
    """All work is done: `answer` has the answer."""
    MORE = "more"
    """The slice is used up; the next one goes on."""
    AWAY = "away"
    """The next step runs in a thread: `run_away`, then the next slice."""


class SlicedWork(Protocol):
    """A request that can be done slice by slice."""

    def keep(self, keep: Callable[[memoryview], memoryview]) -> None:
        """Replace each view of the request that is still needed by `keep(view)`.

        A view of the reading area is valid only until `handle` returns.
        """
        ...

    def run_slice(self) -> Progress:
        """Do as much as one slice may cost."""
        ...

    async def run_away(self) -> None:
        """Take, after AWAY, the step that would take too long on the event loop."""
        ...

    def answer(self) -> Message | Deferred[Any] | None:
        """The answer, after DONE; as `handle` would have returned it."""
        ...


@final
class Unfinished:
    """What `handle` returns for a request that is not done after its first slice."""

    __slots__ = ("work",)

    def __init__(self, work: SlicedWork) -> None:
        self.work = work


Answer = Message | Deferred[Any] | Unfinished | Coroutine[Any, Any, Message] | None


class Handle(Protocol):
    """Starts a request of one API."""

    def __call__(self, context: RequestContext[Services], request: Any, /) -> Answer: ...  # noqa: ANN401


def refuse_with_error_code(response: type[Message]) -> Callable[[Any, KafkaError], Message]:
    """For the many responses that have an error code, and perhaps a message, at the top."""

    def refuse(_request: object, error: KafkaError) -> Message:
        answer: Any = response()
        answer.error_code = int(error.code)
        if "error_message" in response.__slots__:
            answer.error_message = error.detail or None
        return answer  # type: ignore[no-any-return]  # it is an instance of `response`

    return refuse


@final
@dataclass(frozen=True, slots=True)
class FastCodec:
    """A hand-written codec for the most common shape of an API; None: use the generated one."""

    try_read: Callable[[memoryview, int, int], Any]
    try_encode: Callable[[Any, int, int], bytes | None]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """One API as this broker serves it; `handlers/__init__.py` lists all of them."""

    api_key: ApiKey
    versions: tuple[int, int]
    """The first and the last version that it understands."""
    handle: Handle
    refuse: Callable[[Any, KafkaError], Message]
    """The answer when the whole request is refused."""
    advertised_min: int | None = None
    """The first version in the ApiVersions answer, if that must be another one (T3)."""
    fast: FastCodec | None = None
    by_controller: bool = False
    """Only the controller serves it; another broker passes the request on."""
    is_internal: bool = False
    """For other brokers: it is not in the ApiVersions answer."""
    tail_bytes_max: int = 0
    """Bytes after the last field that are ignored, because a stock client leaves them there."""
