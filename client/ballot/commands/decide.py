"""`ballot decide`: asks what a file says, and shows how probable each option is."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

from ballot.client import Ballot
from ballot.commands.explain import Unusable
from ballot.commands.options import (
    DEFAULT_TIMEOUT,
    AsJson,
    EndpointName,
    Key,
    Region,
    Target,
    Timeout,
    Url,
)
from ballot.commands.render import show_results
from ballot.commands.render_systemone import show_systemone
from ballot.commands.request_file import read_request
from ballot.commands.screen import make_console
from ballot.decision import Request, Scoring
from ballot.errors import InvalidRequest
from ballot.results import Result
from ballot.systemone import DEFAULT_MODEL

LAYOUTS = ("evidence_first", "criterion_first")


def decide(
    request: Annotated[
        str, typer.Argument(metavar="REQUEST", help="A JSON file; - reads standard input.")
    ],
    endpoint: EndpointName = None,
    url: Url = None,
    orders: Annotated[
        int | None,
        typer.Option("--orders", metavar="1|2", help="Option orders to score; 2 averages."),
    ] = None,
    layout: Annotated[
        str | None,
        typer.Option("--layout", metavar="LAYOUT", help="evidence_first or criterion_first."),
    ] = None,
    as_json: AsJson = False,
    timeout: Timeout = DEFAULT_TIMEOUT,
    region: Region = None,
    key: Key = None,
) -> None:
    """Score a request, and show how probable each option is.

    \b
    ballot decide request.json --endpoint ballot-dev-decision
    ballot decide - --url http://127.0.0.1:8080 --json < request.json

    The request is one of Ballot's own (decision or decisions) or of System One's
    (questions). A token mass that is called low is a hint, no verdict: the model
    would rather have written something other than any of your options.
    """
    target = Target(endpoint_name=endpoint, url=url, region=region, key=key)
    body = read_request(request)
    scoring = scoring_of(orders, layout)
    with target.connect(timeout_seconds=timeout) as client:
        if "questions" in body:
            _decide_systemone(client, body, scoring, as_json=as_json)
        else:
            _decide_native(client, Request.from_json(body), scoring, as_json=as_json)


def scoring_of(orders: int | None, layout: str | None) -> Scoring:
    """Return what --orders and --layout say, or raise `Unusable`."""
    if orders not in (None, 1, 2):
        raise Unusable(f"--orders {orders} is not offered", advice="give 1 or 2")
    if layout not in (None, *LAYOUTS):
        raise Unusable(f"--layout {layout} is not offered", advice=f"give {' or '.join(LAYOUTS)}")
    return Scoring(orders=orders, layout=layout)


def _decide_native(client: Ballot, request: Request, scoring: Scoring, *, as_json: bool) -> None:
    results = _results(client, replace(request, scoring=_merged(request.scoring, scoring)))
    if not as_json:
        show_results(make_console(sys.stdout), request.decisions, results)
        return
    raw = [result.raw for result in results]
    print_json({"result": raw[0]} if request.single else {"results": raw})


def _merged(asked: Scoring | None, wanted: Scoring) -> Scoring | None:
    """Return the request's own scoring, where the options say nothing else."""
    asked = asked or Scoring()
    merged = Scoring(
        orders=asked.orders if wanted.orders is None else wanted.orders,
        layout=asked.layout if wanted.layout is None else wanted.layout,
    )
    return None if merged == Scoring() else merged


def _results(client: Ballot, request: Request) -> list[Result]:
    if request.single:
        return [client.decide(request.decisions[0], scoring=request.scoring)]
    if not request.decisions:
        raise InvalidRequest("decisions needs at least 1", code="too_few_items", field="decisions")
    return client.decide_many(request.decisions, scoring=request.scoring)


@dataclass(frozen=True)
class _AsWritten:
    """A question as the request has it: the endpoint is the judge of it."""

    value: Any

    def as_json(self) -> Any:
        return self.value


def _decide_systemone(
    client: Ballot, body: Mapping[str, Any], scoring: Scoring, *, as_json: bool
) -> None:
    if scoring != Scoring():
        raise Unusable(
            "--orders and --layout are for Ballot's own requests",
            advice="leave them out for a System One request",
        )
    questions = _questions(body)
    asked: dict[str, Any] = {name: _AsWritten(value) for name, value in questions.items()}
    answer = client.systemone(body["state"], asked, model=body.get("model", DEFAULT_MODEL))
    if as_json:
        print_json(answer.raw)
    else:
        show_systemone(make_console(sys.stdout), questions, answer)


def _questions(body: Mapping[str, Any]) -> dict[str, Any]:
    questions = body["questions"]
    if not isinstance(questions, dict):
        raise InvalidRequest("questions must be an object", code="wrong_type", field="questions")
    if "state" not in body:
        raise InvalidRequest("state is missing", code="missing_field", field="state")
    if "assets" in body:
        raise InvalidRequest("assets are not supported", code="unsupported_value", field="assets")
    return questions


def print_json(value: Any) -> None:
    """Print JSON for a program; its numbers are the answer's own."""
    is_unicode = sys.stdout.encoding.lower().startswith("utf")
    print(json.dumps(value, indent=2, ensure_ascii=not is_unicode))
