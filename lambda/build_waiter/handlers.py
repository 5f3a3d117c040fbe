"""The two handlers: start what is needed, then say whether it is done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import boto3

from build_waiter import request
from build_waiter.builds import Builds
from build_waiter.request import BuildInputs, Wanted
from build_waiter.results import Results

Event = Mapping[str, Any]
Answer = dict[str, Any]


def on_event(event: Event, context: object) -> Answer:
    """Handle a create, an update or a delete; Provider passes the answer on to `is_complete`."""
    return BuildWaiter.connected().on_event(event)


def is_complete(event: Event, context: object) -> Answer:
    """Tell whether the event is done with, and what its attributes are; called until it is."""
    return BuildWaiter.connected().is_complete(event)


@dataclass(frozen=True)
class BuildWaiter:
    """Makes sure that a result is there, building it only if it is not."""

    builds: Builds
    results: Results

    @classmethod
    def connected(cls) -> BuildWaiter:
        """Return one that talks to AWS as the function's role."""
        return cls(
            Builds(codebuild=boto3.client("codebuild"), logs=boto3.client("logs")),
            Results(ecr=boto3.client("ecr"), s3=boto3.client("s3")),
        )

    def on_event(self, event: Event) -> Answer:
        """Stop what is no longer wanted, and start a build unless the result is there.

        Raises:
            BadRequest: the properties are malformed.
            BadResult: the result is there and malformed.
        """
        if event["RequestType"] == "Delete":
            self._stop_others(event, keep="")
            return {"PhysicalResourceId": request.physical_id(event)}
        inputs, wanted = request.build_inputs(event), request.wanted(event)
        self._stop_others(event, keep=inputs.inputs_hash)
        return {
            "PhysicalResourceId": request.physical_id(event),
            "BuildId": self._build_id(event, inputs, wanted),
        }

    def is_complete(self, event: Event) -> Answer:
        """Tell whether the build, if there is one, has ended and left what is wanted.

        Raises:
            BuildFailed: the build did not succeed.
            BadResult: it left nothing, or something else.
        """
        if event["RequestType"] == "Delete":
            return {"IsComplete": not self._running(event)}
        build_id = event.get("BuildId", "")
        if build_id and not self.builds.has_succeeded(build_id):
            return {"IsComplete": False}
        attributes = self.results.require(request.wanted(event))
        return {"IsComplete": True, "Data": {**attributes, "BuildId": build_id}}

    def _build_id(self, event: Event, inputs: BuildInputs, wanted: Wanted) -> str:
        if self.results.find(wanted) is not None:
            return ""
        for running in self.builds.running(inputs.project):
            if running.inputs_hash == inputs.inputs_hash:
                return running.build_id
        return self.builds.start(inputs, owner=request.owner(event), request_id=event["RequestId"])

    def _stop_others(self, event: Event, *, keep: str) -> None:
        for running in self._running(event):
            if running.inputs_hash != keep:
                self.builds.stop(running.build_id)

    def _running(self, event: Event) -> list[Any]:
        owner = request.owner(event)
        return [
            running
            for project in request.projects(event)
            for running in self.builds.running(project)
            if running.owner == owner
        ]
