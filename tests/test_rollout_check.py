"""The check after a rollout, against botocore's stubs: every call checked, in order.

The stubs refuse a call that is not expected, has other parameters, or breaks the API's model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from botocore.stub import Stubber

from rollout_check.handlers import RolloutCheck
from rollout_check.request import BadRequest
from rollout_check.rollouts import MOVING, RolloutFailed, Rollouts
from tests.api_model import sagemaker_enum

ENDPOINT = "ballot-prod-decision"
OLD, NEW = "EndpointConfig-old", "EndpointConfig-new"
LOOKS = 4
REASON = "One or more configured alarm(s) went off: ballot-prod-decision-5xx"


def event(kind: str, config: str = NEW, *, known: str | None = None) -> dict[str, Any]:
    """Return what CloudFormation sends, as Provider hands it on."""
    return {
        "RequestType": kind,
        "ResourceProperties": {
            "ServiceToken": "arn",
            "EndpointName": ENDPOINT,
            "EndpointConfigName": config,
        },
        **({"PhysicalResourceId": known} if known else {}),
    }


def physical_id(config: str) -> str:
    return f"{ENDPOINT}/{config}"


@dataclass
class Aws:
    """The stubbed service, told what is going to be asked, in order."""

    sagemaker: Stubber
    pauses: list[None] = field(default_factory=list)

    def is_described(self, status: str, config: str, **more: Any) -> None:
        """Expect the endpoint to be looked up."""
        now = datetime(2027, 1, 1, tzinfo=UTC)
        answer = {
            "EndpointName": ENDPOINT,
            "EndpointArn": f"arn:aws:sagemaker:eu-west-1:123456789012:endpoint/{ENDPOINT}",
            "EndpointConfigName": config,
            "EndpointStatus": status,
            "CreationTime": now,
            "LastModifiedTime": now,
            **more,
        }
        self.sagemaker.add_response("describe_endpoint", answer, {"EndpointName": ENDPOINT})

    def refuses(self, code: str, message: str) -> None:
        """Expect the endpoint to be looked up, in vain."""
        self.sagemaker.add_client_error(
            "describe_endpoint", code, message, expected_params={"EndpointName": ENDPOINT}
        )

    def check(self) -> RolloutCheck:
        """Return the handler's object on the stubs."""
        rollouts = Rollouts(
            sagemaker=self.sagemaker.client,
            pause=lambda: self.pauses.append(None),
            most_looks=LOOKS,
        )
        return RolloutCheck(rollouts)


@pytest.fixture
def aws() -> Iterator[Aws]:
    client = boto3.client(
        "sagemaker",
        region_name="eu-west-1",
        aws_access_key_id="123456789012",
        aws_secret_access_key="x",
    )
    with Stubber(client) as stubber:
        yield Aws(stubber)
        stubber.assert_no_pending_responses()


@pytest.mark.parametrize(("kind", "known"), [("Create", None), ("Update", physical_id(OLD))])
def test_an_endpoint_that_runs_what_was_deployed_is_right(
    kind: str, known: str | None, aws: Aws
) -> None:
    aws.is_described("InService", NEW)
    answer = aws.check().on_event(event(kind, known=known))
    assert answer == {"PhysicalResourceId": physical_id(NEW)}
    assert aws.pauses == []


def test_a_silent_rollback_fails_the_stack_with_all_the_names(aws: Aws) -> None:
    aws.is_described("InService", OLD, FailureReason=REASON)
    with pytest.raises(RolloutFailed) as failed:
        aws.check().on_event(event("Update", known=physical_id(OLD)))
    assert str(failed.value) == (
        "the endpoint ballot-prod-decision is InService on the configuration EndpointConfig-old, "
        "but EndpointConfig-new was deployed: the update was rolled back. SageMaker says: "
        "One or more configured alarm(s) went off: ballot-prod-decision-5xx"
    )


def test_a_rollback_without_a_reason_says_where_to_look(aws: Aws) -> None:
    aws.is_described("InService", OLD)
    with pytest.raises(RolloutFailed, match="SageMaker says: nothing; see its alarms and its log"):
        aws.check().on_event(event("Update", known=physical_id(OLD)))


@pytest.mark.parametrize("status", ["Failed", "OutOfService", "Deleting"])
def test_the_right_configuration_out_of_service_fails(status: str, aws: Aws) -> None:
    aws.is_described(status, NEW, FailureReason="no capacity")
    with pytest.raises(RolloutFailed, match=f"is {status} on .* it does not serve.*no capacity"):
        aws.check().on_event(event("Create"))


@pytest.mark.parametrize("config", [OLD, NEW])
def test_a_way_back_that_failed_leaves_a_mix_in_service(config: str, aws: Aws) -> None:
    """DescribeEndpoint, EndpointStatus: in service with a mix of the old and new configurations."""
    aws.is_described("UpdateRollbackFailed", config, FailureReason="no capacity")
    with pytest.raises(RolloutFailed, match=r"serves from old and new instances.*no capacity"):
        aws.check().on_event(event("Update", known=physical_id(OLD)))


def test_a_rollback_on_its_way_is_waited_for_and_then_told(aws: Aws) -> None:
    aws.is_described("RollingBack", NEW)
    aws.is_described("Updating", NEW, PendingDeploymentSummary={"EndpointConfigName": OLD})
    aws.is_described("InService", OLD, FailureReason=REASON)
    with pytest.raises(RolloutFailed, match="the update was rolled back"):
        aws.check().on_event(event("Update", known=physical_id(OLD)))
    assert len(aws.pauses) == 2


@pytest.mark.parametrize("status", ["Updating", "SystemUpdating"])
def test_scaling_on_the_new_configuration_is_no_failure(status: str, aws: Aws) -> None:
    aws.is_described(status, NEW)
    assert aws.check().on_event(event("Update", known=physical_id(OLD))) == {
        "PhysicalResourceId": physical_id(NEW)
    }


def test_an_endpoint_that_never_comes_to_rest_is_given_up(aws: Aws) -> None:
    for _ in range(LOOKS):
        aws.is_described("Updating", OLD)
    with pytest.raises(RolloutFailed, match=r"is Updating on .*-old, .* it is still moving"):
        aws.check().on_event(event("Update", known=physical_id(OLD)))
    assert len(aws.pauses) == LOOKS - 1


def test_an_endpoint_that_somebody_deleted_is_named(aws: Aws) -> None:
    aws.refuses("ValidationException", f'Could not find endpoint "{ENDPOINT}".')
    with pytest.raises(RolloutFailed, match=r"there is no endpoint ballot-prod-decision: .*find"):
        aws.check().on_event(event("Create"))


def test_what_the_role_may_not_do_is_told_as_it_is(aws: Aws) -> None:
    aws.refuses("AccessDeniedException", "not authorized to perform: sagemaker:DescribeEndpoint")
    with pytest.raises(ClientError, match="not authorized"):
        aws.check().on_event(event("Create"))


def test_a_stack_that_goes_back_to_what_was_right_is_not_held_up(aws: Aws) -> None:
    """The update failed, so the resource kept its id; nothing is asked."""
    known = physical_id(OLD)
    assert aws.check().on_event(event("Update", OLD, known=known)) == {"PhysicalResourceId": known}


@pytest.mark.parametrize("known", [physical_id(OLD), physical_id(NEW)])
def test_a_delete_asks_nothing_and_keeps_the_id(known: str, aws: Aws) -> None:
    answer = aws.check().on_event(event("Delete", known=known))
    assert answer == {"PhysicalResourceId": known}


@pytest.mark.parametrize("name", ["EndpointName", "EndpointConfigName"])
def test_a_missing_property_is_named(name: str, aws: Aws) -> None:
    broken = event("Create")
    del broken["ResourceProperties"][name]
    with pytest.raises(BadRequest, match=f"the property {name} is missing"):
        aws.check().on_event(broken)


def test_every_status_that_passes_by_itself_is_one_of_the_api() -> None:
    statuses = sagemaker_enum("EndpointStatus")
    lasting = {"InService", "OutOfService", "Failed", "UpdateRollbackFailed", "Deleting"}
    assert set(MOVING) == set(statuses) - lasting
