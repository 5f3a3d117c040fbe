"""Lists what an emulated account holds, by asking its services as anybody would."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from emulator.clients import make_client
from emulator.processes import marked

BOOTSTRAP_STACK = "CDKToolkit"


def leftovers(exports: Mapping[str, str], *, marker: str) -> dict[str, list[str]]:
    """Return the names of what is there, by kind, without what the bootstrap stack made."""
    with contextlib.ExitStack() as clients:

        def client(service: str) -> Any:
            return clients.enter_context(contextlib.closing(make_client(exports, service)))

        bootstrap = set(_bootstrap(client("cloudformation")))
        found = {kind: sorted(set(names) - bootstrap) for kind, names in _names(client)}
    found["processes"] = sorted(f"{pid} {command}" for pid, command in marked(marker).items())
    return found


def _bootstrap(cloudformation: Any) -> Iterator[str]:
    yield BOOTSTRAP_STACK
    stacks = cloudformation.list_stacks()["StackSummaries"]
    if any(
        stack["StackName"] == BOOTSTRAP_STACK and stack["StackStatus"] != "DELETE_COMPLETE"
        for stack in stacks
    ):
        pages = cloudformation.get_paginator("list_stack_resources")
        for page in pages.paginate(StackName=BOOTSTRAP_STACK):
            for resource in page["StackResourceSummaries"]:
                yield resource.get("PhysicalResourceId", "")


def _names(client: Callable[[str], Any]) -> Iterator[tuple[str, list[str]]]:
    def each(service: str, operation: str, key: str, name: str) -> list[str]:
        api = client(service)
        if api.can_paginate(operation):
            pages = list(api.get_paginator(operation).paginate())
        else:
            pages = [getattr(api, operation)()]
        return [row[name] if name else row for page in pages for row in page.get(key, ())]

    stacks = client("cloudformation").list_stacks()["StackSummaries"]
    yield "stacks", [s["StackName"] for s in stacks if s["StackStatus"] != "DELETE_COMPLETE"]
    yield "buckets", each("s3", "list_buckets", "Buckets", "Name")
    yield "repositories", each("ecr", "describe_repositories", "repositories", "repositoryName")
    yield "projects", each("codebuild", "list_projects", "projects", "")
    yield "roles", each("iam", "list_roles", "Roles", "RoleName")
    yield "log groups", each("logs", "describe_log_groups", "logGroups", "logGroupName")
    yield "functions", each("lambda", "list_functions", "Functions", "FunctionName")
    yield "state machines", each("stepfunctions", "list_state_machines", "stateMachines", "name")
    yield "models", each("sagemaker", "list_models", "Models", "ModelName")
    configs = each("sagemaker", "list_endpoint_configs", "EndpointConfigs", "EndpointConfigName")
    yield "endpoint configs", configs
    yield "endpoints", each("sagemaker", "list_endpoints", "Endpoints", "EndpointName")
    yield "transform jobs", _running_jobs(client("sagemaker"))
    alarms = each("cloudwatch", "describe_alarms", "MetricAlarms", "AlarmName")
    yield "alarms", alarms
    yield "dashboards", each("cloudwatch", "list_dashboards", "DashboardEntries", "DashboardName")
    yield "topics", each("sns", "list_topics", "Topics", "TopicArn")
    yield "subscriptions", each("sns", "list_subscriptions", "Subscriptions", "Endpoint")
    yield "metric filters", each("logs", "describe_metric_filters", "metricFilters", "filterName")
    yield "saved queries", each("logs", "describe_query_definitions", "queryDefinitions", "name")
    yield "budgets", _budgets(client)
    yield "keys", _keys(client("kms"))
    aliases = each("kms", "list_aliases", "Aliases", "AliasName")
    yield "key aliases", [name for name in aliases if not name.startswith("alias/aws/")]
    scaling = client("application-autoscaling")
    targets = scaling.describe_scalable_targets(ServiceNamespace="sagemaker")["ScalableTargets"]
    yield "scalable targets", [target["ResourceId"] for target in targets]
    policies = scaling.describe_scaling_policies(ServiceNamespace="sagemaker")["ScalingPolicies"]
    yield "scaling policies", [policy["PolicyName"] for policy in policies]
    actions = scaling.describe_scheduled_actions(ServiceNamespace="sagemaker")["ScheduledActions"]
    yield "scheduled actions", [action["ScheduledActionName"] for action in actions]


def _running_jobs(sagemaker: Any) -> list[str]:
    """Return the jobs that still run; SageMaker keeps the others' records for ever."""
    jobs = sagemaker.list_transform_jobs()["TransformJobSummaries"]
    return [
        job["TransformJobName"]
        for job in jobs
        if job["TransformJobStatus"] in ("InProgress", "Stopping")
    ]


def _budgets(client: Callable[[str], Any]) -> list[str]:
    account = client("sts").get_caller_identity()["Account"]
    found = client("budgets").describe_budgets(AccountId=account).get("Budgets", ())
    return [budget["BudgetName"] for budget in found]


def _keys(kms: Any) -> list[str]:
    """Return the customer's keys; one that waits for its deletion costs nothing and is gone."""
    keys = [row["KeyId"] for row in kms.list_keys()["Keys"]]
    described = [kms.describe_key(KeyId=key)["KeyMetadata"] for key in keys]
    return [
        key["KeyId"]
        for key in described
        if key["KeyManager"] == "CUSTOMER" and key["KeyState"] != "PendingDeletion"
    ]
