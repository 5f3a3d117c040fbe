"""What watches an environment as a whole: topic, dashboard, saved queries, budget."""

from __future__ import annotations

from collections.abc import Mapping

import aws_cdk as cdk
from aws_cdk import aws_budgets as budgets
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions
from constructs import Construct

from stacks.dashboard import dashboard_body
from stacks.endpoint_metrics import EndpointMetrics, RequestMetrics
from stacks.environment import Environment
from stacks.log_queries import QUERIES
from stacks.tags import ENVIRONMENT_TAG

# Shares of the budget, in percent: of what was spent, and of what the month will come to.
ACTUAL_PERCENT = (80, 100)
FORECAST_PERCENT = 100


class EnvironmentMonitoring(Construct):
    """Watches an environment: `topic_arn` is whom its endpoints' alarms tell.

    A topic made here goes by its name there: CloudFormation would not let it go for another while
    an endpoint's stack imports it. The log groups are those of the endpoints, by name.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        settings: Environment,
        log_groups: Mapping[str, logs.ILogGroup],
        key: kms.IKey | None,
    ) -> None:
        super().__init__(scope, id)
        self._settings = settings
        self._log_groups = {
            endpoint.name: log_groups[endpoint.name]
            for endpoint in settings.endpoints
            if endpoint.kind == "decision"
        }
        self.topic: sns.Topic | None = None
        if settings.monitoring.topic_arn:
            self.topic_arn = settings.monitoring.topic_arn
        else:
            self.topic = self._make_topic(key)
            self.topic_arn = cdk.Stack.of(self).format_arn(service="sns", resource=self._topic_name)
        self._make_request_metrics()
        self._make_dashboard()
        self._make_queries()
        self._make_budget()

    @property
    def exported(self) -> list[str]:
        """What stacks of others may import."""
        return [self.topic.topic_arn] if self.topic else []

    @property
    def _topic_name(self) -> str:
        return f"ballot-{self._settings.name}-alarms"

    def _make_topic(self, key: kms.IKey | None) -> sns.Topic:
        # The key that AWS manages for SNS lets no alarm publish; without one of the account's own
        # the topic has none. What alarms say is no secret: names, thresholds, values.
        topic = sns.Topic(
            self,
            "Topic",
            topic_name=self._topic_name,
            display_name=f"Ballot {self._settings.name}",
            master_key=key,
            enforce_ssl=True,
        )
        for publisher in self._publishers():
            topic.add_to_resource_policy(_may_publish(publisher, topic))
            if key:
                key.add_to_resource_policy(_may_encrypt(publisher))
        for address in self._settings.monitoring.alarm_emails:
            topic.add_subscription(subscriptions.EmailSubscription(address))
        return topic

    def _publishers(self) -> list[iam.ServicePrincipal]:
        """Return the services that publish, each held to what this account owns."""
        stack = cdk.Stack.of(self)
        sources = {
            "cloudwatch": f"{stack.region}:{stack.account}:alarm:ballot-{self._settings.name}-*"
        }
        if self._settings.monitoring.monthly_budget_usd is not None:
            sources["budgets"] = f":{stack.account}:*"
        return [
            iam.ServicePrincipal(
                f"{service}.amazonaws.com",
                conditions={
                    "StringEquals": {"aws:SourceAccount": stack.account},
                    "ArnLike": {"aws:SourceArn": f"arn:{stack.partition}:{service}:{source}"},
                },
            )
            for service, source in sources.items()
        ]

    def _make_request_metrics(self) -> None:
        for name, group in self._log_groups.items():
            RequestMetrics(
                self,
                f"Requests-{name}",
                log_group=group,
                namespace=EndpointMetrics(self._settings.name, name).request_namespace,
            )

    def _make_dashboard(self) -> None:
        stack = cdk.Stack.of(self)
        body = dashboard_body(
            self._settings.name,
            self._settings.endpoints,
            region=stack.region,
            alarm_arn_prefix=f"arn:{stack.partition}:cloudwatch:{stack.region}:{stack.account}"
            ":alarm:",
        )
        cloudwatch.CfnDashboard(
            self,
            "Dashboard",
            dashboard_name=f"ballot-{self._settings.name}",
            dashboard_body=stack.to_json_string(body),
        )

    def _make_queries(self) -> None:
        groups = [group.log_group_name for group in self._log_groups.values()]
        for name, query in QUERIES.items() if groups else ():
            logs.CfnQueryDefinition(
                self,
                f"Query-{name}",
                name=f"ballot/{self._settings.name}/{name}",
                query_string=query,
                log_group_names=groups,
            )

    def _make_budget(self) -> None:
        limit = self._settings.monitoring.monthly_budget_usd
        if limit is None:
            return
        thresholds = [("ACTUAL", percent) for percent in ACTUAL_PERCENT]
        thresholds.append(("FORECASTED", FORECAST_PERCENT))
        # It has no name of its own: most changes replace it, and two cannot have the same.
        budget = budgets.CfnBudget(
            self,
            "Budget",
            budget=budgets.CfnBudget.BudgetDataProperty(
                budget_type="COST",
                time_unit="MONTHLY",
                budget_limit=budgets.CfnBudget.SpendProperty(amount=limit, unit="USD"),
                cost_filters={"TagKeyValue": [f"user:{ENVIRONMENT_TAG}${self._settings.name}"]},
            ),
            notifications_with_subscribers=[
                self._notification(kind, percent) for kind, percent in thresholds
            ],
        )
        if self.topic:
            # A budget is refused while it may not publish.
            budget.node.add_dependency(self.topic)

    def _notification(
        self, kind: str, percent: float
    ) -> budgets.CfnBudget.NotificationWithSubscribersProperty:
        return budgets.CfnBudget.NotificationWithSubscribersProperty(
            notification=budgets.CfnBudget.NotificationProperty(
                notification_type=kind,
                comparison_operator="GREATER_THAN",
                threshold=percent,
                threshold_type="PERCENTAGE",
            ),
            subscribers=[
                budgets.CfnBudget.SubscriberProperty(
                    subscription_type="SNS", address=self.topic_arn
                )
            ],
        )


def _may_publish(publisher: iam.IPrincipal, topic: sns.ITopic) -> iam.PolicyStatement:
    return iam.PolicyStatement(
        principals=[publisher], actions=["sns:Publish"], resources=[topic.topic_arn]
    )


def _may_encrypt(publisher: iam.IPrincipal) -> iam.PolicyStatement:
    return iam.PolicyStatement(
        principals=[publisher], actions=["kms:Decrypt", "kms:GenerateDataKey*"], resources=["*"]
    )
