"""The handler: look at the endpoint after it was created or updated, and not when it goes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import boto3

from rollout_check import request
from rollout_check.rollouts import Rollouts

Event = Mapping[str, Any]
Answer = dict[str, Any]

# CloudFormation has waited for the endpoint already; what may still move is its size.
PAUSE_SECONDS = 10
MOST_LOOKS = 60


def on_event(event: Event, context: object) -> Answer:
    """Handle a create, an update or a delete."""
    return RolloutCheck.connected().on_event(event)


@dataclass(frozen=True)
class RolloutCheck:
    """Makes sure that an endpoint runs the configuration that was deployed last."""

    rollouts: Rollouts

    @classmethod
    def connected(cls) -> RolloutCheck:
        """Return one that talks to AWS as the function's role."""
        return cls(
            Rollouts(
                sagemaker=boto3.client("sagemaker"),
                pause=lambda: time.sleep(PAUSE_SECONDS),
                most_looks=MOST_LOOKS,
            )
        )

    def on_event(self, event: Event) -> Answer:
        """Return the resource's id, which carries what was found right.

        A stack that is rolled back asks for what was right before, or deletes what is new: neither
        is looked at, for the endpoint may be in any state then, and the stack has failed already.

        Raises:
            BadRequest: the properties are malformed.
            RolloutFailed: the endpoint runs something else.
        """
        if event["RequestType"] == "Delete":
            return {"PhysicalResourceId": event["PhysicalResourceId"]}
        wanted = request.wanted(event)
        if event.get("PhysicalResourceId") != wanted.physical_id:
            self.rollouts.require(wanted)
        return {"PhysicalResourceId": wanted.physical_id}
