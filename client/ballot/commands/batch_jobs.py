"""`ballot batch submit|wait|fetch|stop|list`: bulk work on SageMaker batch transform."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.text import Text

from ballot.batch.lines import look_at
from ballot.commands.batch_options import Input, JobName, OutputFile, check_output_name
from ballot.commands.batch_summary import Summary
from ballot.commands.decide import print_json
from ballot.commands.explain import Problem, Unusable
from ballot.commands.inventory import Inventory
from ballot.commands.options import AsJson, Region
from ballot.commands.output_file import check_new
from ballot.commands.screen import make_console, printable
from ballot.commands.status import Status
from ballot.commands.transform_jobs import ENDED, Fetched, Job, Request, TransformJobs
from ballot.errors import DeadlineExceeded

_FIRST_POLL_SECONDS, _LAST_POLL_SECONDS = 1.0, 15.0

Endpoint = Annotated[
    str,
    typer.Option("-e", "--endpoint", metavar="NAME", help="The endpoint whose model answers."),
]


def submit(
    source: Input,
    endpoint: Endpoint,
    location: Annotated[
        str | None,
        typer.Option("--s3", metavar="URI", help="Where to put it; else beside the models."),
    ] = None,
    instance_type: Annotated[
        str | None,
        typer.Option("--instance-type", metavar="TYPE", help="Else the endpoint's first."),
    ] = None,
    instances: Annotated[
        int, typer.Option("--instances", metavar="N", help="How many share the work.")
    ] = 1,
    as_json: AsJson = False,
    region: Region = None,
) -> None:
    """Start a batch transform job on a file of requests.

    \b
    ballot batch submit requests.jsonl -e ballot-dev-decision
    ballot batch submit requests.jsonl -e ballot-dev-decision --instances 4

    Not the endpoint is asked but its model, on instances of the job's own. That takes
    a packed model: "batch": true for it in cdk.json.

    Needs sagemaker:DescribeEndpoint, DescribeEndpointConfig, DescribeModel, ListTags,
    AddTags, CreateTransformJob and DescribeTransformJob; s3:PutObject under batch/.
    Under a key of your own also kms:CreateGrant, DescribeKey, Decrypt, GenerateDataKey.
    """
    looked_at = look_at(source)
    request = Request(
        source=looked_at,
        endpoint=Inventory(region).endpoint(endpoint),
        location=location,
        instance_type=instance_type,
        instances=instances,
    )
    job = TransformJobs(region).submit(request)
    if as_json:
        print_json({**job.as_json(), "lines": looked_at.lines})
        return
    print(printable(job.name))
    print(
        f"{looked_at.lines} lines on {job.instances} x {job.instance_type}; "
        f"`ballot batch wait {job.name}` waits for them",
        file=sys.stderr,
    )


def wait(
    job: JobName,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", metavar="SECONDS", help="Give up waiting after so long."),
    ] = None,
    as_json: AsJson = False,
    region: Region = None,
) -> Status:
    """Wait for a job's end, and say how it ended.

    \b
    ballot batch wait ballot-dev-decision-20260131-120000-1f2e

    Exit status 1: it failed, or was stopped. The job goes on if this is interrupted.

    Needs sagemaker:DescribeTransformJob.
    """
    if timeout is not None and not 0 < timeout < math.inf:
        raise Unusable(f"--timeout {timeout:g} is no time", advice="give seconds")
    jobs_of_aws = TransformJobs(region)
    with _watching() as watch:
        ended = _await_end(jobs_of_aws, job, timeout, watch)
    if as_json:
        print_json(ended.as_json())
    else:
        _show(ended)
    return Status.OK if ended.status == "Completed" else Status.FAILED


def fetch(
    job: JobName,
    output: OutputFile,
    as_json: AsJson = False,
    region: Region = None,
) -> Status:
    """Fetch the answers of a job that has ended.

    \b
    ballot batch fetch ballot-dev-decision-20260131-120000-1f2e -o answers.jsonl

    The file is written once it is whole: a line for each line of the input, in order.
    Exit status 1: some lines got an error, and the output says which. Of a job that
    has failed, or was stopped, those without an answer have the error not_answered.

    Needs sagemaker:DescribeTransformJob; s3:ListBucket and GetObject under batch/.
    Under a key of your own also kms:Decrypt.
    """
    check_output_name(output)
    check_new(output)
    if not output.absolute().parent.is_dir():
        raise Unusable(f"there is no folder for {output}", advice="make it, or name another")
    jobs_of_aws = TransformJobs(region)
    found = jobs_of_aws.find(job)
    fetched = jobs_of_aws.fetch(found, output.absolute()) if found.status in ENDED else None
    if fetched is None:
        raise Problem(
            f"{found.name} is {found.status}, and has no answers",
            advice=f"`ballot batch wait {found.name}` waits, and says why it failed if it did",
        )
    summary = Summary(output=output, now=fetched.tally, seconds=found.seconds)
    status = summary.show(as_json=as_json)
    if fetched.missing:
        print(f"ballot: {_missing(found, fetched)}", file=sys.stderr)
    return status


def stop(job: JobName, as_json: AsJson = False, region: Region = None) -> None:
    """Stop a job; the parts that it has finished can still be fetched.

    Needs sagemaker:DescribeTransformJob and StopTransformJob.
    """
    found = TransformJobs(region).stop(job)
    if as_json:
        print_json(found.as_json())
    else:
        _show(found)


def jobs(endpoint: Endpoint, as_json: AsJson = False, region: Region = None) -> None:
    """List an endpoint's jobs, newest first.

    Needs sagemaker:ListTransformJobs.
    """
    found = list(TransformJobs(region).of_endpoint(endpoint))
    if as_json:
        print_json(found)
        return
    for job in found:
        print(printable(f"{job['name']}  {job['status']}  {job['created'][:16]} UTC"))


def _missing(job: Job, fetched: Fetched) -> str:
    """Say which lines of the input have no answer, so that `sed -n` finds them."""
    lines = ";".join(f"{first},{last}p" for first, last in fetched.missing)
    return (
        f"{printable(job.name)} is {job.status}, and did not answer these lines: `sed -n "
        f"'{lines}' INPUT` has them, to submit or, with `ballot batch run --again`, to ask now"
    )


def _await_end(
    jobs_of_aws: TransformJobs,
    name: str,
    timeout: float | None,
    watch: Callable[[Job], None],
) -> Job:
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    pause = _FIRST_POLL_SECONDS
    while (job := jobs_of_aws.find(name)).status not in ENDED:
        watch(job)
        left = deadline - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded(
                f"{name} is still {job.status} after {timeout:g} s", code="still_running"
            )
        time.sleep(min(pause, left))
        pause = min(2 * pause, _LAST_POLL_SECONDS)
    return job


@contextmanager
def _watching() -> Iterator[Callable[[Job], None]]:
    """Show what is waited for on a terminal, and nothing in a pipe."""
    console = make_console(sys.stderr)
    if not console.is_terminal:
        yield lambda job: None
        return
    with console.status("") as status:
        yield lambda job: status.update(Text(printable(_line(job))))


def _show(job: Job) -> None:
    print(printable(_line(job)))
    if job.failure_reason:
        print(f"  {printable(job.failure_reason)}")


def _line(job: Job) -> str:
    worked = f", {job.seconds:.0f} s" if job.seconds is not None else ""
    return f"{job.name}: {job.status} on {job.instances} x {job.instance_type}{worked}"
