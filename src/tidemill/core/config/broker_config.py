"""The configuration of one broker; every key has a default. Pure.

`broker_config` joins the three sources, file, `--set` flags and code; the later one wins. Keys are
Kafka's where Kafka has them. The keys of consumer groups are in `group_config.py`, the defaults of
topic keys in `topic_defaults.py`; `key_relations.py` says which values do not fit together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import final

from tidemill.core.config.endpoint import ANY_ADDRESS, Endpoint, parse_endpoint
from tidemill.core.config.group_config import GroupConfig
from tidemill.core.config.key_relations import check_relations
from tidemill.core.config.keys import (
    INT32_MAX,
    INT64_MAX,
    Scope,
    build,
    option,
    options_of,
    parse_assignments,
    parse_lines,
)
from tidemill.core.config.memory_parts import (
    FETCH_BYTES_MAX_DEFAULT,
    REQUEST_BYTES_MAX_DEFAULT,
    memory_parts,
)
from tidemill.core.config.topic_defaults import TopicDefaults
from tidemill.core.config.transaction_config import TransactionConfig
from tidemill.core.config.zookeeper_config import ZookeeperConfig
from tidemill.core.limits import DISK_RESERVE_BYTES, JOURNAL_BYTES_MAX, KIB, MIB

__all__ = ["BrokerConfig", "Endpoint", "broker_config", "parse_endpoint"]

RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
"""Kafka's name for reading from the client's rack."""
_BROKER_ID_MAX = 2**31 - 1
_COORD_FILE = "coord.db"
_LOOPBACK = {"::": "::1"}
"""Where the brokers of one host meet if clients are accepted on every address."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """The keys of a broker; made and validated by `broker_config`. Most are read at start only."""

    # --- identity and addresses ------------------------------------------------------------------
    node_id: int = option(
        0,
        key="node.id",
        doc="Id of this broker; unique in the cluster.",
        maximum=_BROKER_ID_MAX,
    )
    broker_rack: str = option(
        "",
        key="broker.rack",
        doc="Rack of this broker; shown to clients. Replicas of a partition spread over racks.",
    )
    listeners: str = option(
        "127.0.0.1:9092",
        key="listeners",
        doc="HOST:PORT on which clients are accepted, an IPv6 address in brackets. Port 0 takes a "
        "free port.",
    )
    advertised_listeners: str = option(
        "",
        key="advertised.listeners",
        doc="HOST:PORT that clients are told to connect to; port 0 means the port of `listeners`. "
        "Empty: the same as `listeners`, or, if that is every address of the machine, the address "
        "that the client connected to. In a cluster the other brokers must be able to reach it.",
    )
    internal_listen: str = option(
        "",
        key="tidemill.internal.listen",
        doc="HOST:PORT on which other brokers are accepted; port 0 takes a free port. Empty: a "
        "free port at the host of `listeners`, or at the loopback address if that is every "
        "address of the machine: brokers that share an embedded store are on one host.",
    )
    route_listen: str = option(
        "",
        key="tidemill.route.listen",
        doc="HOST:PORT for clients that can reach this address only: the broker names itself for "
        "everything there and passes requests on to the brokers that own what they name. Port 0 "
        "takes a free port. Empty: no such listener.",
    )
    route_advertised: str = option(
        "",
        key="tidemill.route.advertised",
        doc="HOST:PORT that clients of `tidemill.route.listen` are told to connect to, such as a "
        "load balancer's. Empty: the address that the client connected to.",
    )
    metrics_listen: str = option(
        "",
        key="metrics.listen",
        doc="HOST:PORT of the HTTP pages with metrics and health. Empty: no such pages.",
    )
    data_dir: str = option(
        "./data", key="data.dir", doc="Where logs and the embedded coordination store live."
    )
    store_file: str = option(
        "",
        key="tidemill.store.file",
        doc="The file of the embedded coordination store; all brokers of a cluster on one host "
        "name the same one. Empty: `coord.db` in `data.dir`.",
    )

    # --- topics ----------------------------------------------------------------------------------
    num_partitions: int = option(
        4,
        key="num.partitions",
        dynamic=True,
        doc="Partitions of a new topic if the request does not give a number.",
        scope=Scope.CLUSTER,
        minimum=1,
        maximum=10_000,
    )
    default_replication_factor: int = option(
        1,
        key="default.replication.factor",
        dynamic=True,
        doc="Replicas of a new topic if the request does not give a number.",
        scope=Scope.CLUSTER,
        minimum=1,
        maximum=32_767,
    )
    auto_create_topics_enable: bool = option(
        True,
        key="auto.create.topics.enable",
        dynamic=True,
        doc="Whether a topic is created when a client asks for it by name and it does not exist.",
    )
    partitions_per_broker_max: int = option(
        20_000,
        key="partitions.per.broker.max",
        dynamic=True,
        doc="Largest number of replicas on one broker; topics that need more are refused.",
        scope=Scope.CLUSTER,
        minimum=1,
        maximum=1_000_000,
    )

    # --- replicas --------------------------------------------------------------------------------
    auto_leader_rebalance_enable: bool = option(
        True,
        key="auto.leader.rebalance.enable",
        dynamic=True,
        doc="Whether leaderships go back by themselves to the first replicas, if over a tenth of "
        "a broker's are elsewhere.",
        scope=Scope.CLUSTER,
    )
    leader_imbalance_check_interval_seconds: int = option(
        300,
        key="leader.imbalance.check.interval.seconds",
        dynamic=True,
        doc="How often the controller looks whether leaderships and replicas are spread evenly.",
        scope=Scope.CLUSTER,
        unit="s",
        minimum=1,
    )
    auto_rebalance: str = option(
        "joined",
        key="auto.rebalance",
        dynamic=True,
        doc="Which replicas move by themselves to brokers with fewer: `joined`, only those that "
        "give a broker that is new in the cluster its share; `always`, also later, if two brokers "
        "differ by over a tenth, in replicas or bytes; `off`, none.",
        choices=("joined", "always", "off"),
        scope=Scope.CLUSTER,
    )
    replica_selector_class: str = option(
        "leader",
        key="replica.selector.class",
        dynamic=True,
        doc="Which replica clients read from that name their rack (`client.rack`): `leader`, or "
        "with `rack`, an in-sync replica in the client's rack; "
        f"`{RACK_AWARE_SELECTOR}` means the same. A topic can differ: `tidemill.read.from`.",
        choices=("leader", "rack", RACK_AWARE_SELECTOR),
    )
    replica_lag_time_max_ms: int = option(
        10_000,
        key="replica.lag.time.max.ms",
        dynamic=True,
        doc="A replica leaves the in-sync set after this long behind the leader, or without "
        "flushing what it has; with ZooKeeper after two sessions, if these take longer.",
        scope=Scope.CLUSTER,
        unit="ms",
        minimum=1_000,
        maximum=INT64_MAX,
    )
    replica_remake_delay_ms: int = option(
        600_000,
        key="replica.remake.delay.ms",
        dynamic=True,
        doc="After this long without a broker its replicas are made anew on other brokers.",
        scope=Scope.CLUSTER,
        unit="ms",
        minimum=1_000,
        maximum=INT64_MAX,
    )
    broker_draining: bool = option(
        False,
        key="tidemill.broker.draining",
        dynamic=True,
        doc="Whether this broker is to hold nothing: it is given no replicas, and those that it "
        "has move to others. Set it at run time for one broker, or use `tidemill cluster drain`.",
    )

    # --- connections and requests ----------------------------------------------------------------
    max_connections: int = option(
        16_384,
        key="max.connections",
        dynamic=True,
        doc="Largest number of client connections; lower if the process has too few descriptors.",
        minimum=1,
    )
    max_connections_per_ip: int = option(
        16_384,
        key="max.connections.per.ip",
        dynamic=True,
        doc="Largest number of client connections from one address.",
        minimum=1,
    )
    max_connection_creation_rate_per_ip: int = option(
        INT32_MAX,
        key="max.connection.creation.rate.per.ip",
        dynamic=True,
        doc="New connections per second from one address, in bursts of up to one second's worth; "
        "more are closed at once. The default sets no limit.",
        minimum=1,
    )
    connections_max_idle_ms: int = option(
        600_000,
        key="connections.max.idle.ms",
        doc="A connection is closed after this long without a request.",
        unit="ms",
        minimum=1_000,
        maximum=INT64_MAX,
    )
    socket_request_max_bytes: int = option(
        REQUEST_BYTES_MAX_DEFAULT,
        key="socket.request.max.bytes",
        doc="Largest request; a larger one closes its connection.",
        unit="bytes",
        minimum=1 * KIB,
    )
    memory_bytes: int = option(
        0,
        key="memory.bytes",
        doc="Memory for requests, answers, compaction and decompression, all together. Their keys "
        "get parts of it unless they are set; 0: they have their own defaults.",
        unit="bytes",
        maximum=INT64_MAX,
    )
    request_memory_bytes: int = option(
        256 * MIB,
        key="request.memory.bytes",
        doc="Memory for requests that are being received or processed, for all connections "
        "together; beyond it the broker stops reading. At least two requests of "
        "`socket.request.max.bytes` must fit.",
        unit="bytes",
        minimum=1 * MIB,
        maximum=INT64_MAX,
    )
    response_memory_bytes: int = option(
        256 * MIB,
        key="response.memory.bytes",
        doc="Memory for answers that are not sent yet, for all connections together.",
        unit="bytes",
        minimum=1 * MIB,
        maximum=INT64_MAX,
    )
    fetch_max_bytes: int = option(
        FETCH_BYTES_MAX_DEFAULT,
        key="fetch.max.bytes",
        dynamic=True,
        doc="Largest answer to a fetch, even if the client asks for more.",
        unit="bytes",
        minimum=1 * KIB,
    )
    leader_replication_throttled_rate: int = option(
        INT64_MAX,
        key="leader.replication.throttled.rate",
        dynamic=True,
        doc="What this broker sends to replicas that are far behind, all of them together.",
        unit="bytes/s",
        minimum=1 * KIB,
        maximum=INT64_MAX,
    )
    follower_replication_throttled_rate: int = option(
        INT64_MAX,
        key="follower.replication.throttled.rate",
        dynamic=True,
        doc="What the replicas on this broker that are far behind receive, all of them together.",
        unit="bytes/s",
        minimum=1 * KIB,
        maximum=INT64_MAX,
    )
    fetch_sessions_max: int = option(
        1_000,
        key="fetch.sessions.max",
        doc="Largest number of incremental fetch sessions; a new one replaces the least used one.",
        minimum=0,
        maximum=100_000,
    )
    file_descriptors_max: int = option(
        4_096,
        key="file.descriptors.max",
        doc="Log and index files that are kept open; lower if the process has too few descriptors.",
        minimum=64,
        maximum=1_000_000,
    )

    flush_journal_bytes: int = option(
        JOURNAL_BYTES_MAX,
        key="tidemill.flush.journal.bytes",
        doc="The most disk space for the journal that makes small flushes of many partitions "
        "durable by one write. 0: every flush syncs the files of its partitions. Other values "
        "below 2 MiB count as 2 MiB.",
        unit="bytes",
        minimum=0,
        maximum=256 * MIB,
    )

    disk_reserve_bytes: int = option(
        DISK_RESERVE_BYTES,
        key="tidemill.disk.reserve.bytes",
        dynamic=True,
        doc="What records leave free on the file system of `data.dir`, for metadata, checkpoints "
        "and deletions: with less, producers are refused. No more than a tenth of the file system "
        "counts. 0: records fill the disk.",
        unit="bytes",
        minimum=0,
        maximum=INT64_MAX,
    )

    # --- background work -------------------------------------------------------------------------
    log_retention_check_interval_ms: int = option(
        300_000,
        key="log.retention.check.interval.ms",
        dynamic=True,
        doc="How often the broker looks for segments to delete.",
        unit="ms",
        minimum=1,
        maximum=INT64_MAX,
    )

    producer_id_expiration_ms: int = option(
        24 * 3600 * 1000,
        key="producer.id.expiration.ms",
        doc="An idempotent producer that has not written to a partition for this long is forgotten "
        "there; a retry that comes even later is not recognised.",
        unit="ms",
        minimum=1,
        maximum=INT32_MAX,
    )
    producer_ids_max: int = option(
        100_000,
        key="producer.ids.max",
        doc="Idempotent producers that this broker remembers, counted once for each partition they "
        "write to; beyond it the ones that are idle longest are forgotten, in whichever partition. "
        "Each takes about 1.3 KB. One partition remembers 10,000 at most.",
        minimum=1_000,
        maximum=100_000_000,
    )
    log_cleaner_backoff_ms: int = option(
        15_000,
        key="log.cleaner.backoff.ms",
        dynamic=True,
        doc="Pause of compaction when no log is dirty enough.",
        unit="ms",
        minimum=1,
        maximum=INT64_MAX,
    )
    log_cleaner_dedupe_buffer_size: int = option(
        128 * MIB,
        key="log.cleaner.dedupe.buffer.size",
        dynamic=True,
        doc="Memory for the keys of one cleaning, 32 bytes each; if they do not fit, the cleaning "
        "takes several passes.",
        unit="bytes",
        minimum=64 * KIB,
        maximum=INT64_MAX,
    )
    log_cleaner_io_max_bytes_per_second: int = option(
        INT64_MAX,
        key="log.cleaner.io.max.bytes.per.second",
        dynamic=True,
        doc="Bytes that compaction may read and write per second.",
        unit="bytes/s",
        minimum=1 * KIB,
        maximum=INT64_MAX,
    )

    # --- sections with files of their own --------------------------------------------------------
    groups: GroupConfig = field(default_factory=GroupConfig)
    transactions: TransactionConfig = field(default_factory=TransactionConfig)
    zookeeper: ZookeeperConfig = field(default_factory=ZookeeperConfig)
    topic_defaults: TopicDefaults = field(default_factory=TopicDefaults)

    @property
    def listen_endpoint(self) -> Endpoint:
        """Where to accept clients."""
        return parse_endpoint(self.listeners, key="listeners")

    @property
    def listens_everywhere(self) -> bool:
        """Whether clients are accepted on every address of the machine."""
        return self.listen_endpoint.host in ANY_ADDRESS

    @property
    def internal_endpoint(self) -> Endpoint:
        """Where to accept other brokers."""
        if self.internal_listen:
            return parse_endpoint(self.internal_listen, key="tidemill.internal.listen")
        host = self.listen_endpoint.host
        return Endpoint(_LOOPBACK.get(host, "127.0.0.1") if self.listens_everywhere else host, 0)

    @property
    def route_endpoint(self) -> Endpoint | None:
        """Where to accept clients that are routed, if at all."""
        key = "tidemill.route.listen"
        return parse_endpoint(self.route_listen, key=key) if self.route_listen else None

    @property
    def route_advertised_endpoint(self) -> Endpoint | None:
        """What routed clients are told; None: what they have connected to."""
        key = "tidemill.route.advertised"
        return parse_endpoint(self.route_advertised, key=key) if self.route_advertised else None

    @property
    def store_path(self) -> str:
        """The file of the embedded coordination store."""
        return self.store_file or f"{self.data_dir}/{_COORD_FILE}"

    @property
    def metrics_endpoint(self) -> Endpoint | None:
        """Where to serve metrics, if at all."""
        return (
            parse_endpoint(self.metrics_listen, key="metrics.listen")
            if self.metrics_listen
            else None
        )

    def advertised_endpoint(self, bound_port: int) -> Endpoint:
        """The address that clients are told, given the port that the listener has bound."""
        if not self.advertised_listeners:
            return Endpoint(self.listen_endpoint.host, bound_port)
        host, port = parse_endpoint(self.advertised_listeners, key="advertised.listeners")
        return Endpoint(host, port or bound_port)

    def validate(self) -> None:
        """Check relations between keys; UserError names the keys that do not fit together."""
        check_relations(self)


def broker_config(
    *,
    file_text: str = "",
    file_name: str = "configuration",
    flags: Iterable[str] = (),
    values: Mapping[str, object] | None = None,
) -> BrokerConfig:
    """The configuration from a file's text, `key=value` flags and code; the later wins (F125)."""
    layers = (
        parse_lines(file_text, source=file_name),
        parse_assignments(flags),
        values or {},
    )
    made = build(BrokerConfig, *layers)
    if made.memory_bytes:
        made = build(BrokerConfig, _memory_defaults(made, *layers), *layers)
    made.validate()
    return made


def _memory_defaults(made: BrokerConfig, *layers: Mapping[str, object]) -> dict[str, int]:
    """What `memory.bytes` means for the keys of the pools that are not in the layers."""
    values = {
        made_option.key: getattr(made, name)
        for name, made_option in options_of(BrokerConfig).items()
        if "." not in name and any(made_option.key in layer for layer in layers)
    }
    return memory_parts(made.memory_bytes, values)
