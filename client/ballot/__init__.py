"""Client of Ballot decision endpoints on Amazon SageMaker AI, or over plain HTTP.

from ballot import Ballot

with Ballot(endpoint_name="decide", region="eu-west-1") as ballot:
    result = ballot.decide(
        state="Customer asks to reset a forgotten password.",
        question="Which queue should handle this request?",
        options={"access": "Account access.", "billing": "Billing and payment."},
    )
print(result.best, result.by_option)
"""

from ballot.chat import ChatAnswer, ChatUsage
from ballot.client import AsyncBallot, Ballot
from ballot.decision import Decision, Option, Request, Scoring
from ballot.errors import (
    AccessDenied,
    BallotError,
    DeadlineExceeded,
    EndpointNotFound,
    InvalidAnswer,
    InvalidRequest,
    ScoringFailed,
    TransportFailed,
    Unavailable,
)
from ballot.quality.policy import Policy, PolicyError
from ballot.results import AppliedCalibration, ModelIdentity, OrderScores, Result, Timing
from ballot.retry import RetryPolicy
from ballot.systemone import (
    Choice,
    ChoiceAnswer,
    Noul,
    NoulAnswer,
    Score,
    ScoreAnswer,
    SystemOneAnswer,
    Usage,
)

__version__ = "0.1.0"

__all__ = [
    "AccessDenied",
    "AppliedCalibration",
    "AsyncBallot",
    "Ballot",
    "BallotError",
    "ChatAnswer",
    "ChatUsage",
    "Choice",
    "ChoiceAnswer",
    "DeadlineExceeded",
    "Decision",
    "EndpointNotFound",
    "InvalidAnswer",
    "InvalidRequest",
    "ModelIdentity",
    "Noul",
    "NoulAnswer",
    "Option",
    "OrderScores",
    "Policy",
    "PolicyError",
    "Request",
    "Result",
    "RetryPolicy",
    "Score",
    "ScoreAnswer",
    "Scoring",
    "ScoringFailed",
    "SystemOneAnswer",
    "Timing",
    "TransportFailed",
    "Unavailable",
    "Usage",
    "__version__",
]
