"""What is wrong with bulk work itself: its files, its job."""

from __future__ import annotations

from ballot.errors import BallotError


class BatchError(BallotError):
    """The input, the output or the job cannot be used as it is; the message says why."""
