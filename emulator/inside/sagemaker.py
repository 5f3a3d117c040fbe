"""SageMaker: models, endpoint configurations and endpoints whose containers really run."""

from __future__ import annotations

import time
from typing import Any

from ministack.core.responses import AccountRegionScopedDict, get_account_id

from emulator.inside import fleet, roles, rollouts, supervision, transforms
from emulator.inside.containers import SERVICE, ContainerError, ModelData, find_image
from emulator.inside.endpoints import IN_PROGRESS, Endpoint, endpoints, in_background
from emulator.inside.services import ApiError, Json, JsonService

models: Any = AccountRegionScopedDict()
configs: Any = AccountRegionScopedDict()


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
    plan = rollouts.plan(made.deployment, instances=_instances(config))
    endpoints[name] = made
    _deploy(made, config, plan=plan, retained=fleet.Retained())
    in_background(f"supervise {name}", lambda: supervision.supervise(made))
    return {"EndpointArn": arn}


def _update_endpoint(p: Json) -> Json:
    found, config = endpoint(p["EndpointName"]), _config(p["EndpointConfigName"])
    if found.status in IN_PROGRESS:
        raise _invalid(f'Cannot update in-progress endpoint "{found.arn}".')
    if found.fleet is None:
        raise _invalid(f'Cannot update failed endpoint "{found.arn}"; delete it.')
    if found.config_name == config["EndpointConfigName"]:
        raise _invalid(
            "Cannot update endpoint with the currently in use endpoint configuration "
            f'"{config["EndpointConfigArn"]}".'
        )
    kept = found.deployment if p.get("RetainDeploymentConfig") else None
    deployment = p.get("DeploymentConfig", kept)
    retained = _retained(found.fleet, p)
    instances = sum(retained.counts.values()) or _instances(config)
    plan = rollouts.plan(deployment, instances=instances)
    found.deployment, found.status, found.failure = deployment, "Updating", None
    found.pending = {
        "EndpointConfigName": config["EndpointConfigName"],
        "ProductionVariants": [
            {"VariantName": variant["VariantName"]} for variant in config["ProductionVariants"]
        ],
        "StartTime": time.time(),
    }
    _deploy(found, config, plan=plan, retained=retained)
    return {"EndpointArn": found.arn}


def _instances(config: Json) -> int:
    return sum(variant.get("InitialInstanceCount", 1) for variant in config["ProductionVariants"])


def _retained(running: fleet.Fleet, p: Json) -> fleet.Retained:
    """Return what an update keeps of the running variants."""
    if not p.get("RetainAllVariantProperties"):
        return fleet.Retained()
    kinds = [row["VariantPropertyType"] for row in p.get("ExcludeRetainedVariantProperties", ())]
    return fleet.Retained(
        counts={} if "DesiredInstanceCount" in kinds else dict(running.counts),
        weights={} if "DesiredWeight" in kinds else dict(running.weights),
    )


def _deploy(
    found: Endpoint, config: Json, *, plan: rollouts.Plan, retained: fleet.Retained
) -> None:
    named = {fleet.model_name(variant) for variant in config["ProductionVariants"]}
    rollout = rollouts.Rollout(
        found,
        config=config,
        models={name: _model(name) for name in named},
        plan=plan,
        retained=retained,
    )
    in_background(f"deploy {found.name}", rollout.run)


def _delete_endpoint(p: Json) -> Json:
    found = endpoint(p["EndpointName"])
    if found.status in IN_PROGRESS:
        raise _invalid(f'Cannot update in-progress endpoint "{found.arn}".')
    found.status = "Deleting"

    def work() -> None:
        if found.fleet is not None:
            found.fleet.stop()
        del endpoints[found.name]

    in_background(f"delete {found.name}", work)
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
    if found.pending:
        shown["PendingDeploymentSummary"] = found.pending
    if found.fleet is not None:
        shown["ProductionVariants"] = [
            _variant_summary(variant, found.fleet) for variant in _variants(found.fleet)
        ]
    return shown


def _variants(running: fleet.Fleet) -> list[Json]:
    found: list[Json] = running.config["ProductionVariants"]
    return found


def _variant_summary(variant: Json, running: fleet.Fleet) -> Json:
    name = variant["VariantName"]
    weight = running.weights[name]
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
        found.fleet.weights[name] = wanted.get("DesiredWeight", found.fleet.weights[name])
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
    for job in transforms.jobs.values():
        if job.arn == arn:
            return {"Tags": job.request.get("Tags", [])}
    raise _invalid(f"{p['ResourceArn']} does not exist in account {get_account_id()}")


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
        "CreateTransformJob": lambda p: transforms.create(p, _model(p["ModelName"])),
        "DescribeTransformJob": lambda p: transforms.find(p["TransformJobName"]).shown,
        "StopTransformJob": transforms.stop,
        "ListTransformJobs": transforms.listing,
    },
)
