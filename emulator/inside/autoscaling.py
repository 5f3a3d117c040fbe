"""Application Auto Scaling: keeps targets, policies and schedules, and checks them.

Nothing is scaled.
"""

from __future__ import annotations

import re
import time
import uuid
import zoneinfo
from typing import Any

from ministack.core.responses import AccountRegionScopedDict, get_account_id, get_region

from emulator.inside.endpoints import endpoints
from emulator.inside.services import ApiError, Json, JsonService

targets: Any = AccountRegionScopedDict()
policies: Any = AccountRegionScopedDict()
actions: Any = AccountRegionScopedDict()
_SCHEDULE = re.compile(
    r"at\(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\)"
    r"|rate\([1-9]\d* (minute|hour|day)s?\)"
    r"|cron\((\S+ ){5}\S+\)"
)
_VARIANT = re.compile(r"endpoint/([^/]+)/variant/([^/]+)")


def key(p: Json) -> str:
    """Return what identifies a scalable target."""
    return f"{p['ResourceId']}|{p['ScalableDimension']}|{p['ServiceNamespace']}"


def _target(p: Json) -> Json:
    found: Json | None = targets.get(key(p))
    if found is None:
        raise ApiError(
            "ObjectNotFoundException",
            f"No scalable target registered for service namespace: {p['ServiceNamespace']}, "
            f"resource ID: {p['ResourceId']}, scalable dimension: {p['ScalableDimension']}",
        )
    return found


def _register(p: Json) -> Json:
    if p["ServiceNamespace"] == "sagemaker":
        match = _VARIANT.fullmatch(p["ResourceId"])
        found = endpoints.get(match[1]) if match else None
        if match is None or found is None or not found.fleet or match[2] not in found.fleet.counts:
            raise ApiError(
                "ValidationException", f"SageMaker resource doesn't exist: {p['ResourceId']}"
            )
    before = targets.get(key(p), {})
    merged = {**before, **p}
    if not before and not {"MinCapacity", "MaxCapacity"} <= set(merged):
        raise ApiError("ValidationException", "MinCapacity and MaxCapacity are required")
    if merged["MinCapacity"] > merged["MaxCapacity"]:
        raise ApiError("ValidationException", "Maximum capacity cannot be less than minimum")
    identity = uuid.uuid4().hex
    arn = f"arn:aws:application-autoscaling:{get_region()}:{get_account_id()}"
    merged.setdefault("ScalableTargetARN", f"{arn}:scalable-target/{identity}")
    merged.setdefault("CreationTime", time.time())
    targets[key(p)] = merged
    return {"ScalableTargetARN": merged["ScalableTargetARN"]}


def _deregister(p: Json) -> Json:
    _target(p)
    del targets[key(p)]
    for store in (policies, actions):
        for name in [n for n, row in store.items() if key(row) == key(p)]:
            del store[name]
    return {}


def _put_policy(p: Json) -> Json:
    _target(p)
    name = f"{key(p)}|{p['PolicyName']}"
    arn = (
        f"arn:aws:autoscaling:{get_region()}:{get_account_id()}:scalingPolicy:{uuid.uuid4()}"
        f":resource/{p['ServiceNamespace']}/{p['ResourceId']}:policyName/{p['PolicyName']}"
    )
    fresh = {"PolicyARN": arn, "CreationTime": time.time(), "Alarms": []}
    policies[name] = {**fresh, **policies.get(name, {}), **p}
    return {"PolicyARN": policies[name]["PolicyARN"], "Alarms": []}


def _delete_policy(p: Json) -> Json:
    if f"{key(p)}|{p['PolicyName']}" not in policies:
        raise ApiError("ObjectNotFoundException", f"No scaling policy found: {p['PolicyName']}")
    del policies[f"{key(p)}|{p['PolicyName']}"]
    return {}


def _put_action(p: Json) -> Json:
    _target(p)
    name = f"{key(p)}|{p['ScheduledActionName']}"
    kept = actions.get(name, {})
    action = {**kept, **p}
    _check_action(action)
    arn = (
        f"arn:aws:autoscaling:{get_region()}:{get_account_id()}:scheduledAction:{uuid.uuid4()}"
        f":resource/{p['ServiceNamespace']}/{p['ResourceId']}"
        f":scheduledActionName/{p['ScheduledActionName']}"
    )
    actions[name] = {"ScheduledActionARN": arn, "CreationTime": time.time(), **action}
    return {}


def _check_action(action: Json) -> None:
    if not _SCHEDULE.fullmatch(action.get("Schedule", "")):
        raise ApiError(
            "ValidationException", f"Schedule {action.get('Schedule')!r} is not at, rate or cron"
        )
    zone = action.get("Timezone", "UTC")
    if zone not in zoneinfo.available_timezones():
        raise ApiError("ValidationException", f"Timezone {zone!r} is not known")
    capacity = action.get("ScalableTargetAction") or {}
    low, high = capacity.get("MinCapacity"), capacity.get("MaxCapacity")
    if low is None and high is None:
        raise ApiError("ValidationException", "MinCapacity or MaxCapacity is required")
    if low is not None and high is not None and low > high:
        raise ApiError("ValidationException", "Maximum capacity cannot be less than minimum")


def _delete_action(p: Json) -> Json:
    name = f"{key(p)}|{p['ScheduledActionName']}"
    if name not in actions:
        raise ApiError(
            "ObjectNotFoundException", f"No scheduled action found: {p['ScheduledActionName']}"
        )
    del actions[name]
    return {}


def _matching(rows: Any, p: Json) -> list[Json]:
    wanted = {
        name: p[name]
        for name in ("ServiceNamespace", "ResourceId", "ScalableDimension")
        if name in p
    }
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def _describe_targets(p: Json) -> Json:
    found = _matching(targets.values(), p)
    ids = p.get("ResourceIds")
    return {"ScalableTargets": [row for row in found if ids is None or row["ResourceId"] in ids]}


def _describe_policies(p: Json) -> Json:
    names = p.get("PolicyNames")
    found = _matching(policies.values(), p)
    return {
        "ScalingPolicies": [row for row in found if names is None or row["PolicyName"] in names]
    }


def _describe_actions(p: Json) -> Json:
    names = p.get("ScheduledActionNames")
    found = _matching(actions.values(), p)
    return {
        "ScheduledActions": [
            row for row in found if names is None or row["ScheduledActionName"] in names
        ]
    }


SERVICE_API = JsonService(
    "application-autoscaling",
    {
        "RegisterScalableTarget": _register,
        "DeregisterScalableTarget": _deregister,
        "DescribeScalableTargets": _describe_targets,
        "PutScalingPolicy": _put_policy,
        "DeleteScalingPolicy": _delete_policy,
        "DescribeScalingPolicies": _describe_policies,
        "PutScheduledAction": _put_action,
        "DeleteScheduledAction": _delete_action,
        "DescribeScheduledActions": _describe_actions,
        "DescribeScalingActivities": lambda p: {"ScalingActivities": []},
    },
)
