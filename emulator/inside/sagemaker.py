"""SageMaker: models, endpoint configurations and endpoints whose containers really run."""

from __future__ import annotations

import contextvars
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ministack.core.responses import AccountRegionScopedDict, get_account_id

from emulator.inside import fleet, roles
from emulator.inside.containers import SERVICE, ContainerError, ModelData, find_image
from emulator.inside.services import ApiError, Json, JsonService

log = logging.getLogger("ballot.sagemaker")

models: Any = AccountRegionScopedDict()
configs: Any = AccountRegionScopedDict()
endpoints: Any = AccountRegionScopedDict()
IN_PROGRESS = ("Creating", "Updating", "Deleting")


@dataclass
class Endpoint:
    """An endpoint. What runs keeps running whatever happens to the stored configuration."""

    name: str
    arn: str
    config_name: str
    tags: list[Json]
    status: str = "Creating"
    failure: str | None = None
    created: float = field(default_factory=time.time)
    modified: float = field(default_factory=time.time)
    fleet: fleet.Fleet | None = None
    deployment: Json | None = None

    def settle(self, status: str, failure: str | None = None) -> None:
        """Reach a status that is not in progress."""
        self.failure, self.modified = failure, time.time()
        self.status = status


def _invalid(message: str) -> ApiError:
    return ApiError("ValidationException", message)


def _missing(kind: str, name: str) -> ApiError:
    return _invalid(f'Could not find {kind} "{roles.sagemaker_arn(kind.replace(" ", "-"), name)}".')


def _model(name: str) -> Json:
    found: Json | None = models.get(name)
    if found is None:
        raise _missing("model", name)
    return found


def _config(name: str) -> Json:
    found: Json | None = configs.get(name)
    if found is None:
        raise _missing("endpoint configuration", name)
    return found


def endpoint(name: str) -> Endpoint:
    """Return an endpoint.

    Raises:
        ApiError: there is none of that name.
    """
    found: Endpoint | None = endpoints.get(name)
    if found is None:
        raise _missing("endpoint", name)
    return found


def _create_model(p: Json) -> Json:
    name = p["ModelName"]
    arn = roles.sagemaker_arn("model", name)
    if name in models:
        raise _invalid(f'Cannot create already existing model "{arn}".')
    containers = [p["PrimaryContainer"]] if "PrimaryContainer" in p else p.get("Containers", [])
    if len(containers) != 1:
        raise _invalid("exactly one container is emulated: PrimaryContainer, or one in Containers")
    _check_access(containers[0], p.get("ExecutionRoleArn", ""))
    models[name] = {**p, "ModelArn": arn, "CreationTime": time.time()}
    return {"ModelArn": arn}


def _check_access(container: Json, role_arn: str) -> None:
    """Check what SageMaker checks when a model is created: role, image and model data."""
    try:
        credentials = roles.assume(role_arn, service=SERVICE, session="SageMaker")
    except roles.RoleError as error:
        raise _invalid(
            f"Could not assume role {role_arn}. Please ensure that the role exists and allows "
            f"principal '{SERVICE}' to assume the role. ({error})"
        ) from error
    try:
        find_image(container["Image"], credentials)
        data = ModelData.of(container)
        if data is not None:
            if data.is_prefix != data.uri.endswith("/"):
                raise _invalid(f"S3Uri {data.uri}: the URI of a prefix, and only that, ends in '/'")
            data.objects(roles.client("s3", credentials))
    except ContainerError as error:
        raise _invalid(str(error)) from error


def _delete_model(p: Json) -> Json:
    _model(p["ModelName"])
    del models[p["ModelName"]]
    return {}


def _create_endpoint_config(p: Json) -> Json:
    name = p["EndpointConfigName"]
    arn = roles.sagemaker_arn("endpoint-config", name)
    if name in configs:
        raise _invalid(f'Cannot create already existing endpoint configuration "{arn}".')
    for variant in p["ProductionVariants"]:
        _check_variant(variant)
    names = [variant["VariantName"] for variant in p["ProductionVariants"]]
    if len(set(names)) != len(names):
        raise _invalid("variant names must be unique")
    configs[name] = {**p, "EndpointConfigArn": arn, "CreationTime": time.time()}
    return {"EndpointConfigArn": arn}


def _check_variant(variant: Json) -> None:
    label = f"variant {variant['VariantName']}"
    kinds = [k for k in ("InstanceType", "InstancePools", "ServerlessConfig") if k in variant]
    if len(kinds) != 1:
        raise _invalid(
            f"{label}: exactly one of InstanceType, InstancePools and ServerlessConfig is needed"
        )
    if "ServerlessConfig" in variant:
        raise _invalid(f"{label}: serverless inference is not emulated")
    pools = variant.get("InstancePools", [])
    priorities = [pool["Priority"] for pool in pools]
    if len(set(priorities)) != len(priorities):
        raise _invalid(f"{label}: the pools' priorities must be unique")
    for name in {variant.get("ModelName"), *(p.get("ModelNameOverride") for p in pools)} - {None}:
        _model(str(name))


def _delete_endpoint_config(p: Json) -> Json:
    _config(p["EndpointConfigName"])
    del configs[p["EndpointConfigName"]]
    return {}


def _create_endpoint(p: Json) -> Json:
    name, config = p["EndpointName"], _config(p["EndpointConfigName"])
    arn = roles.sagemaker_arn("endpoint", name)
    if name in endpoints:
        raise _invalid(f'Cannot create already existing endpoint "{arn}".')
    made = Endpoint(name, arn, p["EndpointConfigName"], tags=p.get("Tags", []))
    made.deployment = p.get("DeploymentConfig")
    endpoints[name] = made
    _in_background(f"create {name}", lambda: _roll_out(made, config))
    return {"EndpointArn": arn}


def _update_endpoint(p: Json) -> Json:
    found, config = endpoint(p["EndpointName"]), _config(p["EndpointConfigName"])
    if found.status in IN_PROGRESS:
        raise _invalid(f'Cannot update in-progress endpoint "{found.arn}".')
    if found.fleet is None:
        raise _invalid(f'Cannot update failed endpoint "{found.arn}"; delete it.')
    found.status, found.failure = "Updating", None
    counts = dict(found.fleet.counts) if p.get("RetainAllVariantProperties") else {}
    _in_background(f"update {found.name}", lambda: _roll_out(found, config, counts=counts))
    return {"EndpointArn": found.arn}


def _roll_out(found: Endpoint, config: Json, *, counts: dict[str, int] | None = None) -> None:
    """Start a configuration's containers, then switch to them, then stop the old ones.

    What ran before goes on running when the new ones fail, as it does on SageMaker.
    """
    before = found.fleet
    try:
        named = {fleet.model_name(v) for v in config["ProductionVariants"]}
        after = fleet.launch(
            found.name,
            config,
            {name: _model(name) for name in named},
            is_wanted=lambda: endpoints.get(found.name) is found,
        )
    except (fleet.RolloutFailed, ApiError) as error:
        log.warning("endpoint %s: %s", found.name, error)
        found.settle("Failed" if before is None else "InService", str(error))
        return
    after.counts.update({k: v for k, v in (counts or {}).items() if k in after.counts})
    found.fleet, found.config_name = after, config["EndpointConfigName"]
    found.settle("InService")
    if before is not None:
        before.stop()


def _delete_endpoint(p: Json) -> Json:
    found = endpoint(p["EndpointName"])
    if found.status in IN_PROGRESS:
        raise _invalid(f'Cannot update in-progress endpoint "{found.arn}".')
    found.status = "Deleting"

    def work() -> None:
        if found.fleet is not None:
            found.fleet.stop()
        del endpoints[found.name]

    _in_background(f"delete {found.name}", work)
    return {}


def _describe_endpoint(p: Json) -> Json:
    found = endpoint(p["EndpointName"])
    shown: Json = {
        "EndpointName": found.name,
        "EndpointArn": found.arn,
        "EndpointConfigName": found.config_name,
        "EndpointStatus": found.status,
        "CreationTime": found.created,
        "LastModifiedTime": found.modified,
    }
    if found.failure:
        shown["FailureReason"] = found.failure
    if found.deployment:
        shown["LastDeploymentConfig"] = found.deployment
    if found.fleet is not None:
        shown["ProductionVariants"] = [
            _variant_summary(variant, found.fleet) for variant in _variants(found.fleet)
        ]
    return shown


def _variants(running: fleet.Fleet) -> list[Json]:
    found: list[Json] = running.config["ProductionVariants"]
    return found


def _variant_summary(variant: Json, running: fleet.Fleet) -> Json:
    name, weight = variant["VariantName"], variant.get("InitialVariantWeight", 1.0)
    count, container = running.counts[name], running.containers[name]
    summary: Json = {
        "VariantName": name,
        "DeployedImages": [
            {"SpecifiedImage": container.image_uri, "ResolvedImage": container.resolved_image}
        ],
        "CurrentWeight": weight,
        "DesiredWeight": weight,
        "CurrentInstanceCount": count,
        "DesiredInstanceCount": count,
    }
    if "InstancePools" in variant:
        # All capacity is always there, so all of it lands in the pool that is tried first.
        pools = sorted(variant["InstancePools"], key=lambda pool: pool["Priority"])
        summary["InstancePools"] = [
            {
                "InstanceType": pool["InstanceType"],
                "CurrentInstanceCount": count if pool is pools[0] else 0,
            }
            for pool in pools
        ]
    return summary


def _update_weights(p: Json) -> Json:
    found = endpoint(p["EndpointName"])
    if found.fleet is None or found.status != "InService":
        raise _invalid(f'Endpoint "{found.arn}" is not InService.')
    for wanted in p["DesiredWeightsAndCapacities"]:
        name = wanted["VariantName"]
        if name not in found.fleet.counts:
            raise _invalid(f"variant {name} does not exist")
        found.fleet.counts[name] = wanted.get("DesiredInstanceCount", found.fleet.counts[name])
    return {"EndpointArn": found.arn}


def _listed(rows: list[Json], p: Json, key: str) -> Json:
    wanted = p.get("NameContains", "")
    name = {"Models": "ModelName", "Endpoints": "EndpointName"}.get(key, "EndpointConfigName")
    return {key: [row for row in rows if wanted in row[name]]}


def _list_models(p: Json) -> Json:
    keys = ("ModelName", "ModelArn", "CreationTime")
    return _listed([{k: m[k] for k in keys} for m in models.values()], p, "Models")


def _list_endpoint_configs(p: Json) -> Json:
    keys = ("EndpointConfigName", "EndpointConfigArn", "CreationTime")
    rows = [{k: c[k] for k in keys} for c in configs.values()]
    return _listed(rows, p, "EndpointConfigs")


def _list_endpoints(p: Json) -> Json:
    status = p.get("StatusEquals")
    rows = [
        {
            "EndpointName": e.name,
            "EndpointArn": e.arn,
            "EndpointStatus": e.status,
            "CreationTime": e.created,
            "LastModifiedTime": e.modified,
        }
        for e in endpoints.values()
        if status in (None, e.status)
    ]
    return _listed(rows, p, "Endpoints")


def _list_tags(p: Json) -> Json:
    arn = p["ResourceArn"].lower()
    for record in (*models.values(), *configs.values()):
        if arn in (record.get("ModelArn"), record.get("EndpointConfigArn")):
            return {"Tags": record.get("Tags", [])}
    for found in endpoints.values():
        if found.arn == arn:
            return {"Tags": found.tags}
    raise _invalid(f"{p['ResourceArn']} does not exist in account {get_account_id()}")


def _in_background(name: str, work: Callable[[], None]) -> None:
    # The stores tell accounts apart by the request's context variables.
    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(work,), name=name, daemon=True).start()


SERVICE_API = JsonService(
    "sagemaker",
    {
        "CreateModel": _create_model,
        "DescribeModel": lambda p: _model(p["ModelName"]),
        "DeleteModel": _delete_model,
        "ListModels": _list_models,
        "CreateEndpointConfig": _create_endpoint_config,
        "DescribeEndpointConfig": lambda p: _config(p["EndpointConfigName"]),
        "DeleteEndpointConfig": _delete_endpoint_config,
        "ListEndpointConfigs": _list_endpoint_configs,
        "CreateEndpoint": _create_endpoint,
        "DescribeEndpoint": _describe_endpoint,
        "UpdateEndpoint": _update_endpoint,
        "UpdateEndpointWeightsAndCapacities": _update_weights,
        "DeleteEndpoint": _delete_endpoint,
        "ListEndpoints": _list_endpoints,
        "ListTags": _list_tags,
    },
)
