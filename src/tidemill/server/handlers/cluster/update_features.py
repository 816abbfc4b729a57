"""UpdateFeatures (57), versions 0..2: change finalized levels of features; by the controller.

v1 says how a level may change (KIP-778), and can ask without changing anything; v2 has no results
of single features: the first refusal is the answer.

All changes of a request are made, or none, in every version. A level is raised only if every broker
that the cluster knows supports it; one that is away cannot say so, and has to be unregistered.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.core.errors import ErrorCode, KafkaError, StoreUnavailable
from tidemill.core.limits import FEATURE_NAME_CHARS_MAX, FEATURES_MAX
from tidemill.metadata.features.level_changes import LevelChange, Way
from tidemill.server.request.authorizer import Operation, cluster
from tidemill.server.request.context import ClusterContext
from tidemill.server.request.handler import Answer, Handler, refuse_with_error_code
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

__all__ = ["HANDLER"]

FIRST_WITHOUT_RESULTS = 2


def handle(context: ClusterContext, request: UpdateFeaturesRequest) -> Answer:
    context.require(Operation.ALTER, cluster())
    updates = request.feature_updates
    if len(updates) > FEATURES_MAX:
        detail = f"a request changes {FEATURES_MAX} features at most"
        raise KafkaError(ErrorCode.INVALID_REQUEST, detail)
    if any(len(one.feature) > FEATURE_NAME_CHARS_MAX for one in updates):  # answers repeat names
        detail = f"the name of a feature has {FEATURE_NAME_CHARS_MAX} characters at most"
        raise KafkaError(ErrorCode.INVALID_REQUEST, detail)
    changes = {
        one.feature: LevelChange(one.feature, one.max_version_level, _way(one)) for one in updates
    }
    if len(changes) < len(updates):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "names a feature twice")
    return _change(context, changes, validate_only=request.validate_only)


def _way(update: FeatureUpdateKey) -> Way:
    if update.allow_downgrade:
        return Way.SAFE_DOWNGRADE
    try:
        return Way(update.upgrade_type)
    except ValueError:
        detail = f"{update.feature}: {update.upgrade_type} is no type of upgrade"
        raise KafkaError(ErrorCode.INVALID_UPDATE_VERSION, detail) from None


async def _change(
    context: ClusterContext, changes: Mapping[str, LevelChange], *, validate_only: bool
) -> UpdateFeaturesResponse:
    try:
        refusals = await context.services.cluster.change_levels(
            list(changes.values()), validate_only=validate_only
        )
    except KafkaError as error:
        return _whole(error)
    except StoreUnavailable as error:
        return _whole(KafkaError(ErrorCode.REQUEST_TIMED_OUT, str(error)))
    if refusals and context.version >= FIRST_WITHOUT_RESULTS:
        return _whole(next(iter(refusals.values())))
    results = [_result(name, refusals) for name in changes]
    return UpdateFeaturesResponse(error_message=None, results=results)


def _result(name: str, refusals: Mapping[str, KafkaError]) -> UpdatableFeatureResult:
    if not refusals:
        return UpdatableFeatureResult(feature=name, error_message=None)
    first = next(iter(refusals))
    others = KafkaError(
        ErrorCode.INVALID_UPDATE_VERSION, f"{name} was not changed, because {first} was refused"
    )
    error = refusals.get(name, others)
    return UpdatableFeatureResult(
        feature=name, error_code=int(error.code), error_message=error.detail
    )


def _whole(error: KafkaError) -> UpdateFeaturesResponse:
    return UpdateFeaturesResponse(error_code=int(error.code), error_message=error.detail or None)


HANDLER = Handler(
    api_key=ApiKey.UPDATE_FEATURES,
    versions=(0, 2),
    handle=handle,
    refuse=refuse_with_error_code(UpdateFeaturesResponse),
    by_controller=True,
)
