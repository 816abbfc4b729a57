"""Hard bounds, in one place. A limit that a user may tune is a configuration key, not here.

Every queue, cache and loop in Tidemill names its bound; where the bound is fixed, this is it.
"""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB

# --- wire: what one request may cost before anything is known about it ---------------------------
REQUEST_OBJECTS_MAX = 100_000
"""Objects (structs, strings, array elements) that decoding one request may create (S4)."""
TAGGED_FIELDS_MAX = 64
"""Tagged fields in one tag section (S5)."""
STRING_BYTES_MAX = 32 * KIB - 1
"""The classic string's int16 length; compact strings are held to the same (S8)."""

# --- connections ---------------------------------------------------------------------------------
REQUESTS_IN_FLIGHT_MAX = 64
"""Requests of one connection that are being worked on (S10)."""
REQUEST_BYTES_IN_FLIGHT_MAX = 8 * MIB
"""Response and request bytes of one connection in flight before reading pauses (S10)."""
FRAME_DEADLINE_S = 30.0
"""From a frame's first byte to its last (S9)."""
WRITE_STALL_DEADLINE_S = 60.0
"""How long a peer may refuse to read what it asked for (S9)."""
WRITE_STALL_PRESSED_DEADLINE_S = 10.0
"""The same, while answers that nobody takes use up the memory for others' (S40)."""
WRITE_PROGRESS_BYTES_MIN = MIB
"""A peer that takes so much within that time is slow, not stalled (S9)."""
TURN_S = 0.02
"""What requests beyond the first of a read may take of one turn of the loop, together (S10)."""
SLOW_REQUESTS_MAX = 32
"""Requests in several steps that run at the same time: each may hold a long answer (S11)."""
PARKED_PARTITIONS_MAX = 200_000
"""Partitions watched by parked fetches, together (S40): about 130 MB."""
LOOKED_AT_PARTITIONS_PER_TURN = 256
"""Partitions of poked fetches that are read in one turn of the loop: about 10 ms."""
DRAIN_DEADLINE_S = 8.0
"""SIGTERM to the last answer; the whole shutdown stays within ten seconds."""

# --- records -------------------------------------------------------------------------------------
DECOMPRESSED_BATCH_BYTES_MAX = 32 * MIB
"""A batch's records after decompression, on every path (S18)."""
ZSTD_WINDOW_BYTES_MAX = 8 * MIB
"""Largest zstd window that is accepted (S20)."""
DECOMPRESSION_SLICE_BYTES = MIB
"""Output asked of a codec in one call: what a bomb costs before it is seen (S18)."""
GZIP_MEMBERS_MAX = 64
"""Members of one gzip stream: each costs a copy of what follows it (T62)."""
SNAPPY_BLOCKS_MAX = 32 * KIB
"""Blocks of one xerial stream; writers make one per 32 KiB, at the least one per 1 KiB (T62)."""
ZSTD_FRAMES_MAX = 64
"""Frames of one zstd stream; writers make one."""
ZSTD_BLOCKS_MAX = 32 * KIB
"""Blocks of one zstd stream; writers fill 128 KiB each unless they flush."""
RECORD_ERRORS_MAX = 100
"""Refused records that one answer names (T25)."""
IDEMPOTENCE_WINDOW_BATCHES = 5
"""Batches remembered per producer and partition (T29)."""

# --- one log -------------------------------------------------------------------------------------
PRODUCER_IDS_PER_LOG_MAX = 10_000
"""Producers that a log remembers, the longest silent one forgotten first (S38): about 6 MB."""
OPEN_FILES_MAX = 2_048
"""Files that storage keeps open; a map holds one more descriptor each, so 4,096 in all.

Dirty files come on top until they are flushed.
"""
SEGMENT_INDEXES_MAX = 64
"""Closed segments with their index in memory: 1 MB each for 1 GiB of 16 KiB batches."""
TAIL_BATCHES_MAX = 64
"""Newest batches of a log whose positions are known without a look at the file: about 6 KB."""
REMAP_GROWTH_BYTES = 4 * MIB
"""A growing file is mapped anew after this much growth."""
WARM_TAIL_BYTES = 8 * MIB
"""The end of a log that was just written counts as resident: it is read without asking."""
COMPACTED_SEGMENTS_MAX = 64
"""Segments that compaction merges into one at a time: each is held open meanwhile."""
DISK_THREADS_MAX = 4
"""Threads for syncs, cold reads and scans."""

# --- data directories ----------------------------------------------------------------------------
UNFLUSHED_TAIL_BYTES_MAX = 64 * MIB
"""Bytes of one log that are not on disk before it is flushed unasked: what recovery scans (R11)."""
SCRUB_EVENTS_MAX = 100
"""Damages that a scrub remembers one by one; it counts all."""

# --- cluster metadata ----------------------------------------------------------------------------
PARTITIONS_PER_REQUEST_MAX = 10_000
"""New partitions that one request may ask for (S39)."""
COORD_OPS_PER_MULTI_MAX = 500
"""Changes in one multi: what a ZooKeeper packet holds with room to spare."""
CHANGED_PATHS_MAX = 1_000
"""Changed nodes looked at one by one; beyond it everything is read anew."""

# --- classic consumer groups ---------------------------------------------------------------------
CLASSIC_PROTOCOLS_MAX = 32
"""Assignment protocols that one member may offer (S41); clients offer one to three."""
SUBSCRIPTION_BYTES_MAX = 256 * KIB
"""A member's subscriptions, for all its protocols together (S41)."""
GROUP_RECORD_BYTES_MAX = 1_000_000
"""A classic group's record, with all members and the plan (S41): fits a topic's default limit."""
PENDING_MEMBER_IDS_MAX = 1_000
"""Member ids that a group gave out and that nobody came back with yet, oldest dropped (S38)."""
NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000
"""How long a new member may wait for its first answer: its client may be long gone."""
APPEND_RETRY_MS = 1_000
"""When to try again to write what a passed deadline asks for, should the append fail."""

# --- `__consumer_offsets` ------------------------------------------------------------------------
OFFSETS_BATCH_BYTES_MAX = 8 * MIB
"""The topic's `max.message.bytes`: a consumer group's records for a thousand members fit."""

# --- consumer protocol ---------------------------------------------------------------------------
QUICK_HEARTBEAT_MS = 500
"""How often members show up while a group changes, at the most."""
QUICK_HEARTBEAT_MS_PER_MEMBER = 1
"""So that a large group's quick heartbeats stay below a thousand a second."""
CONSUMER_SUBSCRIPTION_CHARS_MAX = 256 * KIB
"""Topic names in one member's subscription, together (S41): its record fits into any batch."""
CONSUMER_NAME_CHARS_MAX = 1 * KIB
"""A member's id, its instance id and its rack, each (S41)."""

# --- logging -------------------------------------------------------------------------------------
LOGGED_TEXT_CHARS_MAX = 256
"""A peer's text in a log line is cut here (S52)."""

assert REMAP_GROWTH_BYTES < WARM_TAIL_BYTES
assert LOGGED_TEXT_CHARS_MAX < STRING_BYTES_MAX
assert REQUEST_BYTES_IN_FLIGHT_MAX < DECOMPRESSED_BATCH_BYTES_MAX
assert SUBSCRIPTION_BYTES_MAX < GROUP_RECORD_BYTES_MAX < MIB < OFFSETS_BATCH_BYTES_MAX
