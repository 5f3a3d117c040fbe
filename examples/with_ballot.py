"""Ask with the `ballot` library: it retries, keeps a budget of time, and has types.

python examples/with_ballot.py ENDPOINT         through SageMaker
python examples/with_ballot.py http://HOST:PORT  an adapter, or a gateway
"""

from __future__ import annotations

import sys

from ballot import Ballot, Decision, Option, Scoring

TEAMS = (
    Option("access", "Account access and authentication support."),
    Option("billing", "Billing and payment support."),
)
YES_NO = (Option("yes", "Yes."), Option("no", "No."))
MESSAGE = "I was charged twice in March, and now I cannot log in to see the invoices."


def main(target: str) -> None:
    """Ask two questions about one message; the endpoint reads the message once."""
    with Ballot(url=target) if "://" in target else Ballot(endpoint_name=target) as ballot:
        team, angry = ballot.decide_many(
            [
                Decision("team", MESSAGE, "Which team should answer first?", TEAMS),
                Decision("angry", MESSAGE, "Is the customer angry?", YES_NO),
            ],
            # Both option orders are scored, so that the order plays no part in the answer.
            scoring=Scoring(orders=2),
        )
    for result in (team, angry):
        print(f"{result.id}: {result.best} ({result.by_option[result.best]:.3f})")


if __name__ == "__main__":
    main(sys.argv[1])
