"""What CloudFormation lacks in ministack: resources that it does not have, and two mended ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from ministack.core.responses import get_account_id
from ministack.services import budgets, s3
from ministack.services.cloudformation import provisioners, stacks

from emulator.inside import autoscaling, sagemaker, saved_queries
from emulator.inside.codebuild import keep_template_settings
from emulator.inside.config import CONFIG
from emulator.inside.endpoints import IN_PROGRESS, Endpoint, endpoints
from emulator.inside.services import ApiError, Json
from emulator.inside.validation import input_members, problems

Created = tuple[str, Json]
_POLL_SECONDS = 0.1
_SERIAL = "AWS::SageMaker::"
_UPDATE_ONLY = (
    "ExcludeRetainedVariantProperties",
    "RetainAllVariantProperties",
    "RetainDeploymentConfig",
)
_UPDATED = ("EndpointConfigName", "DeploymentConfig", *_UPDATE_ONLY)


def _name_key(kind: str) -> str:
    return f"{kind}Name"


def _store(kind: str) -> Any:
    return {
        "Model": sagemaker.models,
        "EndpointConfig": sagemaker.configs,
        "Endpoint": endpoints,
    }[kind]


def _call(operation: str, parameters: Json) -> Json:
    try:
        return sagemaker.SERVICE_API.call(operation, parameters)
    except ApiError as error:
        raise ValueError(f"{error.message} (Service: SageMaker, Code: {error.code})") from error


def _name_of(kind: str, arn: str) -> str | None:
    for name, record in list(_store(kind).items()):
        found = record.arn if kind == "Endpoint" else record[f"{kind}Arn"]
        if found == arn:
            return str(name)
    return None


def _create(kind: str, properties: Json, logical_id: str, stack: str) -> Created:
    key = _name_key(kind)
    parameters = {k: v for k, v in properties.items() if k not in _UPDATE_ONLY}
    parameters.setdefault(key, provisioners._physical_name(stack, logical_id, max_len=63))
    arn = _call(f"Create{kind}", parameters)[f"{kind}Arn"]
    return arn, {key: parameters[key], f"{kind}Arn": arn}


def _delete(kind: str, arn: str) -> None:
    if name := _name_of(kind, arn):
        _call(f"Delete{kind}", {_name_key(kind): name})


def _settled(name: str) -> Endpoint | None:
    """Wait for an endpoint to leave its transition; None when it is gone."""
    while True:
        found: Endpoint | None = endpoints.get(name)
        if found is None or found.status not in IN_PROGRESS:
            return found
        time.sleep(_POLL_SECONDS)


def _create_endpoint(logical_id: str, properties: Json, stack: str) -> Created:
    created = _create("Endpoint", properties, logical_id, stack)
    name = created[1]["EndpointName"]
    found = _settled(name)
    if found is None or found.status != "InService":
        reason = found.failure if found else "it was deleted"
        # Nobody would know of it: a failed creation has no physical id to roll back.
        _delete_endpoint(created[0])
        raise ValueError(f"Endpoint {name} did not reach InService: {reason}")
    return created


def _update_endpoint(arn: str, old: Json, new: Json, stack: str) -> Created:
    name = _name_of("Endpoint", arn)
    if name is None:
        raise ValueError(f"{arn} does not exist")
    # It compares what its templates say, and does not look at what is live.
    if _only(old, _UPDATED) != _only(new, _UPDATED):
        _roll_out(name, _only(new, _UPDATED))
    endpoints[name].tags = new.get("Tags", [])
    return arn, {"EndpointName": name, "EndpointArn": arn}


def _roll_out(name: str, properties: Json) -> None:
    _settled(name)
    _call("UpdateEndpoint", {"EndpointName": name, **properties})
    found = _settled(name)
    went_back = found is None or found.config_name != properties["EndpointConfigName"]
    if found is None or (went_back and not CONFIG.rolls_back_silently):
        raise ValueError(
            f"Endpoint {name} kept its configuration, the update failed: "
            f"{found.failure if found else 'it was deleted'}"
        )


def _delete_endpoint(arn: str) -> None:
    if name := _name_of("Endpoint", arn):
        if _settled(name) is not None:
            _call("DeleteEndpoint", {"EndpointName": name})
        _settled(name)


def _update_tags(kind: str) -> Callable[[str, Json, Json, str], Created]:
    def update(arn: str, old: Json, new: Json, stack: str) -> Created:
        name = _name_of(kind, arn)
        if name is not None:
            _store(kind)[name]["Tags"] = new.get("Tags", [])
        return arn, {_name_key(kind): name, f"{kind}Arn": arn}

    return update


def _install_sagemaker() -> None:
    handlers = provisioners._RESOURCE_HANDLERS
    replacing = provisioners._REPLACING_PROPERTIES
    for kind in ("Model", "EndpointConfig"):
        handlers[f"AWS::SageMaker::{kind}"] = {
            "create": lambda i, p, s, kind=kind: _create(kind, p, i, s),
            "update": _update_tags(kind),
            "delete": lambda arn, _, kind=kind: _delete(kind, arn),
        }
        members = input_members("sagemaker", f"Create{kind}")
        replacing[f"AWS::SageMaker::{kind}"] = tuple(sorted(members - {"Tags"}))
    handlers["AWS::SageMaker::Endpoint"] = {
        "create": _create_endpoint,
        "update": _update_endpoint,
        "delete": lambda arn, _: _delete_endpoint(arn),
    }
    replacing["AWS::SageMaker::Endpoint"] = ("EndpointName",)
    for kind in ("Model", "EndpointConfig", "Endpoint"):
        provisioners._STACK_TAG_PROPERTY[f"AWS::SageMaker::{kind}"] = ("Tags", "list")
    inner = stacks._runs_on_worker_thread
    # They ask ECR and S3, which the event loop must be free to answer, and wait for containers.
    stacks._runs_on_worker_thread = lambda kind: kind.startswith(_SERIAL) or inner(kind)


def _scaling(operation: str, parameters: Json) -> Json:
    try:
        return autoscaling.SERVICE_API.call(operation, parameters)
    except ApiError as error:
        raise ValueError(f"{error.message} (Service: ApplicationAutoScaling)") from error


def _only(properties: Json, names: Iterable[str]) -> Json:
    return {name: properties[name] for name in names if name in properties}


def _target_key(identity: str) -> Json:
    resource, dimension, namespace = identity.split("|")
    return {
        "ResourceId": resource,
        "ScalableDimension": dimension,
        "ServiceNamespace": namespace,
    }


def _create_target(logical_id: str, properties: Json, stack: str) -> Created:
    members = input_members("application-autoscaling", "RegisterScalableTarget")
    _scaling("RegisterScalableTarget", _only(properties, members - {"Tags"}))
    identity = autoscaling.key(properties)
    _keep_schedule(_target_key(identity), properties.get("ScheduledActions", []))
    return identity, {"Id": identity}


def _keep_schedule(target: Json, wanted: list[Json]) -> None:
    """Put a target's scheduled actions, and delete those that its template no longer has."""
    names = [action["ScheduledActionName"] for action in wanted]
    for action in _scaling("DescribeScheduledActions", target)["ScheduledActions"]:
        if action["ScheduledActionName"] not in names:
            name = _only(action, ("ScheduledActionName",))
            _scaling("DeleteScheduledAction", {**target, **name})
    for action in wanted:
        _scaling("PutScheduledAction", {**target, **action})


def _delete_target(identity: str, _: Json) -> None:
    if identity in autoscaling.targets:
        _scaling("DeregisterScalableTarget", _target_key(identity))


def _policy_parameters(properties: Json) -> Json:
    members = input_members("application-autoscaling", "PutScalingPolicy")
    parameters = _only(properties, members)
    if "ScalingTargetId" in properties:
        parameters.update(_target_key(properties["ScalingTargetId"]))
    return parameters


def _create_policy(logical_id: str, properties: Json, stack: str) -> Created:
    arn = _scaling("PutScalingPolicy", _policy_parameters(properties))["PolicyARN"]
    return arn, {"Arn": arn}


def _delete_policy(arn: str, properties: Json) -> None:
    names = ("PolicyName", "ResourceId", "ScalableDimension", "ServiceNamespace")
    parameters = _only(_policy_parameters(properties), names)
    if any(policy["PolicyARN"] == arn for policy in autoscaling.policies.values()):
        _scaling("DeleteScalingPolicy", parameters)


def _install_scaling() -> None:
    handlers = provisioners._RESOURCE_HANDLERS
    handlers["AWS::ApplicationAutoScaling::ScalableTarget"] = {
        "create": _create_target,
        "update": lambda i, old, new, stack: _create_target(i, new, stack),
        "delete": _delete_target,
    }
    handlers["AWS::ApplicationAutoScaling::ScalingPolicy"] = {
        "create": _create_policy,
        "update": lambda i, old, new, stack: _create_policy(i, new, stack),
        "delete": _delete_policy,
    }
    identity = ("ResourceId", "ScalableDimension", "ServiceNamespace")
    replacing = provisioners._REPLACING_PROPERTIES
    replacing["AWS::ApplicationAutoScaling::ScalableTarget"] = identity
    replacing["AWS::ApplicationAutoScaling::ScalingPolicy"] = ("PolicyName", *identity)


def _budget_parameters(name: str, properties: Json) -> Json:
    budget = {**properties["Budget"], "BudgetName": name}
    if limit := budget.get("BudgetLimit"):
        budget["BudgetLimit"] = {**limit, "Amount": str(limit["Amount"])}
    parameters = {**properties, "AccountId": get_account_id(), "Budget": budget}
    if found := problems("budgets", "CreateBudget", parameters):
        raise ValueError("; ".join(found))
    return parameters


def _answered(answer: tuple[int, Any, Any]) -> None:
    if answer[0] >= 400:
        raise ValueError(f"{answer[2]!r} (Service: Budgets)")


def _create_budget(logical_id: str, properties: Json, stack: str) -> Created:
    name = properties["Budget"].get("BudgetName")
    name = name or provisioners._physical_name(stack, logical_id, max_len=100)
    _answered(budgets._create_budget(_budget_parameters(name, properties)))
    return name, {}


def _update_budget(name: str, old: Json, new: Json, stack: str) -> Created:
    parameters = _budget_parameters(name, new)
    _answered(budgets._update_budget({**parameters, "NewBudget": parameters["Budget"]}))
    return name, {}


def _install_budgets() -> None:
    provisioners._RESOURCE_HANDLERS["AWS::Budgets::Budget"] = {
        "create": _create_budget,
        "update": _update_budget,
        "delete": lambda name, _: budgets._delete_budget({"BudgetName": name}),
    }
    provisioners._REPLACING_PROPERTIES["AWS::Budgets::Budget"] = (
        "NotificationsWithSubscribers",
        "ResourceTags",
    )


def _query_parameters(properties: Json) -> Json:
    members = input_members("logs", "PutQueryDefinition")
    return {member: properties[name] for name, member in _upper(members) if name in properties}


def _upper(members: Iterable[str]) -> list[tuple[str, str]]:
    """Return the names that a template has for an API's members, beside those."""
    return [(member[0].upper() + member[1:], member) for member in members]


def _put_query(properties: Json, **more: str) -> Created:
    try:
        found = saved_queries.SERVICE_API.call(
            "PutQueryDefinition", {**_query_parameters(properties), **more}
        )
    except ApiError as error:
        raise ValueError(f"{error.message} (Service: CloudWatchLogs)") from error
    identity = found["queryDefinitionId"]
    return identity, {"QueryDefinitionId": identity}


def _install_queries() -> None:
    provisioners._RESOURCE_HANDLERS["AWS::Logs::QueryDefinition"] = {
        "create": lambda logical_id, properties, stack: _put_query(properties),
        "update": lambda i, old, new, stack: _put_query(new, queryDefinitionId=i),
        "delete": lambda identity, _: saved_queries.queries.pop(identity, None),
    }


def _install_buckets() -> None:
    """Keep a bucket's tags, by which CDK's auto-delete knows it, and refuse to drop its objects."""
    handler = provisioners._RESOURCE_HANDLERS["AWS::S3::Bucket"]
    create, update, delete = handler["create"], handler["update"], handler["delete"]

    def keep_tags(name: str, properties: Json) -> None:
        if tags := properties.get("Tags"):
            s3._bucket_tags[name] = {tag["Key"]: tag["Value"] for tag in tags}
        else:
            s3._bucket_tags.pop(name, None)

    def tagged_create(logical_id: str, properties: Json, stack: str) -> Created:
        created: Created = create(logical_id, properties, stack)
        keep_tags(created[0], properties)
        return created

    def tagged_update(name: str, old: Json, new: Json, stack: str) -> Created:
        updated: Created = update(name, old, new, stack)
        keep_tags(updated[0], new)
        return updated

    def refusing_delete(name: str, properties: Json) -> None:
        bucket = s3._buckets.get(name)
        if bucket is not None and (bucket["objects"] or s3._bucket_has_versions(name)):
            raise ValueError(
                "The bucket you tried to delete is not empty. You must delete all versions in the "
                "bucket. (Service: S3, Status Code: 409)"
            )
        delete(name, properties)

    handler.update(create=tagged_create, update=tagged_update, delete=refusing_delete)


def _install_projects() -> None:
    handler = provisioners._RESOURCE_HANDLERS["AWS::CodeBuild::Project"]
    create, update = handler["create"], handler["update"]

    def keeping_create(logical_id: str, properties: Json, stack: str) -> Created:
        created: Created = create(logical_id, properties, stack)
        keep_template_settings(created[0], properties)
        return created

    def keeping_update(name: str, old: Json, new: Json, stack: str) -> Created:
        updated: Created = update(name, old, new, stack)
        keep_template_settings(updated[0], new)
        return updated

    handler.update(create=keeping_create, update=keeping_update)


def install() -> None:
    """Register the resources' handlers."""
    _install_sagemaker()
    _install_scaling()
    _install_budgets()
    _install_queries()
    _install_buckets()
    _install_projects()
