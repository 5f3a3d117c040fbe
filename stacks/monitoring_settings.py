"""What `cdk.json` says of watching: whom to tell, what a month may cost, when alarms ring."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from stacks.instance_types import Hardware
from stacks.reading import Format, Section

Profile = Literal["decision-cpu", "decision-gpu", "chat"]

TOPIC_ARN = Format(
    pattern=r"arn:aws:sns:[a-z0-9-]+:\d{12}:[A-Za-z0-9_-]{1,256}",
    words="the ARN of an existing topic, arn:aws:sns:<region>:<account>:<name>",
)
EMAIL = Format(
    pattern=r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]+@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+",
    words="an e-mail address",
)
MOST_EMAILS = 10


@dataclass(frozen=True, kw_only=True)
class Monitoring:
    """Whom an environment's alarms tell, and its budget in US dollars a month."""

    alarm_emails: tuple[str, ...]
    topic_arn: str | None
    monthly_budget_usd: float | None


@dataclass(frozen=True, kw_only=True)
class Alarms:
    """From which value on an endpoint's alarms ring; None where there is no such alarm.

    Rates are shares of the invocations of a minute, latencies the model's seconds, and
    `token_mass` is the one that rings below its value. `instances` rings when fewer instances
    report than the endpoint has at least.
    """

    server_error_rate: float | None
    client_error_rate: float | None
    p95_seconds: float | None
    p99_seconds: float | None
    refused_per_minute: float | None
    token_mass: float | None
    container_failures: float | None
    memory_percent: float | None
    disk_percent: float | None
    instances: bool


@dataclass(frozen=True, kw_only=True)
class _Range:
    lowest: float
    highest: float


_RANGES = {
    "server_error_rate": _Range(lowest=0.0001, highest=1),
    "client_error_rate": _Range(lowest=0.0001, highest=1),
    # The container has 60 s to answer, after which SageMaker counts a 5xx.
    "p95_seconds": _Range(lowest=0.001, highest=60),
    "p99_seconds": _Range(lowest=0.001, highest=60),
    "refused_per_minute": _Range(lowest=1, highest=1_000_000),
    "token_mass": _Range(lowest=0.0001, highest=1),
    "container_failures": _Range(lowest=1, highest=1_000),
    "memory_percent": _Range(lowest=1, highest=100),
    "disk_percent": _Range(lowest=1, highest=100),
}
_EVERYWHERE = {
    "server_error_rate": 0.05,
    "client_error_rate": 0.25,
    "memory_percent": 90,
    "disk_percent": 90,
}
_DECISIONS = {**_EVERYWHERE, "token_mass": 0.5, "container_failures": 1}
DEFAULTS: Mapping[Profile, Mapping[str, float]] = {
    "decision-cpu": {**_DECISIONS, "p95_seconds": 20, "p99_seconds": 40, "refused_per_minute": 5},
    "decision-gpu": {**_DECISIONS, "p95_seconds": 2, "p99_seconds": 5, "refused_per_minute": 30},
    "chat": {**_EVERYWHERE, "p95_seconds": 40, "p99_seconds": 55},
}


def read_monitoring(parent: Section, *, account: str | None, region: str | None) -> Monitoring:
    """Read the `monitoring` of an environment of an account and a Region, if those are known."""
    section = parent.section("monitoring")
    if section is None:
        return Monitoring(alarm_emails=(), topic_arn=None, monthly_budget_usd=None)
    if "alarm_emails" in section and "topic_arn" in section:
        section.refuse("alarm_emails", "cannot go with topic_arn, which has its own subscriptions")
    monitoring = Monitoring(
        alarm_emails=section.texts("alarm_emails", EMAIL, most=MOST_EMAILS),
        topic_arn=section.text("topic_arn", TOPIC_ARN) or None,
        monthly_budget_usd=section.optional_decimal("monthly_budget_usd", 1, 100_000_000),
    )
    if monitoring.topic_arn:
        # An alarm can tell another account's topic, a budget only one of its own account.
        needed = account if "monthly_budget_usd" in section else None
        section.refuse_elsewhere(
            "topic_arn", monitoring.topic_arn, "a topic", account=needed, region=region
        )
    section.finish()
    return monitoring


def read_alarms(
    parent: Section, *, kind: Literal["decision", "chat"], hardware: Hardware
) -> Alarms | None:
    """Read an endpoint's `alarms`; None when they are false."""
    if parent.is_false("alarms"):
        return None
    section = parent.object("alarms") or Section({}, path="", problems=parent.problems)
    defaults = DEFAULTS["chat" if kind == "chat" else _decision_profile(hardware)]
    thresholds = {key: _threshold(section, key, defaults.get(key)) for key in _RANGES}
    instances = section.flag("instances", default=True)
    section.finish()
    alarms = Alarms(**thresholds, instances=instances)
    _check_latencies(section, alarms)
    return alarms


def _decision_profile(hardware: Hardware) -> Profile:
    return "decision-gpu" if hardware == "gpu" else "decision-cpu"


def _check_latencies(section: Section, alarms: Alarms) -> None:
    p95, p99 = alarms.p95_seconds, alarms.p99_seconds
    if p95 is not None and p99 is not None and p95 > p99:
        section.problem("p95_seconds", f"{p95:g} must not be more than p99_seconds, {p99:g}")


def _threshold(section: Section, key: str, default: float | None) -> float | None:
    """Read one threshold, which false leaves out; one without a default has no place here."""
    if default is None:
        section.known(key)
        if key in section:
            section.refuse(key, "is for decision endpoints")
        return None
    if section.is_false(key):
        return None
    return section.decimal(key, _RANGES[key].lowest, _RANGES[key].highest, default=default)
