"""The smallest coordinator: named registers, and requests that wait until one is set."""

from __future__ import annotations

from tidemill.coordinators.runtime.shard import CoordinatorRecord, Result
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.loop.deferred import Deferred

REFUSED = "refused:"


def refuse(code):
    return f"{REFUSED}{code.name}"


class ToyShard:
    """Hard state: `values`. Soft state: `waiting` and `deadline_ms`."""

    def __init__(self, image):
        self.image = image
        self.values = {}
        self.waiting = []
        self.deadline_ms = None
        self.is_loaded = False
        self.deltas = []
        self.pending = {}
        self.markers = []

    # --- operations ------------------------------------------------------------------------------

    def put(self, name, value):
        if value == "bad":
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        record = CoordinatorRecord(name.encode(), value.encode())
        return Result(f"put {name}", [record], self._wake(value))

    def wait(self):
        parked = Deferred(refuse)
        self.waiting.append(parked)
        return Result(parked)

    def wake(self, value):
        return Result("woke", replies=self._wake(value))

    def put_and_wait(self, name, value):
        parked = Deferred(refuse)
        self.waiting.append(parked)
        return Result(parked, [CoordinatorRecord(name.encode(), value.encode())])

    def _wake(self, value):
        waiting, self.waiting = self.waiting, []
        return [(parked, f"heard {value}") for parked in waiting]

    # --- the Shard Protocol ----------------------------------------------------------------------

    def replay(self, key, value):
        if key == b"poison":
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE)
        if value is None:
            del self.values[key.decode()]
        else:
            self.values[key.decode()] = value.decode()

    def replay_pending(self, key, value, producer):
        self.pending.setdefault(producer, []).append((key, value))

    def replay_marker(self, producer, *, is_commit):
        self.markers.append((producer, is_commit))
        for key, value in self.pending.pop(producer, []):
            if is_commit:
                self.replay(key, value)

    def loaded(self, now):
        self.is_loaded = True

    def next_deadline_ms(self):
        return self.deadline_ms

    def expire(self, now):
        self.deadline_ms = None
        return Result(None, [CoordinatorRecord(b"expired", str(now.wall_ms).encode())])

    def metadata_changed(self, delta, now):
        self.deltas.append(delta)
        return Result(None)

    def resign(self):
        waiting, self.waiting = self.waiting, []
        return waiting
