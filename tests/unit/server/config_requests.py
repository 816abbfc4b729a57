"""Requests to one broker that describe and change configuration."""

from __future__ import annotations

from tidemill.core.errors import ErrorCode
from tidemill.wire.generated import alter_configs, incremental_alter_configs
from tidemill.wire.generated.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)

TOPIC, BROKER, BROKER_LOGGER, GROUP = 2, 4, 8, 32
SET, DELETE, APPEND, SUBTRACT = range(4)


def replace_all(broker, configs, version=2, *, kind=TOPIC, name="t", validate_only=False):
    """AlterConfigs for one resource."""
    resource = alter_configs.AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[alter_configs.AlterableConfig(name=k, value=v) for k, v in configs.items()],
    )
    request = alter_configs.AlterConfigsRequest(resources=[resource], validate_only=validate_only)
    return broker.call(request, version).responses[0]


def resource_of(changes, *, kind=TOPIC, name="t"):
    return incremental_alter_configs.AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            incremental_alter_configs.AlterableConfig(name=key, config_operation=op, value=value)
            for key, op, value in changes
        ],
    )


def alter_all(broker, resources, version=1, *, validate_only=False):
    request = incremental_alter_configs.IncrementalAlterConfigsRequest(
        resources=resources, validate_only=validate_only
    )
    return broker.call(request, version).responses


def alter(broker, *changes, version=1, **resource):
    """IncrementalAlterConfigs for one resource."""
    return alter_all(broker, [resource_of(changes, **resource)], version)[0]


def describe(broker, kind, name, version=4, *, keys=None, synonyms=False, documentation=False):
    wanted = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=keys
    )
    request = DescribeConfigsRequest(
        resources=[wanted], include_synonyms=synonyms, include_documentation=documentation
    )
    (result,) = broker.call(request, version).results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


def by_name(result):
    assert result.error_code == ErrorCode.NONE
    return {one.name: one for one in result.configs}
