"""The stored form of the cluster's metadata, apart from head and pages: paths and values. Pure.

    /cluster            the cluster's id, and the form of what is stored here; made once
    /controller         the broker that is the controller; ephemeral
    /controller_epoch   rises with every election; every multi checks its version (I33)
    /head               the version of everything below (`head.py`)
    /pages/00..63       topics and their partitions (`page.py`)
    /members            the brokers that the controller has let in, by broker epoch
    /settings           finalized levels of features; what was set at run time for brokers, groups
    /brokers/<id>       a live broker's address; ephemeral
    /broker_epoch       the last broker epoch given out
    /producer_ids       the first producer id not given out yet
    /migration          instead of /cluster, while or after a move to another store (`migration.py`)

Epochs and counters are values; the versions of nodes are for compare-and-set alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, final

from tidemill.core.config.broker_config import Endpoint
from tidemill.core.config.keys import INT32_MAX, INT64_MAX
from tidemill.core.ids import ZERO_UUID
from tidemill.core.limits import (
    FEATURE_NAME_CHARS_MAX,
    FEATURES_MAX,
    METADATA_PAGES,
    SOFTWARE_VERSION_CHARS_MAX,
)
from tidemill.metadata.features.feature_levels import (
    BEFORE_FEATURES,
    FEATURE_LEVEL_MAX,
    OLDER_SOFTWARE,
    FinalizedLevels,
    LevelRange,
    Software,
)
from tidemill.metadata.image import stored_fields
from tidemill.metadata.image.head import HEAD, MEMBERS, PAGES, SETTINGS
from tidemill.metadata.image.metadata_image import BrokerImage, MemberImage, Return
from tidemill.metadata.image.overrides import ConfigOwner, OwnerKind, StoredOverrides
from tidemill.metadata.image.stored_fields import BadNode, Fields
from tidemill.metadata.store.coord import Node

__all__ = [
    "BROKERS",
    "BROKER_EPOCH",
    "CLUSTER",
    "CONTROLLER",
    "CONTROLLER_EPOCH",
    "HEAD",
    "MEMBERS",
    "MIGRATION",
    "PAGES",
    "PRODUCER_IDS",
    "SETTINGS",
    "BadNode",
    "StoredController",
    "StoredSettings",
    "broker_path",
    "decode_broker",
    "decode_cluster_id",
    "decode_controller",
    "decode_counter",
    "decode_members",
    "decode_settings",
    "encode_broker",
    "encode_cluster_id",
    "encode_controller",
    "encode_counter",
    "members_value",
    "settings_value",
    "try_broker_id",
]

CLUSTER = "/cluster"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
BROKER_EPOCH = "/broker_epoch"
PRODUCER_IDS = "/producer_ids"
BROKERS = "/brokers"
MIGRATION = "/migration"

_FORM = 2
"""Of the whole: 1 had a node per topic and per partition (`format_1.py`)."""
_WITHOUT_FEATURES, _WITH_FEATURES = 1, 2
"""Formats of the settings. Software that knows no features does not read the second one, and what
it cannot read it does not overwrite."""
_CLUSTER_ID = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_FEATURE_NAME = re.compile(rf"[A-Za-z0-9._-]{{1,{FEATURE_NAME_CHARS_MAX}}}\Z")
_BROKER_PATH = re.compile(r"/brokers/(0|[1-9][0-9]{0,9})\Z")


def broker_path(broker_id: int) -> str:
    return f"{BROKERS}/{broker_id}"


def try_broker_id(path: str) -> int | None:
    """The broker id in a path under BROKERS; None if the path is not one of ours."""
    found = _BROKER_PATH.match(path)
    return int(found[1]) if found else None


# --- single values -----------------------------------------------------------------------------


def encode_cluster_id(cluster_id: str) -> bytes:
    return stored_fields.dump({"id": cluster_id, "form": _FORM})


def decode_cluster_id(path: str, node: Node) -> str:
    value = stored_fields.load(path, node.value)
    cluster_id = value.text("id")
    if not _CLUSTER_ID.match(cluster_id):
        raise value.bad("not a cluster id")
    value.number("form", _FORM, _FORM)
    return cluster_id


def encode_counter(value: int) -> bytes:
    return stored_fields.dump({"value": value})


def decode_counter(path: str, node: Node) -> int:
    return stored_fields.load(path, node.value).number("value", 0, INT64_MAX)


@final
class StoredController(NamedTuple):
    """Who is the controller."""

    broker_id: int
    epoch: int
    """The controller epoch."""
    broker_epoch: int
    """Of the registration in which the broker took office."""


def encode_controller(controller: StoredController) -> bytes:
    return stored_fields.dump(
        {
            "broker": controller.broker_id,
            "epoch": controller.epoch,
            "broker_epoch": controller.broker_epoch,
        }
    )


def decode_controller(path: str, node: Node) -> StoredController:
    value = stored_fields.load(path, node.value)
    return StoredController(
        value.number("broker", 0, INT32_MAX),
        value.number("epoch", 0, INT64_MAX),
        value.number("broker_epoch", 0, INT64_MAX),
    )


def encode_broker(broker: BrokerImage) -> bytes:
    value: dict[str, Any] = {
        "epoch": broker.epoch,
        "host": broker.host,
        "port": broker.port,
        "rack": broker.rack,
        "directory": str(broker.directory_id),
        "unclean": broker.unclean,
        "leaving": broker.leaving,
        "failed": broker.failed,
        "version": broker.software.version,
        "features": {
            name: {"from": levels.lowest, "to": levels.highest}
            for name, levels in broker.software.ranges.items()
        },
    }
    if broker.internal is not None:
        value["internal"] = {"host": broker.internal.host, "port": broker.internal.port}
    if broker.unheard_controller >= 0:
        value["unheard_controller"] = broker.unheard_controller
    return stored_fields.dump(value)


def decode_broker(path: str, node: Node) -> BrokerImage:
    broker_id = try_broker_id(path)
    if broker_id is None or broker_id > INT32_MAX:
        raise BadNode(path, "not a broker id")
    value = stored_fields.load(path, node.value)
    return BrokerImage(
        broker_id=broker_id,
        epoch=value.number("epoch", 0, INT64_MAX),
        host=value.text("host"),
        port=value.number("port", 0, 65_535),
        rack=value.text("rack"),
        internal=_internal(value),
        directory_id=value.uuid("directory"),
        unclean=value.flag("unclean"),
        leaving=value.flag("leaving"),
        failed=value.flag("failed"),
        unheard_controller=(
            value.number("unheard_controller", 0, INT64_MAX)
            if value.has("unheard_controller")
            else -1
        ),
        software=_software(value) if value.has("features") else OLDER_SOFTWARE,
    )


def _software(value: Fields) -> Software:
    version = value.text("version")
    if len(version) > SOFTWARE_VERSION_CHARS_MAX or not version.isprintable():
        raise value.bad("not a version of the software")
    ranges: dict[str, LevelRange] = {}
    for name, found in value.named("features").items():
        lowest = found.number("from", 0, FEATURE_LEVEL_MAX)
        ranges[name] = LevelRange(lowest, found.number("to", lowest, FEATURE_LEVEL_MAX))
    _check_feature_names(value, ranges)
    return Software(version, ranges)


def _check_feature_names(value: Fields, names: Collection[str]) -> None:
    if len(names) > FEATURES_MAX:
        raise value.bad(f"more than {FEATURES_MAX} features")
    if not all(_FEATURE_NAME.match(name) for name in names):
        raise value.bad("not the name of a feature")


def _internal(value: Fields) -> Endpoint | None:
    if not value.has("internal"):
        return None
    found = value.object("internal")
    return Endpoint(found.text("host"), found.number("port", 0, 65_535))


# --- members and settings: parts of the metadata, as pages are -----------------------------------


def members_value(seq: int, members: Mapping[int, MemberImage]) -> dict[str, Any]:
    """What is stored of the brokers that were let in."""
    brokers = {str(one.broker_id): _member_value(one) for one in members.values()}
    return {"seq": seq, "brokers": brokers}


def _member_value(member: MemberImage) -> dict[str, Any]:
    value: dict[str, Any] = {
        "epoch": member.epoch,
        "rack": member.rack,
        "directory": str(member.directory_id),
    }
    if member.untold:
        value["untold"] = {str(page): how.value for page, how in member.untold.items()}
    if member.awaits_share:
        value["awaits_share"] = True
    return value


def decode_members(stored: bytes) -> tuple[int, dict[int, MemberImage]]:
    """The seq of the last change, and the members by broker id."""
    value = stored_fields.load(MEMBERS, stored)
    members: dict[int, MemberImage] = {}
    for key, one in value.named("brokers").items():
        broker_id = try_broker_id(f"{BROKERS}/{key}")
        if broker_id is None or broker_id > INT32_MAX:
            raise value.bad("not a broker id")
        members[broker_id] = MemberImage(
            broker_id=broker_id,
            epoch=one.number("epoch", 0, INT64_MAX),
            rack=one.text("rack"),
            directory_id=one.uuid("directory") if one.has("directory") else ZERO_UUID,
            untold=_untold(one) if one.has("untold") else {},
            awaits_share=one.flag("awaits_share") if one.has("awaits_share") else False,
        )
    return value.number("seq", 0, INT64_MAX), members


def _untold(value: Fields) -> dict[int, Return]:
    """Pages by number, each with what the broker came back with."""
    try:
        found = {int(page): Return(how) for page, how in value.texts("untold").items()}
    except ValueError:
        raise value.bad("untold is not a map of pages") from None
    if not all(0 <= page < METADATA_PAGES for page in found):
        raise value.bad("untold has a page that there is not")
    return found


def settings_value(
    seq: int,
    overrides: Mapping[ConfigOwner, StoredOverrides],
    features: FinalizedLevels = BEFORE_FEATURES,
) -> dict[str, Any]:
    """What is stored of finalized levels, and of keys that were set at run time, by their owner."""
    kinds: dict[str, dict[str, dict[str, str]]] = {kind: {} for kind in OwnerKind}
    for owner, stored in sorted(overrides.items()):
        kinds[owner.kind][owner.name] = {**stored.values, **stored.unread}
    value: dict[str, Any] = {"seq": seq, **kinds}
    if features.is_stored:
        value["v"] = _WITH_FEATURES
        value["features"] = {"epoch": features.epoch, "levels": dict(features.levels)}
    return value


@final
class StoredSettings(NamedTuple):
    """What is stored under /settings."""

    seq: int
    """Of the last change."""
    overrides: dict[ConfigOwner, dict[str, str]]
    features: FinalizedLevels


def decode_settings(stored: bytes) -> StoredSettings:
    value = stored_fields.load(SETTINGS, stored, (_WITHOUT_FEATURES, _WITH_FEATURES))
    found: dict[ConfigOwner, dict[str, str]] = {}
    for kind in OwnerKind:
        for name, keys in value.named(kind).items():
            found[ConfigOwner(kind, name)] = keys.all_texts()
    has_features = value.number("v", _WITHOUT_FEATURES, _WITH_FEATURES) == _WITH_FEATURES
    features = _features(value.object("features")) if has_features else BEFORE_FEATURES
    return StoredSettings(value.number("seq", 0, INT64_MAX), found, features)


def _features(value: Fields) -> FinalizedLevels:
    levels = value.named_numbers("levels", 0, FEATURE_LEVEL_MAX)
    _check_feature_names(value, levels)
    return FinalizedLevels(levels, value.number("epoch", 0, INT64_MAX))
