"""Ask with TypeSafe's SDK (`pip install typesafe-sdk`), unmodified.

ballot gateway --endpoint ENDPOINT &
python examples/with_typesafe.py http://127.0.0.1:8787 [KEY]
"""

from __future__ import annotations

import sys

from typesafe_sdk import Choice, Noul, Score, TypeSafeClient


def main(base_url: str, key: str = "none") -> None:
    """Ask three questions about one ticket."""
    # A CPU may take longer than the SDK's own ten seconds, after which it would ask again.
    with TypeSafeClient(api_key=key, base_url=base_url, timeout=60) as client:
        answer = client.system_one(
            state="I was charged twice for my March invoice. Please refund me today.",
            questions={
                "refund": Noul(instructions="Is the customer asking for money back?"),
                "team": Choice(
                    instructions="Which team should handle this?",
                    criteria={"billing": "Payments and refunds.", "tech": "Bugs and outages."},
                ),
                "anger": Score(instructions="How angry?", criteria=["Calm", "Annoyed", "Furious"]),
            },
        )
    print(f"answered by {answer.model}")
    print(f"refund {answer.nouls['refund'].noul:.3f}")
    print(f"team   {answer.choices['team'].choice}")
    print(f"anger  {answer.scores['anger'].score:.2f} of 2")


if __name__ == "__main__":
    main(*sys.argv[1:])
