"""What `cdk.json` says of scaling: from how many instances to how many, after what, and when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from zoneinfo import available_timezones

from stacks.reading import Format, Section, nearest
from stacks.schedules import WORDS, is_rate, schedule_problem

MOST_INSTANCES = 100
MOST_SCHEDULED = 50
REPLACED = "invocations_per_instance"

# Where one is scored at a time, 2 requests at an instance on average, that one included, mean that
# it is busy for three quarters of the time (an M/D/1 queue: 3 - sqrt(5) = 0.76).
_CONCURRENT_REQUESTS = 2
_SCALE_IN_SECONDS = 900
_SCALE_OUT_SECONDS = 120
_ACTION_NAME = Format(
    pattern=r"[A-Za-z0-9]([A-Za-z0-9_-]{0,62}[A-Za-z0-9])?",
    words="a name of 1 to 64 letters, digits, dashes and underscores",
)
_SCHEDULE = Format(pattern=r"[^\0]{1,1600}", words=WORDS)
_TIME_ZONE = Format(
    pattern=r"[A-Za-z][\w+-]*(/[\w+-]+)*", words="a time zone such as Europe/Berlin or UTC"
)


@dataclass(frozen=True, kw_only=True)
class ScheduledCapacity:
    """From when on an endpoint has at least `minimum` instances, and at most `maximum` if given."""

    name: str
    schedule: str
    time_zone: str | None
    minimum: int
    maximum: int | None


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """How an endpoint follows its load, from `minimum` to `maximum` instances of all its pools.

    `concurrent_requests_per_instance` are those in flight at an instance, waiting ones included.
    """

    minimum: int
    maximum: int
    concurrent_requests_per_instance: int
    scale_in_cooldown_seconds: int
    scale_out_cooldown_seconds: int
    scheduled: tuple[ScheduledCapacity, ...]

    @property
    def least_instances(self) -> int:
        """The fewest instances that it ever leaves, schedules included."""
        return min([self.minimum, *(item.minimum for item in self.scheduled)])


def read_scaling(parent: Section, *, most_concurrent: int | None) -> Scaling | None:
    """Read an endpoint's `scaling`; an instance holds `most_concurrent` requests, if that is known.

    A target that an instance cannot reach, because it refuses what is more, would never scale out.
    """
    section = parent.section("scaling")
    if section is None:
        return None
    scaling = Scaling(
        minimum=section.integer("min", 1, MOST_INSTANCES, default=1),
        maximum=section.integer("max", 1, MOST_INSTANCES, default=1),
        concurrent_requests_per_instance=section.integer(
            "concurrent_requests_per_instance", 1, 1000, default=_CONCURRENT_REQUESTS
        ),
        scale_in_cooldown_seconds=section.integer(
            "scale_in_cooldown_seconds", 0, 86_400, default=_SCALE_IN_SECONDS
        ),
        scale_out_cooldown_seconds=section.integer(
            "scale_out_cooldown_seconds", 0, 86_400, default=_SCALE_OUT_SECONDS
        ),
        scheduled=tuple(
            _scheduled(item) for item in section.objects("scheduled", most=MOST_SCHEDULED)
        ),
    )
    _check(section, scaling, most_concurrent)
    section.finish()
    return scaling


def _scheduled(section: Section) -> ScheduledCapacity:
    schedule = section.text("schedule", _SCHEDULE, required=True)
    if schedule and (problem := schedule_problem(schedule)):
        section.refuse("schedule", problem)
    scheduled = ScheduledCapacity(
        name=section.text("name", _ACTION_NAME, required=True),
        schedule=schedule,
        time_zone=_time_zone(section, schedule),
        minimum=section.integer("min", 1, MOST_INSTANCES, default=1),
        maximum=section.optional_integer("max", 1, MOST_INSTANCES),
    )
    if "min" not in section:
        section.problem("min", _missing())
    section.finish()
    return scheduled


def _time_zone(section: Section, schedule: str) -> str | None:
    name = section.text("time_zone", _TIME_ZONE)
    if not name:
        return None
    if is_rate(schedule):
        section.refuse("time_zone", "is for at and cron; a rate knows no time of the day")
    # A machine without a list of time zones leaves the question to the deployment.
    known = available_timezones()
    if known and name not in known:
        section.refuse("time_zone", f"is no time zone that there is{nearest(name, known)}")
    return name


def _check(section: Section, scaling: Scaling, most_concurrent: int | None) -> None:
    for key in ("min", "max"):
        if key not in section:
            section.problem(key, _missing())
    if "min" in section and "max" in section and scaling.minimum > scaling.maximum:
        section.refuse("min", f"must not be more than max, {scaling.maximum}")
    if REPLACED in section:
        section.known(REPLACED)
        section.problem(
            REPLACED,
            "has become concurrent_requests_per_instance: the requests at an instance at a time, "
            "waiting ones included, instead of those of a minute",
        )
    target = scaling.concurrent_requests_per_instance
    if most_concurrent is not None and target > most_concurrent:
        section.refuse(
            "concurrent_requests_per_instance",
            f"can never be reached: an instance holds at most {most_concurrent}, max_queue and the "
            "one being scored",
        )
    _check_scheduled(section, scaling.scheduled, scaling.maximum)


def _check_scheduled(section: Section, scheduled: Sequence[ScheduledCapacity], most: int) -> None:
    names = [item.name for item in scheduled]
    with_maximum = [item for item in scheduled if item.maximum is not None]
    for index, item in enumerate(scheduled):
        path = f"scheduled[{index}]"
        if item.name and item.name in names[:index]:
            section.problem(f"{path}.name", f'"{item.name}" is there twice')
        highest = most if item.maximum is None else item.maximum
        if item.minimum > highest:
            section.problem(f"{path}.min", f"{item.minimum} must not be more than max, {highest}")
    if with_maximum and len(with_maximum) < len(scheduled):
        # One that leaves the maximum alone would meet whatever another has left.
        section.problem("scheduled", "must have max in all of its entries or in none")


def _missing() -> str:
    return f"is missing; must be a whole number from 1 to {MOST_INSTANCES}"
