"""Hard bounds, in one place. Pure. A limit that a user may tune is a configuration key instead.

Every queue, cache and loop in Tidemill names its bound; the fixed ones are here.
"""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB

# --- wire: what decoding one request may cost ----------------------------------------------------
REQUEST_OBJECTS_MAX = 100_000
"""Objects (structs, strings, array elements) that decoding one request may create (S4)."""
TAGGED_FIELDS_MAX = 64
"""Tagged fields in one tag section (S5)."""
STRING_BYTES_MAX = 32 * KIB - 1
"""The classic string's int16 length; compact strings have the same limit (S8)."""

# --- connections ---------------------------------------------------------------------------------
REQUESTS_IN_FLIGHT_MAX = 64
"""Requests of one connection that are being processed (S10)."""
REQUEST_BYTES_IN_FLIGHT_MAX = 8 * MIB
"""Response and request bytes of one connection in flight before reading pauses (S10)."""
FRAME_DEADLINE_S = 30.0
"""From a frame's first byte to its last (S9)."""
WRITE_STALL_DEADLINE_S = 60.0
"""How long a peer may leave its answers unread (S9)."""
WRITE_STALL_PRESSED_DEADLINE_S = 10.0
"""The same, while unread answers use up the memory for all others (S40)."""
WRITE_PROGRESS_BYTES_MIN = MIB
"""A peer that reads this much within that time is slow, not stalled (S9)."""
TURN_S = 0.02
"""Time per turn of the loop for all requests beyond the first of each read, together (S10)."""
SLOW_REQUESTS_MAX = 32
"""Requests in several steps that run at the same time; each may hold a long answer (S11)."""
PARKED_PARTITIONS_MAX = 200_000
"""Partitions watched by parked fetches, together (S40): about 130 MB."""
FETCH_COPY_BYTES_MAX = 16 * MIB
"""Records that one fetch copies per turn of the loop; the last partition may exceed it: 5 ms."""
LOOKED_AT_PARTITIONS_PER_TURN = 256
"""Partitions of woken fetches that are read in one turn of the loop: about 10 ms."""
DRAIN_DEADLINE_S = 8.0
"""From SIGTERM to the last answer; the whole shutdown stays within ten seconds."""
UPSTREAM_CONNECTIONS_MAX = 4_096
"""From the ROUTE listener to the owners of what its clients ask for."""
ROUTED_BYTES_MAX = 64 * MIB
"""Requests of routed clients that are on their way to owners, except fetches."""
ROUTED_FETCH_BYTES_MAX = 128 * MIB
"""Fetches of routed clients that wait, and what came of them for clients that are not there yet."""
ROUTED_PARTITIONS_MAX = 10_000
"""In one request of a routed client: dividing them takes some tens of milliseconds."""
ROUTED_REFUSED_MAX = 20_000
"""Partitions of which a routed client's batch was refused and has not come again: about 20 MB."""
INTERNAL_CONNECTIONS_MAX = 256
"""Connections of other brokers; so many descriptors are kept for them if there are enough (S12)."""
INTERNAL_REQUEST_BYTES_MAX = 8 * MIB
"""For requests of brokers that arrive in parts, beside the memory for those of clients."""
INTERNAL_DRAIN_DEADLINE_S = 0.5
"""From the last answer to a client to the last one to a broker, which asks elsewhere next."""

# --- records -------------------------------------------------------------------------------------
DECOMPRESSED_BATCH_BYTES_MAX = 32 * MIB
"""The records of a batch after decompression, on every path (S18)."""
ZSTD_WINDOW_BYTES_MAX = 8 * MIB
"""Largest zstd window that is accepted (S20)."""
DECOMPRESSION_SLICE_BYTES = MIB
"""Output of one call of a codec: what a decompression bomb costs before it is noticed (S18)."""
GZIP_MEMBERS_MAX = 64
"""Members of one gzip stream; each costs a copy of the rest of the stream (T62)."""
SNAPPY_BLOCKS_MAX = 32 * KIB
"""Blocks of one xerial stream; writers make one per 32 KiB, in extreme cases per 1 KiB (T62)."""
ZSTD_FRAMES_MAX = 64
"""Frames of one zstd stream; writers make one."""
ZSTD_BLOCKS_MAX = 32 * KIB
"""Blocks of one zstd stream; writers fill 128 KiB each unless they flush."""
BATCH_RECORDS_MAX = 500_000
"""Records of one batch. Walking them holds the interpreter for about 20 ms, in a thread too."""
PRODUCE_WORK_PER_SLICE = 4 * MIB
"""What one Produce request may cost per turn of the loop, in uncompressed bytes: about 10 ms."""
PARTITION_WORK = 16 * KIB
"""What finding and appending to one partition costs in that unit; a slice has room for 256."""
RECORD_WORK = 16
"""What walking one record costs in that unit."""
LOOP_BATCH_BYTES_MAX = 4 * MIB
"""A batch that decompresses to more is checked in a thread: about 10 ms."""
LOOP_BATCH_BYTES_MIN = 64 * KIB
"""A batch that decompresses to no more than this is checked on the loop, however well it packs."""
LOOP_BATCH_RATIO_MAX = 256
"""A batch that grows by more is checked in a thread: a bomb of a kilobyte is no small request."""
LOOP_BLOCK_BYTES_MIN = KIB
"""A batch whose compressed blocks hold less on average is checked in a thread: each takes 3 us."""
LOOP_BATCH_RECORDS_MAX = 100_000
"""A batch of more records is checked in a thread: about 4 ms."""
LOOP_RECOMPRESSED_WORK_MAX = 256 * KIB
"""A larger batch that the topic stores under another codec goes to a thread: gzip takes 8 ms."""
RECOMPRESSION_FACTOR = 16
"""What compressing costs, compared with reading."""
LONG_BATCHES_MAX = 1
"""Batches that are checked in a thread at the same time: each may hold twice its records."""
UNPOOLED_MEMORY_BYTES = 128 * MIB
"""The part of `memory.bytes` that no pool counts: one long batch, twice its largest size, and as
much free heap as the process keeps.
"""
RECORD_ERRORS_MAX = 100
"""Refused records of one batch that an answer lists (T25)."""
ANSWER_RECORD_ERRORS_MAX = 1_000
"""The same, of all batches of a request: encoding them takes 1.5 ms."""
IDEMPOTENCE_WINDOW_BATCHES = 5
"""Batches remembered per producer and partition (T29)."""

# --- views ---------------------------------------------------------------------------------------
VIEWS_PER_TOPIC_MAX = 64
"""Views of one topic: each changes in the image whenever its base does."""
SELECTOR_BYTES_MAX = 4 * KIB
"""The text of a selector (S37)."""
SELECTOR_TERMS_MAX = 64
"""Its conditions and arithmetic operators, together: what looking at one record may cost (S37)."""
SELECTOR_DEPTH_MAX = 16
"""How deep its parentheses and signs are nested (S37)."""
SELECTOR_PATTERN_PARTS_MAX = 63
"""Parts of a pattern in it: with the one before the first, they fit into 64 bits (S37)."""
SELECTOR_PROGRAMS_MAX = 256
"""Compiled selectors that a broker keeps: 2 KB each, and 2 KB for every LIKE in them."""

# --- reading through a filter: views, and topics with held records -------------------------------
FILTERED_LOOK_BYTES_MAX = 4 * MIB
"""Stored bytes of one partition that a fetch looks at before it is answered."""
FILTERED_FETCH_LOOK_BYTES_MAX = 16 * MIB
"""The same of all partitions of a fetch; one more is begun below it."""
FILTERED_FETCH_PARTITIONS_MAX = 256
"""Partitions that a fetch looks at: to begin with one takes some tens of microseconds."""
FILTER_WORK_PER_SLICE = 256 * KIB
"""Records that are matched or copied per turn of the loop, in bytes: about a millisecond."""
FILTER_BATCH_WORK = 2 * KIB
"""What one batch costs in that unit, beside its records: many have just one."""
HELD_RECORD_WORK = 2 * KIB
"""What opening one held record costs in that unit: it becomes a Python object."""
FILTER_LOOP_BATCH_BYTES_MAX = 256 * KIB
"""A batch that decompresses to more does so in a thread: about a millisecond."""
REPACKED_BYTES_MIN = 8 * KIB
"""Records picked from a compressed batch are compressed again if they have more bytes."""
MATCHLESS_BYTES_MIN = 64 * KIB
"""Stored bytes without a match that are worth remembering, for 16 bytes."""
MATCHLESS_RANGES_MAX = 2 * MIB
"""Ranges that are remembered for all views: 32 MiB."""

# --- schedules -----------------------------------------------------------------------------------
SCHEDULE_CHARS_MAX = 256
"""The text of a cron line with its zone."""
SCHEDULE_ZONES_MAX = 64
"""Time zones that are kept in memory, a few kilobytes each."""

# --- configuration at run time -------------------------------------------------------------------
OVERRIDDEN_GROUPS_MAX = 10_000
"""Groups with keys of their own (S38): about 10 MB with the longest names."""
GROUP_NAME_BYTES_MAX = 1_024
"""The longest name of such a group."""

# --- one log -------------------------------------------------------------------------------------
PRODUCER_IDS_PER_LOG_MAX = 10_000
"""Producers that a log remembers; the one silent longest is dropped first (S38): about 13 MB."""
ENDED_TRANSACTIONS_MAX = 1_000
"""Ended transactions of a log whose markers may still be lost; further ones are held together."""
OPEN_FILES_MAX = 2_048
"""Files that storage keeps open; each map holds one more descriptor, so 4,096 in all.

Dirty files are kept open beyond this limit until they are flushed.
"""
SEGMENT_INDEXES_MAX = 64
"""Closed segments whose index is in memory: 1 MB each for 1 GiB of 16 KiB batches."""
TAIL_BATCHES_MAX = 64
"""Newest batches of a log whose positions are kept in memory: about 6 KB."""
REMAP_GROWTH_BYTES = 4 * MIB
"""Growth after which a growing file is mapped again."""
WARM_TAIL_BYTES = 8 * MIB
"""The last bytes written to a log count as resident: they are read without asking the kernel."""
SEGMENTS_PER_DROP = 32
"""Segments that retention drops in one piece of work, each with a sync of its directory."""
COMPACTED_SEGMENTS_MAX = 64
"""Segments that compaction merges into one at a time; each is open meanwhile."""
DISK_FLUSH_THREADS = 4
"""Threads that sync the files of one flush round: 7 instead of 20 ms for 64 files (ADR 0008)."""
DISK_READ_THREADS = 4
"""Threads for what clients wait for: cold reads, time lookups, new logs."""
DISK_READS_WAITING_MAX = 4_096
"""Reads that wait for a thread: with 20 ms for each, what a client waits for in 20 s."""
DISK_BACKGROUND_THREADS = 2
"""Threads for what no client waits for; two, so that a slow scrub does not stop the cleaner."""
DISK_BACKGROUND_WAITING_MAX = 64
"""Background operations that wait for a thread; there are about ten loops with one each."""
DISK_BACKGROUND_SYNC_THREADS = 1
"""Native threads for the syncs that no acknowledgement waits for; rounds have their own four."""
GATHERED_BYTES_MAX = 4 * MIB
"""The bytes of the ranges of one gathered write, and of its head: what a thread holds for it."""
GATHERED_RANGES_MAX = 8_192
"""The ranges of one gathered write: about a millisecond of the loop to hand them over."""

# --- data directories ----------------------------------------------------------------------------
UNFLUSHED_TAIL_BYTES_MAX = 64 * MIB
"""Unflushed bytes of one log that start a flush: bounds what recovery has to scan (R11)."""
JOURNAL_BYTES_MAX = 64 * MIB
"""Both files of the round journal; the default of `tidemill.flush.journal.bytes` (ADR 0008)."""
JOURNAL_FILE_BYTES_MIN = MIB
"""The first size of each of them; it doubles while a file is full before it is due."""
JOURNAL_LOGS_MIN = 2
"""Logs that a round must cover with few bytes each to write them to the journal."""
JOURNAL_TAIL_BYTES_MAX = 32 * KIB
"""Bytes of one log in a block of the journal; longer tails are synced in their own file."""
JOURNAL_SETTLE_AFTER_MS = 5_000
"""How long bytes stay in the journal alone before their segments are synced."""
JOURNAL_SETTLE_LOGS = 8
"""Logs per round that settles a file: an acknowledgement waits for one such round at most."""
DISK_RESERVE_BYTES = 64 * MIB
"""What records leave free on the disk; the default of `tidemill.disk.reserve.bytes`."""
DISK_RESERVE_SHARE = 10
"""The reserve is no more than a tenth of the file system, so that a small one is of use too."""
DISK_LOOK_BYTES_MIN = MIB
"""Appended bytes after which the file system is asked early how much is free."""
DISK_LOOK_SHARE = 4
"""It is asked when a quarter of the room was taken: several brokers may share the disk."""
REFUSED_KEPT_MS = 300_000
"""How long what follows a refused batch waits for it: as long as librdkafka tries."""
REFUSED_PRODUCERS_MAX = 1_000
"""Idempotent producers of one partition of which a batch was refused and has not come again."""
REFUSED_PRODUCERS_PER_BROKER_MAX = 100_000
"""The same in all partitions together: about 30 MB at most."""
EARLY_PARTITIONS_MAX = 1_000
EARLY_PRODUCERS_MAX = 16
"""The same for partitions that are not here yet, and of each of them: about 5 MB at most."""
CHECKPOINT_PRODUCERS_PER_SLICE = 20_000
"""Producers that one round of a checkpoint captures on the loop: about 1 ms."""
SCRUB_EVENTS_MAX = 100
"""Damaged places that a scrub remembers one by one; it counts all of them."""
SUSPECT_SEGMENTS_MAX = 1_000
"""Segments that wait to be checked because a read has found damage; the next reads name others."""

# --- cluster metadata ----------------------------------------------------------------------------
PARTITIONS_PER_REQUEST_MAX = 10_000
"""New partitions that one request may ask for (S39)."""
COORD_OPS_PER_MULTI_MAX = 100
"""Changes in one multi: every page, the head and the guard fit."""
COORD_MULTI_BYTES_MAX = 512 * KIB
"""Paths and values of one multi: half of what ZooKeeper takes, which a larger one can stop."""
METADATA_PAGES = 64
"""Pages that topics are spread over. Part of the stored form: it never changes."""
FEATURES_MAX = 100
"""Features that a broker may say it supports."""
FEATURE_NAME_CHARS_MAX = 100
SOFTWARE_VERSION_CHARS_MAX = 100
NODE_PACKED_FROM_BYTES = 16 * KIB
"""A longer value is stored packed."""
PAGE_STORED_BYTES_MAX = 256 * KIB
"""A request that would make a page longer than this is refused; two fit into one multi."""
PAGE_INFLATED_BYTES_MAX = 8 * MIB
"""The same before packing: about 100,000 partitions."""
NODE_STORED_BYTES_MAX = 512 * KIB
"""The longest value that is read. Longer than a request may make it: elections go on."""
NODE_INFLATED_BYTES_MAX = 16 * MIB
"""The same unpacked: what a forged value costs before it is refused (S46)."""
PARTITIONS_PER_TOPIC_MAX = 100_000
"""Partitions of one topic that are read (S46)."""
PARTITIONS_ENCODED_PER_SLICE = 500
"""Partitions that are encoded, decoded or counted in one slice of the loop: up to 10 ms."""
PARTITIONS_CHANGED_PER_SLICE = 250
"""Partitions of a request that are decided, or published, in one slice of the loop (S11)."""
TOPICS_RESOLVED_PER_SLICE = 250
"""Topics whose configuration is made anew in one slice of the loop: about 10 ms (S11)."""
PARTITIONS_PLANNED_PER_SLICE = 250
"""Partitions that a plan of moves looks at in one slice of the loop: about a millisecond (S11)."""
RETURNS_WAIT_S = 5.0
"""How long a new controller waits for several brokers that are missing at once."""
LOG_END_WAIT_S = 5.0
"""How long a replica may take to say where its log ends before an election goes on without it."""
LOG_END_QUESTIONS_MAX = 5_000
"""Partitions that one request asks a broker about; the next one has more."""
ISR_PROPOSALS_MAX = 2_000
"""In-sync sets that one request proposes; more wait for the next one."""
FORMER_LEADER_KEPT_S = 6.0
"""How long a living broker that lost a leadership stays a replica: a session of the store."""
MOVES_PER_BROKER_MAX = 4
"""Partitions that a broker copies, or gives away, at once by itself."""
PLANNED_MOVES_MAX = 200
"""Moves that the controller plans at a time: more than can begin, and soon planned."""
LOG_SIZES_KEPT_S = 300.0
"""How long the sizes of logs count that leaders have told: plans need no exact ones."""
LOG_SIZES_WAIT_S = 5.0
"""How long a leader may take to tell them; a plan does without what is not told by then."""
LOG_SIZES_ASKED_MAX = 2_000
"""Logs whose sizes one request asks for."""
BALANCE_AFTER_RETURN_S = 30.0
"""How long after a broker has come back leaderships are looked at: it is in sync by then."""
UPKEEP_INTERVAL_S = 1.0
"""How often the next replicas are chosen while some must move."""
SESSION_LOOK_S = 0.05
"""How often a process looks for changes and deaths that no peer told it of."""
SESSION_STAMP_S = 0.2
"""How often a process that is alive says so to the others of its host."""
SESSION_HUNG_S = 3.0
"""An event loop that has not turned for this long is hung; so is a process without a stamp."""
SESSION_CONFIRM_S = 0.4
"""Before a peer is killed, its stamp is seen old for this long: two stamps would have come."""
SESSION_LOOK_GAP_S_MAX = 1.0
"""A process that has not looked for this long was stopped itself, and trusts no old stamp yet."""

# --- classic consumer groups ---------------------------------------------------------------------
CLASSIC_PROTOCOLS_MAX = 32
"""Assignment protocols that one member may offer (S41); clients offer one to three."""
SUBSCRIPTION_BYTES_MAX = 256 * KIB
"""A member's subscriptions for all its protocols, together (S41)."""
GROUP_RECORD_BYTES_MAX = 1_000_000
"""A classic group's record, with all members and the plan (S41): fits a topic's default limit."""
PENDING_MEMBER_IDS_MAX = 1_000
"""Member ids that a group gave out and no client has used yet; the oldest is dropped (S38)."""
NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000
"""How long a new member may wait for its first answer; its client may have gone."""
APPEND_RETRY_MS = 1_000
"""Pause before a deadline whose records could not be appended is tried again."""

# --- `__consumer_offsets` ------------------------------------------------------------------------
OFFSETS_BATCH_BYTES_MAX = 8 * MIB
"""The topic's `max.message.bytes`: a thousand members with their assignments fit."""

# --- transactions --------------------------------------------------------------------------------
COORDINATED_NAME_CHARS_MAX = 1 * KIB
"""Of a group or a transactional id: it is kept for long, and its hash takes 0.1 ms (S38)."""
TRANSACTION_PARTITIONS_MAX = 10_000
"""Partitions of one transaction: each addition writes a record that names all of them."""
OPEN_TRANSACTION_PARTITIONS_MAX = 1_000_000
"""Partitions of all transactions that a broker coordinates and that are not complete: 150 MB."""
TRANSACTION_RECORD_BYTES_MAX = 768 * KIB
"""A transaction's record: fits a topic's default limit, also with what its end adds."""
TRANSACTIONS_BATCH_BYTES_MAX = 2 * MIB
"""The topic's `max.message.bytes`: a batch of timeouts is one record larger than its limit."""
MARKERS_PER_REQUEST_MAX = 2_000
"""Markers that one request to another broker brings; more wait for the next one."""
VERIFICATIONS_WAITING_MAX = 10_000
"""Questions that wait for a remote coordinator's word; more are refused as not available."""
VERIFIED_PER_REQUEST_MAX = 5_000
"""Partitions that one request to a coordinator asks about; more wait for the next one."""

# --- consumer protocol ---------------------------------------------------------------------------
QUICK_HEARTBEAT_MS = 500
"""Shortest heartbeat interval of members while their group changes."""
QUICK_HEARTBEAT_MS_PER_MEMBER = 1
"""Added per member: the quick heartbeats of a large group stay below a thousand a second."""
CONSUMER_SUBSCRIPTION_CHARS_MAX = 256 * KIB
"""Topic names in one member's subscription, together (S41): its record fits into one batch."""
CONSUMER_PATTERNS_MAX = 8
"""Regular expressions that the members of one group subscribe with (S37)."""
PATTERN_CHARS_MAX = 1_000
"""Length of one of them (S37)."""
PATTERN_PROGRAM_STEPS_MAX = 1_100
"""Its size when compiled: enough for a list of names. The longest topic name takes 2 ms (S37)."""
PATTERN_PAUSE_MS = 4
"""Between two slices of an evaluation, so that it takes a part of the loop's time only (S37)."""
PATTERNS_KEPT_MAX = 64
"""Expressions of all groups whose results are remembered (S37)."""
PATTERNS_EVALUATED_MAX = 64
"""Further expressions that are being evaluated; other groups wait (S37): 16 MB of the engine."""
CONSUMER_NAME_CHARS_MAX = 1 * KIB
"""A member's id, its instance id and its rack, each (S41)."""

# --- holds ---------------------------------------------------------------------------------------
HELD_BATCH_RECORDS_MAX = 10_000
"""Records of a batch of which some are held: every replica opens them one by one, on the loop."""
HELD_BATCH_BYTES_MAX = 8 * MIB
"""The same, in uncompressed bytes."""
HELD_BATCH_HEADERS_MAX = 100_000
"""Headers of such a batch. An empty one has two bytes, which compress to almost nothing, and some
of them become objects on the loop: a request of a kilobyte would stop it for seconds.
"""
LOOP_OWN_HEADERS_MAX = 16
"""Records of a batch whose headers become objects on the loop; with more it is read in a thread."""
LOOP_HELD_RECORDS_MAX = 4_096
"""Headers of our names in a batch that is read on the loop at all: about a millisecond."""
BATCH_SCHEDULES_MAX = 100
"""Schedules of one batch: the next tick of each is searched, which takes milliseconds."""
ID_LOOKUPS_MAX = 50_000
"""Searches for the ids that the commands of a batch name, each in one run: about 100 ms."""
MESSAGE_ID_BYTES_MAX = 255
RELEASE_RECORDS_MAX = 512
"""Holds that are delivered in one batch."""
RELEASE_BYTES_MAX = MIB
"""The same in bytes, unless a single record is larger."""
RELEASE_OVERHEAD_BYTES = 256
"""What a release adds to a record, at most: batch header and the headers that say what it was."""
HOLD_REPLAY_BYTES = 256 * KIB
"""What a replay of holds reads of the log at a time."""
LOOP_FOLDED_RECORDS_MAX = HELD_BATCH_RECORDS_MAX
"""Records that a follower opens in one turn of the loop; of more the replay takes care."""
LOOP_FOLDED_BYTES_MAX = 2 * HELD_BATCH_BYTES_MAX
"""The same, in uncompressed bytes: a fetched megabyte may be a thousand batches of eight each."""
REPLAYED_RECORDS_PER_SLICE = 1_000
"""Records that a replay opens in one turn, unless one batch has more: about ten milliseconds."""
REPLAYED_RECORD_BYTES = 8 * KIB
"""What opening one record costs in uncompressed bytes, so a turn opens eight megabytes at most."""
HOLD_TABLE_MAX = 16_384
"""Holds of a partition in memory, some 10 MB; then they are written as a sorted run."""
HOLD_TABLES_FROZEN_MAX = 2
"""Tables of a partition that wait to be written; until then the table grows."""
HOLD_RUNS_PER_SNAPSHOT = 16
"""Runs that are written between two snapshots: what a replay reads more than once is bounded."""
HOLD_SNAPSHOT_LOG_BYTES = 64 * MIB
"""After so much more log a snapshot is made also of a small book: a start reads what came later."""
HOLD_SCHEDULES_MAX = 10_000
"""Schedules of a partition: they stay in memory."""
HOLDS_UNDECIDED_MAX = 100_000
"""Held records of open transactions in a partition: they stay in memory, some 50 MB."""
HOLD_PINS_MAX = 1_024
"""Copies of ended holds of a partition that are told apart until their ends are durable."""
HOLD_ENDINGS_MAX = 4_096
"""Ended holds per partition whose ending is remembered: a command that comes again succeeds."""

# --- logging -------------------------------------------------------------------------------------
LOGGED_TEXT_CHARS_MAX = 256
"""Length at which a peer's text is cut in a log line (S52)."""
LOGGED_NAMES_MAX = 10
"""Partitions that one log line names; of the others it gives the number."""

assert (
    SESSION_LOOK_S < SESSION_STAMP_S < SESSION_CONFIRM_S < SESSION_LOOK_GAP_S_MAX < SESSION_HUNG_S
)
assert REMAP_GROWTH_BYTES < WARM_TAIL_BYTES
assert LOGGED_TEXT_CHARS_MAX < STRING_BYTES_MAX
assert LOOP_BATCH_BYTES_MIN < LOOP_BATCH_BYTES_MAX < DECOMPRESSED_BATCH_BYTES_MAX
assert REQUEST_BYTES_IN_FLIGHT_MAX < DECOMPRESSED_BATCH_BYTES_MAX
assert SUBSCRIPTION_BYTES_MAX < GROUP_RECORD_BYTES_MAX < MIB < OFFSETS_BATCH_BYTES_MAX
