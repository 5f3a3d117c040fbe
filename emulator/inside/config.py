"""What the emulator's process is told by its parent: variables that start with `EMULATOR_`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from emulator.running import SILENT_ROLLBACKS

PREFIX = "EMULATOR_"


@dataclass(frozen=True, kw_only=True)
class Config:
    """Where things lie, and how long an emulated minute lasts."""

    root: Path
    """The checkout."""
    workdir: Path
    """Where images, builds and containers have their files."""
    marker: str
    """A variable in the environment of every process that belongs to this emulator."""
    endpoint_url: str
    ca_bundle: Path
    seconds_per_minute: float
    """Scales the time-outs that AWS counts in minutes, so that a test can wait for one."""
    rollout_seconds_per_minute: float
    """Scales what watches instead: a rollout's waits, an alarm's periods, pings."""

    @property
    def images(self) -> Path:
        """The store of what `docker build` and `docker pull` made."""
        return self.workdir / "images"

    @property
    def rolls_back_silently(self) -> bool:
        """Whether CloudFormation takes an endpoint that went back for one that was updated."""
        return (self.workdir / SILENT_ROLLBACKS).exists()

    def scaled(self, seconds: float) -> float:
        """Return how long `seconds` of an AWS time-out last here."""
        return seconds * self.seconds_per_minute / 60

    def rollout_scaled(self, seconds: float) -> float:
        """Return how long `seconds` of AWS's watching last here."""
        return seconds * self.rollout_seconds_per_minute / 60


def read_config() -> Config:
    """Read this process's configuration."""

    def value(name: str) -> str:
        return os.environ[PREFIX + name]

    return Config(
        root=Path(value("ROOT")),
        workdir=Path(value("WORKDIR")),
        marker=value("MARKER"),
        endpoint_url=os.environ["AWS_ENDPOINT_URL"],
        ca_bundle=Path(os.environ["AWS_CA_BUNDLE"]),
        seconds_per_minute=float(value("SECONDS_PER_MINUTE")),
        rollout_seconds_per_minute=float(value("ROLLOUT_SECONDS_PER_MINUTE")),
    )


CONFIG = read_config()
