"""CloudWatch alarms: each is evaluated again and again, as its own definition says.

ministack keeps alarms and metrics; its evaluation ignores dimensions, periods and missing data, and
happens only when data is put. What is here takes its place. Periods last as long as the emulator's
minutes say.
"""

from __future__ import annotations

import logging
import operator
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ministack.services import cloudwatch
from ministack.services.cloudformation import provisioners

from emulator.inside import metric_math
from emulator.inside.config import CONFIG
from emulator.inside.services import Json
from emulator.inside.validation import input_members, problems

log = logging.getLogger("ballot.alarms")

# How many periods farther back data is looked for where some is missing.
EXTRA_PERIODS = 2
_LONGEST_INTERVAL, _SHORT_INTERVAL = 60, 10
_TICK_SECONDS = min(1.0, max(0.05, CONFIG.rollout_scaled(_SHORT_INTERVAL) / 2))
_SETTABLE = ("AlarmName", "StateValue", "StateReason", "StateReasonData")
_BREACHING: dict[str, Callable[[float, float], bool]] = {
    "GreaterThanOrEqualToThreshold": operator.ge,
    "GreaterThanThreshold": operator.gt,
    "LessThanOrEqualToThreshold": operator.le,
    "LessThanThreshold": operator.lt,
}
_OF_ONE_METRIC = (
    "Dimensions",
    "ExtendedStatistic",
    "MetricName",
    "Namespace",
    "Period",
    "Statistic",
    "Unit",
)
_STATISTICS = ("SampleCount", "Average", "Sum", "Minimum", "Maximum")

_due: dict[str, float] = {}
_rang: dict[str, float] = {}
_record_history = cloudwatch._record_history
_set_alarm_state = cloudwatch._set_alarm_state
_put_metric_alarm = cloudwatch._put_metric_alarm


class AlarmError(ValueError):
    """An alarm's definition cannot be evaluated."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """How an alarm's state follows from its data points."""

    evaluation_periods: int
    datapoints_to_alarm: int
    missing: str

    def state(self, points: Sequence[bool | None], *, current: str) -> str:
        """Return the state for the data points of the evaluation range, the oldest first.

        A point says whether it breaches, None that it is missing. From the User Guide,
        "Configuring how CloudWatch alarms treat missing data", with its two tables.
        """
        real = [point for point in points if point is not None][-self.evaluation_periods :]
        lacking = self.evaluation_periods - len(real)
        breaching = sum(real) + (lacking if self.missing == "breaching" else 0)
        if breaching >= self.datapoints_to_alarm:
            return "ALARM"
        if lacking and self.missing in ("missing", "ignore") and all(real):
            # Nothing is known to be well: an alarm before all its periods have passed.
            if self.missing == "ignore":
                return current
            return "ALARM" if real else "INSUFFICIENT_DATA"
        return "OK"


def rang_since(names: Iterable[str], moment: float) -> list[str]:
    """Return those of the alarms that are in ALARM, or have been since `moment`."""
    return [
        name
        for name in names
        if _rang.get(name, 0.0) >= moment
        or cloudwatch._alarms.get(name, {}).get("StateValue") == "ALARM"
        or cloudwatch._composite_alarms.get(name, {}).get("StateValue") == "ALARM"
    ]


def check(properties: Json) -> None:
    """Check an alarm's definition, as CloudWatch would and for what is emulated.

    Raises:
        AlarmError: it is not valid, or cannot be evaluated.
    """
    members = input_members("cloudwatch", "PutMetricAlarm")
    unknown = sorted(set(properties) - members)
    found = [f"unknown property {name}" for name in unknown]
    found += problems("cloudwatch", "PutMetricAlarm", properties)
    if found:
        raise AlarmError("; ".join(found))
    if properties["ComparisonOperator"] not in _BREACHING or "ThresholdMetricId" in properties:
        raise AlarmError("alarms of anomaly detection are not emulated")
    queries = _queries(properties)
    if len([query for query in queries if query.get("ReturnData", True)]) != 1:
        raise AlarmError("exactly one of Metrics returns data")
    for query in queries:
        if "MetricStat" in query and not _is_statistic(query["MetricStat"]["Stat"]):
            raise AlarmError(f"the statistic {query['MetricStat']['Stat']} is not emulated")
    try:
        _value(queries, {query["Id"]: [] for query in queries}, 0.0, 0.0)
    except metric_math.ExpressionError as error:
        raise AlarmError(f"Metrics: {error}") from error


def _is_statistic(name: str) -> bool:
    return name in _STATISTICS or bool(cloudwatch._is_percentile_stat(name))


def _queries(alarm: Json) -> list[Json]:
    """Return an alarm's metrics in the one form, whichever it was defined by."""
    if alarm.get("Metrics"):
        queries: list[Json] = alarm["Metrics"]
        return queries
    if not alarm.get("MetricName") or not alarm.get("Namespace"):
        raise AlarmError("an alarm needs MetricName and Namespace, or Metrics")
    metric = {
        "Namespace": alarm["Namespace"],
        "MetricName": alarm["MetricName"],
        "Dimensions": alarm.get("Dimensions") or [],
    }
    stat: Json = {
        "Metric": metric,
        "Period": alarm.get("Period") or _LONGEST_INTERVAL,
        "Stat": alarm.get("ExtendedStatistic") or alarm.get("Statistic") or "Average",
    }
    if alarm.get("Unit"):
        stat["Unit"] = alarm["Unit"]
    return [{"Id": "metric", "MetricStat": stat}]


def _period(queries: Sequence[Json]) -> int:
    """Return the seconds of the period that the alarm's metrics have."""
    for query in queries:
        if found := query.get("Period") or query.get("MetricStat", {}).get("Period"):
            return int(found)
    return _LONGEST_INTERVAL


def _points(stat: Json) -> list[Json]:
    """Return what was put of exactly one metric."""
    metric = stat["Metric"]
    dimensions = {d["Name"]: d["Value"] for d in metric.get("Dimensions") or ()}
    key = (metric["Namespace"], metric["MetricName"], cloudwatch._dims_key(dimensions))
    found: list[Json] = list(cloudwatch._metrics.get(key) or ())
    return [point for point in found if stat.get("Unit") in (None, point["Unit"])]


def _value(queries: Sequence[Json], points: dict[str, list[Json]], start: float, end: float) -> Any:
    """Return the value, in one period, of the one query that returns data."""
    values: dict[str, metric_math.Value] = {}
    for query in (q for q in queries if "MetricStat" in q):
        within = [p for p in points[query["Id"]] if start <= p["Timestamp"] < end]
        stats = cloudwatch._calc_stats(within)
        values[query["Id"]] = (
            cloudwatch._stat_value(stats, query["MetricStat"]["Stat"], within) if stats else None
        )
    returned = next(query for query in queries if query.get("ReturnData", True))
    expressions = {q["Id"]: q["Expression"] for q in queries if "Expression" in q}
    if returned["Id"] not in expressions:
        return values[returned["Id"]]
    return metric_math.evaluate(returned["Expression"], values, expressions)


def evaluate(alarm: Json, now: float) -> tuple[str, str]:
    """Return the state that an alarm's data means at a moment, and the reason in words."""
    queries = _queries(alarm)
    length = CONFIG.rollout_scaled(_period(queries))
    count = alarm.get("EvaluationPeriods") or 1
    points = {q["Id"]: _points(q["MetricStat"]) for q in queries if "MetricStat" in q}
    values = [
        _value(queries, points, now - (age + 1) * length, now - age * length)
        for age in reversed(range(count + EXTRA_PERIODS))
    ]
    breaches = _BREACHING[alarm["ComparisonOperator"]]
    rule = Rule(
        evaluation_periods=count,
        datapoints_to_alarm=alarm.get("DatapointsToAlarm") or count,
        missing=alarm.get("TreatMissingData") or "missing",
    )
    breaching = [None if value is None else breaches(value, alarm["Threshold"]) for value in values]
    state = rule.state(breaching, current=alarm["StateValue"])
    return state, _reason(alarm, values, breaching, state)


def _reason(alarm: Json, values: list[Any], breaching: list[bool | None], state: str) -> str:
    known = [str(value) for value in values if value is not None]
    if not known:
        return "Insufficient Data: no datapoints were received"
    crossed = sum(1 for point in breaching if point is (state == "ALARM"))
    return (
        f"Threshold Crossed: {crossed} out of the last {len(known)} datapoints "
        f"[{', '.join(reversed(known))}] {'were' if state == 'ALARM' else 'were not'} "
        f"{alarm['ComparisonOperator']} ({alarm['Threshold']})"
    )


def _interval(alarm: Json) -> float:
    """Return how often an alarm is evaluated: each minute, or each ten seconds if it is short."""
    short = _period(_queries(alarm)) < _LONGEST_INTERVAL
    return CONFIG.rollout_scaled(_SHORT_INTERVAL if short else _LONGEST_INTERVAL)


def _update(alarm: Json, now: float) -> None:
    """Bring an alarm to the state that its data means, and tell who wants to know."""
    name, before = alarm["AlarmName"], alarm["StateValue"]
    state, reason = evaluate(alarm, now)
    if state == before or cloudwatch._alarms.get(name) is not alarm:
        return
    alarm.update(StateValue=state, StateReason=reason, StateUpdatedTimestamp=int(now))
    cloudwatch._record_history(name, before, state, reason)
    cloudwatch._dispatch_alarm_actions(alarm, before, state, reason)
    cloudwatch._evaluate_parent_alarms(alarm)


def _run() -> None:
    while True:
        time.sleep(_TICK_SECONDS)
        now = time.time()
        for name, alarm in list(cloudwatch._alarms.items()):
            if now < _due.get(name, 0.0):
                continue
            try:
                _due[name] = now + _interval(alarm)
                _update(alarm, now)
            except Exception:  # what the others say is still worth knowing
                log.exception("alarm %s cannot be evaluated", name)


def _noting_history(name: str, old: str, new: str, *more: Any, **named: Any) -> None:
    if new == "ALARM":
        _rang[name] = time.time()
    _record_history(name, old, new, *more, **named)


def _holding_set_state(params: Any, data: Json, is_cbor: bool, is_json: bool = False) -> Any:
    """Set a state, which stays until the alarm's next evaluation."""
    given = data if is_cbor or is_json else {n: cloudwatch._p(params, n) for n in _SETTABLE}
    name = given.get("AlarmName", "")
    if name in cloudwatch._alarms:
        _due[name] = time.time() + _interval(cloudwatch._alarms[name])
    return _set_alarm_state(params, data, is_cbor, is_json)


def _keeping_metrics(params: Any, data: Json, is_cbor: bool, is_json: bool = False) -> Any:
    """Put an alarm, with its metric math, which ministack drops."""
    if is_cbor or is_json:
        try:
            check(data)
        except AlarmError as error:
            return cloudwatch._error(
                "ValidationError", str(error), 400, use_json=is_json, use_cbor=is_cbor
            )
    answer = _put_metric_alarm(params, data, is_cbor, is_json)
    name = data.get("AlarmName", "")
    if name in cloudwatch._alarms:
        _due.pop(name, None)
        cloudwatch._alarms[name] = _as_defined(cloudwatch._alarms[name], data)
    return answer


def _as_defined(alarm: Json, properties: Json) -> Json:
    """Return an alarm with its metric math, and without what its definition does not have."""
    absent = {name for name in _OF_ONE_METRIC if name not in properties}
    kept = {name: value for name, value in alarm.items() if name not in absent}
    return {**kept, "Metrics": properties["Metrics"]} if properties.get("Metrics") else kept


def _record(inner: Callable[[str, Json], Json]) -> Callable[[str, Json], Json]:
    """Make a template's alarm; one of metric math too."""

    def record(name: str, properties: Json) -> Json:
        check({**properties, "AlarmName": name})
        _due.pop(name, None)
        stand_in = {"MetricName": "math", "Namespace": "math"} if "Metrics" in properties else {}
        given = {k: v for k, v in properties.items() if k != "Metrics"}
        return _as_defined(inner(name, {**given, **stand_in}), properties)

    return record


def install() -> None:
    """Take alarms over from ministack and begin to evaluate them."""
    provisioners._cw_metric_alarm_record = _record(provisioners._cw_metric_alarm_record)
    cloudwatch._put_metric_alarm = _keeping_metrics
    cloudwatch._set_alarm_state = _holding_set_state
    cloudwatch._record_history = _noting_history
    cloudwatch._evaluate_alarm = lambda alarm: None
    cloudwatch._evaluate_all_alarms = lambda: None
    threading.Thread(target=_run, name="alarms", daemon=True).start()
