"""Route tickets: to a team where the model is sure, to the front desk where it is not.

    python examples/ticket_router.py http://127.0.0.1:8080 < tickets.txt     one ticket a line

The question and the teams are the same for every ticket, so `criterion_first` puts them first: the
endpoint keeps them in memory, and only reads the ticket.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from ballot import Ballot, Decision, Option, Result, Scoring

TEAMS = (
    Option("access", "Logging in, passwords, locked accounts."),
    Option("billing", "Invoices, payments, refunds."),
    Option("shipping", "Parcels, delivery, returns."),
)
FRONT_DESK = "front-desk"
# From an evaluation on tickets of your own: what share of those above it was right?
MIN_PROBABILITY = 0.7
MIN_MARGIN = 0.3


def queue_of(result: Result) -> str:
    """Return the team, or the front desk where two teams are too close or none is likely."""
    is_sure = result.by_option[result.best] >= MIN_PROBABILITY and result.margin >= MIN_MARGIN
    return result.best if is_sure else FRONT_DESK


def route(ballot: Ballot, tickets: Iterable[str]) -> Iterator[tuple[str, Result]]:
    """Yield the queue of each ticket, and what it was decided by."""
    decisions = [
        Decision(f"ticket-{number}", ticket, "Which team should handle this ticket?", TEAMS)
        for number, ticket in enumerate(tickets, 1)
    ]
    for result in ballot.decide_many(decisions, scoring=Scoring(layout="criterion_first")):
        yield queue_of(result), result


def main(url: str) -> None:
    """Route the tickets of standard input."""
    tickets = [line.strip() for line in sys.stdin if line.strip()]
    with Ballot(url=url) as ballot:
        for ticket, (queue, result) in zip(tickets, route(ballot, tickets), strict=True):
            print(f"{queue:<12} {result.by_option[result.best]:.2f}  {ticket}")


if __name__ == "__main__":
    main(sys.argv[1])
