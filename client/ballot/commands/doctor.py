"""`ballot doctor`: finds out what is wrong between here and an answer, and what to do about it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Generic, TypeVar

import httpx
import typer
from rich.console import Console
from rich.text import Text

from ballot.client import Ballot
from ballot.commands.endpoints import environment_name
from ballot.commands.explain import CheckFailed, Unusable, explain
from ballot.commands.inventory import ANSWERING, DeployedEndpoint, DeployedModel, Inventory
from ballot.commands.options import (
    DEFAULT_TIMEOUT,
    EndpointName,
    Key,
    Region,
    Target,
    Timeout,
    Url,
)
from ballot.commands.render import LOW_MASS_MEANS, is_low, milliseconds
from ballot.commands.screen import make_console, print_hanging, printable
from ballot.commands.status import Status
from ballot.decision import Decision, Option
from ballot.errors import AccessDenied, BallotError
from ballot.faults import connection_fault
from ballot.results import Result

PROBE = Decision(
    id="ballot-doctor",
    state="The customer forgot the password and the reset email never arrived.",
    question="Which queue should handle this request?",
    options=(
        Option(id="account_access", description="Account access and authentication."),
        Option(id="billing", description="Billing and payments."),
    ),
)
_OF_A_DECISION = ("decision", "model", "token mass")
_TITLE_CELLS = 13
_SHOWN_DIGITS = 16
_PING_SECONDS = 5.0
Found = TypeVar("Found")


class Outcome(Enum):
    """What came of a check: its mark, the mark where there is only ASCII, and its style."""

    PASSED = ("✓", "+", "green")
    FAILED = ("✗", "x", "bold red")
    DOUBTFUL = ("!", "!", "yellow")
    SKIPPED = ("-", "-", "dim")


@dataclass(frozen=True)
class Checked(Generic[Found]):
    """What a check found, or the error that it ended with."""

    found: Found | None = None
    error: Exception | None = None


class Report:
    """Prints each check as it ends, and remembers whether one failed."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.has_failed = False

    def check(
        self, title: str, run: Callable[[], Found], tell: Callable[[Found], str]
    ) -> Checked[Found]:
        """Run a check, and print what `tell` says of what it finds, or why it failed."""
        try:
            found = run()
        except (BallotError, CheckFailed) as error:
            fault = explain(error)
            self._print(Outcome.FAILED, title, fault.what, advice=fault.advice)
            self.has_failed = True
            return Checked(error=error)
        self._print(Outcome.PASSED, title, tell(found))
        return Checked(found=found)

    def doubt(self, title: str, why: str) -> None:
        """Print something to think about, which is no failure."""
        self._print(Outcome.DOUBTFUL, title, why)

    def skip(self, *titles: str, because: str) -> None:
        """Print that checks could not be made."""
        for title in titles:
            self._print(Outcome.SKIPPED, title, f"skipped: {because}")

    def heading(self, text: str) -> None:
        """Print what the following checks are about."""
        self._console.print()
        self._console.print(Text(printable(text), style="bold"))

    def _print(self, outcome: Outcome, title: str, detail: str, *, advice: str = "") -> None:
        mark, ascii_mark, style = outcome.value
        if self._console.options.ascii_only:
            mark = ascii_mark
        head = Text.assemble((mark, style), f" {title:<{_TITLE_CELLS}}")
        body = Text(printable(detail), style="" if outcome is Outcome.PASSED else style)
        print_hanging(self._console, head, body)
        if advice:
            print_hanging(self._console, Text(" " * head.cell_len), Text(advice))


def doctor(
    endpoint: EndpointName = None,
    url: Url = None,
    environment: Annotated[
        str | None,
        typer.Option(
            "-c", "--environment", metavar="NAME", help="Check every endpoint of it: dev."
        ),
    ] = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    region: Region = None,
    key: Key = None,
) -> int:
    """Find out what is wrong, and what to do about it.

    \b
    ballot doctor                                   credentials and Region alone
    ballot doctor --endpoint ballot-dev-decision    and that endpoint
    ballot doctor -c dev                            and all of that environment
    ballot doctor --url http://127.0.0.1:8080       an adapter or a gateway

    The exit status is 1 if a check failed. What is marked ! is no failure.
    """
    if sum(map(bool, (endpoint, url, environment))) > 1:
        raise Unusable("give one of --endpoint, --url and -c", advice="see --help")
    environment = environment and environment_name(environment)
    report = Report(make_console(sys.stdout))
    if url:
        target = Target(endpoint_name=None, url=url, region=region, key=key)
        _check_server(report, target, timeout)
    else:
        _check_account(report, Inventory(region), endpoint, environment, timeout)
    return Status.FAILED if report.has_failed else Status.OK


def _check_account(
    report: Report,
    inventory: Inventory,
    endpoint: str | None,
    environment: str | None,
    timeout: float,
) -> None:
    region = report.check("Region", lambda: _region(inventory), str)
    caller = report.check(
        "credentials", inventory.caller, lambda who: f"{who['Arn']}, account {who['Account']}"
    )
    if not endpoint and not environment:
        return
    if region.error or caller.error:
        missing = "Region" if region.error else "credentials"
        report.skip("endpoint", *_OF_A_DECISION, because=f"no {missing}")
        return
    names = [endpoint] if endpoint else _names(report, inventory, environment or "")
    for name in names:
        if not endpoint:
            report.heading(name)
        _check_endpoint(report, inventory, name, timeout)


def _region(inventory: Inventory) -> str:
    if inventory.region is None:
        raise CheckFailed("none is set", advice="give --region, or set AWS_REGION")
    return inventory.region


def _names(report: Report, inventory: Inventory, environment: str) -> list[str]:
    def look() -> list[str]:
        if names := inventory.names(f"ballot-{environment}-"):
            return names
        raise CheckFailed(
            f"{environment} has no endpoint in {inventory.region}",
            advice=f"npx cdk deploy -c environment={environment} --all, or another Region",
        )

    listed = report.check("environment", look, lambda names: f"{environment}: {len(names)}")
    return listed.found or []


def _check_endpoint(report: Report, inventory: Inventory, name: str, timeout: float) -> None:
    looked_up = report.check("endpoint", lambda: _answering(inventory, name), _told_endpoint)
    # Whoever may only invoke an endpoint can still find out whether that works.
    if looked_up.error and not isinstance(looked_up.error, AccessDenied):
        report.skip(*_OF_A_DECISION, because="the endpoint does not answer")
        return
    endpoint = looked_up.found
    if endpoint and endpoint.failure_reason:
        report.doubt("last update", f"failed: {endpoint.failure_reason}")
    target = Target(endpoint_name=name, url=None, region=inventory.region)
    with target.connect(timeout_seconds=timeout) as client:
        if endpoint and endpoint.kind == "chat":
            _check_chat(report, client)
        else:
            _check_decision(report, client, endpoint.model if endpoint else None)


def _answering(inventory: Inventory, name: str) -> DeployedEndpoint:
    endpoint = inventory.endpoint(name)
    if endpoint.status in ANSWERING:
        return endpoint
    if endpoint.status == "Creating":
        advice = "wait: a first start fetches the image and the model"
    else:
        advice = f"read the log group /aws/sagemaker/Endpoints/{name}, then deploy again"
    why = f": {endpoint.failure_reason}" if endpoint.failure_reason else ""
    raise CheckFailed(f"{name} is {endpoint.status}{why}", advice=advice)


def _told_endpoint(endpoint: DeployedEndpoint) -> str:
    running = ", ".join(f"{some.count} x {some.type}" for some in endpoint.instances)
    return f"{endpoint.name} is {endpoint.status}" + (f" on {running}" if running else "")


def _check_server(report: Report, target: Target, timeout: float) -> None:
    with target.connect(timeout_seconds=timeout) as client:
        reached = report.check("server", lambda: _ping(target.name), str)
        if reached.error:
            report.skip(*_OF_A_DECISION, because="the server does not answer")
        else:
            _check_decision(report, client, None)


def _ping(url: str) -> str:
    """Ask for `/ping`, which an adapter has; a gateway answers too, if only that it has not."""
    try:
        status = httpx.get(f"{url.rstrip('/')}/ping", timeout=_PING_SECONDS).status_code
    except httpx.RequestError as error:
        timed_out = isinstance(error, httpx.TimeoutException)
        fault = connection_fault(error, timed_out=timed_out)
        fault.message = f"{url}: {fault.message}"
        raise fault from error
    if status == 503:
        raise CheckFailed(f"{url} is loading, or not healthy", advice="wait, or read its log")
    return f"{url} answers" + (", and is healthy" if status == 200 else "")


def _check_chat(report: Report, client: Ballot) -> None:
    message = {"role": "user", "content": "Say hello."}
    report.check(
        "chat",
        lambda: client.chat([message], max_tokens=1),
        lambda answer: f"answered by {answer.model}",
    )


def _check_decision(report: Report, client: Ballot, deployed: DeployedModel | None) -> None:
    decided = report.check("decision", lambda: client.decide(PROBE), _told_result)
    result = decided.found
    if result is None:
        report.skip(*_OF_A_DECISION[1:], because="no decision was scored")
        return
    _check_model(report, result, deployed)
    if is_low(result.allowed_token_mass):
        report.doubt("token mass", f"{result.allowed_token_mass:.3f} is low: {LOW_MASS_MEANS}")
    else:
        report.check("token mass", lambda: result.allowed_token_mass, lambda mass: f"{mass:.3f}")


def _told_result(result: Result) -> str:
    probability = result.probability_of(result.best)
    took = milliseconds(result.timing.total_seconds)
    return f"{result.best} with {probability:.3f}, in {took}"


def _check_model(report: Report, result: Result, deployed: DeployedModel | None) -> None:
    told = f"{result.model.file}, SHA-256 {result.model.sha256[:_SHOWN_DIGITS]}"
    is_same = deployed.is_of(result.model.sha256) if deployed else None
    if deployed is None or is_same is None:
        report.doubt("model", f"{told}; there is nothing to compare it with")
        return

    def compare() -> str:
        if is_same:
            return f"{told}, as deployed"
        expected = (deployed.sha256 or deployed.sha256_start or "")[:_SHOWN_DIGITS]
        raise CheckFailed(
            f"{told}, but {expected} is deployed",
            advice="let an update that is under way finish, or deploy again",
        )

    report.check("model", compare, str)
