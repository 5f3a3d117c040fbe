"""What SageMaker's batch transform asks before it sends anything: how much, how many at once."""

from __future__ import annotations

from typing import Any

from adapter.settings import Settings

# While one request's lines are scored, the next one's body arrives: the one worker never waits.
# More at once would only make each of them slower, and nearer to the job's own time-out.
REQUESTS_AT_ONCE = 2
# SageMaker allows a job no more than this in all the payloads that are under way.
MAX_MB_AT_ONCE = 100


def execution_parameters(settings: Settings) -> dict[str, Any]:
    """Return the answer of `/execution-parameters`.

    SageMaker knows payloads of whole megabytes, from one on. Where `BALLOT_MAX_BODY_BYTES` is less
    than that, a payload may be refused as too large.
    """
    requests = min(REQUESTS_AT_ONCE, settings.max_queue + 1)
    megabytes = min(settings.max_body_bytes >> 20, MAX_MB_AT_ONCE // requests)
    return {
        "MaxConcurrentTransforms": requests,
        "BatchStrategy": "MULTI_RECORD",
        "MaxPayloadInMB": max(1, megabytes),
    }
