"""What is wrong with bulk work itself: its files, its job."""

from __future__ import annotations

from ballot.errors import BallotError


class BatchError(BallotError):
    """The input, the output or the job cannot be used as it is; the message says why."""


class BatchFailed(BatchError):
    """Nothing is wrong with what was given: the answers are missing, or not what they must be."""
