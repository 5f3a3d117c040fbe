"""The decisions that are asked: made-up support tickets, sized in the model's own tokens."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from adapter.decision import Decision, Option

_PEOPLE = ("A customer", "A returning buyer", "The shop owner", "A new subscriber", "A reseller")
_PLACES = ("Lyon", "Osaka", "Porto", "Leeds", "Quito", "Oslo", "Durban", "Tampa")
_ACTS = ("reports", "explains", "complains", "writes", "confirms", "suspects")
_THINGS = ("the parcel", "the invoice", "the login", "the headset", "the contract", "the refund")
_FAULTS = (
    "has not arrived",
    "shows the wrong amount",
    "stopped working after a week",
    "was sent to another address",
    "cannot be opened any more",
)
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")

# A question and the descriptions of its options.
_QUESTIONS = (
    ("Which queue should handle this?", "Account access.", "Billing.", "Sales.", "Delivery."),
    ("How urgent is this?", "It can wait a week.", "It should be seen today.", "It is urgent now."),
    ("Is the writer a customer already?", "Yes, with earlier orders.", "No, or it is not said."),
    ("What is the writer's mood?", "Calm.", "Annoyed.", "Angry and about to leave."),
    ("Does the policy allow a refund?", "Every condition is met.", "A condition is not met."),
    ("What happens next?", "Refund it.", "Offer credit.", "Ask for a receipt.", "Escalate it."),
    ("Which language should the answer use?", "English.", "French.", "Spanish.", "Another one."),
    ("Is a person named in the text?", "At least one person is named.", "Nobody is named."),
    ("Is there a legal risk?", "A lawsuit or a dispute is threatened.", "Nothing of that kind."),
    ("Was the writer in touch before?", "Yes, about the same thing.", "Yes, about another.", "No."),
    ("What is missing to answer?", "Nothing.", "An order number.", "A photo.", "An address."),
    ("Who has to approve the answer?", "Nobody.", "A supervisor.", "The legal team."),
    ("Which product is it about?", "Hardware.", "Software.", "A service.", "It is not said."),
    ("Does it hold a payment detail?", "A card or account number is in it.", "None is in it."),
    ("Should it be merged with another?", "An earlier one covers it.", "It stands alone."),
    ("How long may the answer be?", "One sentence.", "A paragraph.", "A full page."),
)
QUESTIONS = len(_QUESTIONS)
FIVE_OPTIONS = (
    "Which team takes it?",
    "Accounts: logins, passwords and access.",
    "Billing: invoices, payments and refunds.",
    "Logistics: parcels, addresses and delays.",
    "Repairs: devices that stopped working.",
    "Sales: offers, contracts and new orders.",
)


class Writer:
    """Writes decisions about states of a wanted length; the same seed gives the same text."""

    def __init__(self, count_tokens: Callable[[str], int]) -> None:
        self._count_tokens = count_tokens

    def state(self, tokens: int, *, seed: str) -> str:
        """Return a text of about `tokens` tokens, unlike that of any other seed from the start."""
        source = random.Random(seed)
        sentences: list[str] = []
        length = 0
        while length < tokens:
            sentence = _sentence(source)
            length += self._count_tokens(" " + sentence)
            sentences.append(sentence)
        return " ".join(sentences)

    def decision(self, tokens: int, *, seed: str, question: int = 0) -> Decision:
        """Return a decision about a state of about `tokens` tokens."""
        return ask(self.state(tokens, seed=seed), question)


def ask(state: str, question: int) -> Decision:
    """Return one of the `QUESTIONS` questions about `state`."""
    return write(state, *_QUESTIONS[question % QUESTIONS], number=question)


def write(state: str, question: str, *descriptions: str, number: int = 0) -> Decision:
    """Return a decision between options that have only descriptions."""
    options = tuple(Option(f"option-{at}", text) for at, text in enumerate(descriptions))
    return Decision(id=f"q{number}", state=state, question=question, options=options)


def as_json(decision: Decision) -> dict[str, Any]:
    """Return a decision as the wire has it."""
    return {
        "id": decision.id,
        "state": decision.state,
        "question": decision.question,
        "options": [
            {"id": option.id, "description": option.description} for option in decision.options
        ],
    }


def _sentence(source: random.Random) -> str:
    return (
        f"{source.choice(_PEOPLE)} from {source.choice(_PLACES)} {source.choice(_ACTS)} on "
        f"{source.choice(_DAYS)} that {source.choice(_THINGS)} {source.randrange(1000, 10_000)} "
        f"{source.choice(_FAULTS)}."
    )
