"""Damaged requests, by the thousand, through header and body decoding.

    PYTHONPATH=src python -m tests.wire.mutate --count 1000000 --seed 7

Every frame starts as a good request of some API and version and is then damaged a little: that
reaches much deeper than noise. For any input the decoder returns a message or raises
`ProtocolViolation`, and uses memory in proportion to the input.
"""

from __future__ import annotations

import argparse
import random
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.wire.messages import Case, sample
from tidemill.core.errors import ProtocolViolation
from tidemill.wire.api_keys import API_SPECS, load
from tidemill.wire.headers import encode_request, parse_request_header
from tidemill.wire.primitives import Reader

MEMORY_FACTOR = 16
MEMORY_BASE_BYTES = 64 * 1024

Mutation = Callable[[bytearray, random.Random], None]

_LENGTHS = (
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff\xff",
    b"\x80\x80\x00",
    b"\x00\x01\x86\xa0",
    b"\xff\xff",
    b"\x7f\xff",
    b"\x00",
)


def _flip_bit(frame: bytearray, rng: random.Random) -> None:
    frame[rng.randrange(len(frame))] ^= 1 << rng.randrange(8)


def _set_byte(frame: bytearray, rng: random.Random) -> None:
    frame[rng.randrange(len(frame))] = rng.choice((0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)))


def _set_length(frame: bytearray, rng: random.Random) -> None:
    value = rng.choice(_LENGTHS)
    start = rng.randrange(len(frame))
    frame[start : start + len(value)] = value


def _insert(frame: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(frame))
    frame[start:start] = rng.randbytes(rng.randrange(1, 9))


def _delete(frame: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(frame))
    del frame[start : start + rng.randrange(1, 9)]


def _truncate(frame: bytearray, rng: random.Random) -> None:
    del frame[rng.randrange(len(frame)) :]


def _repeat(frame: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(frame))
    frame[start:start] = frame[start : start + rng.randrange(1, 40)] * rng.randrange(1, 4)


def _other_version(frame: bytearray, rng: random.Random) -> None:
    frame[2:4] = rng.randrange(14).to_bytes(2, "big")


MUTATIONS: tuple[Mutation, ...] = (
    _flip_bit,
    _set_byte,
    _set_length,
    _insert,
    _delete,
    _truncate,
    _repeat,
    _other_version,
)


def good_requests(rng: random.Random) -> list[bytes]:
    """One full request of every API in every version, header included, length not."""
    return [
        b"".join(
            encode_request(
                sample(Case(f"{spec.name}Request", version), rng),
                spec=spec,
                version=version,
                correlation_id=1,
                client_id="fuzz",
            )
        )[4:]
        for spec in API_SPECS.values()
        for version in range(spec.version_min, spec.version_max + 1)
    ]


def mutated_requests(count: int, seed: int) -> Iterator[bytes]:
    rng = random.Random(seed)
    good = good_requests(rng)
    for _ in range(count):
        frame = bytearray(rng.choice(good))
        for _ in range(rng.choice((1, 1, 2, 4))):
            if frame:
                rng.choice(MUTATIONS)(frame, rng)
        yield bytes(frame)


def is_accepted(frame: bytes) -> bool:
    """Decode like the server; any exception but a violation is a bug and is not caught."""
    try:
        header = parse_request_header(frame)
        r = Reader(frame, pos=header.body_offset)
        load(header.api_key)[0].read(r, header.api_version)
        r.finish()
    except ProtocolViolation:
        return False
    return True


def decoding_bytes(frame: bytes) -> int:
    """Decoding's peak memory; `tracemalloc` must be on."""
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    is_accepted(frame)
    _, peak = tracemalloc.get_traced_memory()
    return peak - before


def is_within_memory(frame: bytes, spent_bytes: int) -> bool:
    return spent_bytes <= MEMORY_FACTOR * len(frame) + MEMORY_BASE_BYTES


@dataclass
class Tally:
    accepted: int = 0
    refused: int = 0
    worst_bytes: int = 0


def run(count: int, seed: int, *, measure_every: int) -> Tally:
    """Decode `count` damaged frames; measure the memory of every `measure_every`th."""
    tally = Tally()
    for index, frame in enumerate(mutated_requests(count, seed)):
        if index % measure_every == 0:
            spent = _measured(frame)
            tally.worst_bytes = max(tally.worst_bytes, spent)
            assert is_within_memory(frame, spent), f"frame {index} of seed {seed}: {frame.hex()}"
        if is_accepted(frame):
            tally.accepted += 1
        else:
            tally.refused += 1
    return tally


def _measured(frame: bytes) -> int:
    is_accepted(frame)  # the frame is not charged for imports and caches
    tracemalloc.start()
    try:
        return decoding_bytes(frame)
    finally:
        tracemalloc.stop()


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.wire.mutate")
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--measure-every", type=int, default=100)
    options = parser.parse_args()
    tally = run(options.count, options.seed, measure_every=options.measure_every)
    sys.stdout.write(f"{tally}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
