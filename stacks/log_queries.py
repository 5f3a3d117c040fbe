"""Saved queries over the logs of an environment's decision endpoints, for Logs Insights.

Each is kept short enough to be read: it is where a question of one's own starts from.
"""

from __future__ import annotations

QUERIES = {
    "slowest-requests": """\
fields @timestamp, request_id, seconds, queue_seconds, forward_seconds, input_tokens, cached_tokens
| filter event = "request" and outcome = "ok"
| sort seconds desc
| limit 50""",
    "refused-by-minute": """\
filter event = "request" and outcome in ["busy", "deadline_exceeded", "draining"]
| stats count(*) as refused by outcome, bin(1m)
| sort bin(1m) desc""",
    "errors-by-code": """\
filter event = "request" and outcome != "ok"
| stats count(*) as requests, min(@timestamp) as since, max(@timestamp) as until by outcome, status
| sort requests desc""",
    "cache-hits-by-hour": """\
filter event = "request" and input_tokens > 0
| stats 100 * sum(cached_tokens) / sum(input_tokens) as percent by bin(1h)
| sort bin(1h) desc""",
    "low-token-mass": """\
fields @timestamp, request_id, allowed_token_mass, decisions, @logStream
| filter event = "request" and allowed_token_mass < 0.5
| sort allowed_token_mass asc
| limit 100""",
    "start-up": """\
fields @timestamp, level, event, message, @logStream
| filter event != "request"
| sort @timestamp desc
| limit 200""",
    "request-by-id": """\
fields @timestamp, event, level, status, outcome, seconds, cause, @message
| filter request_id = "PUT-THE-ID-HERE"
| sort @timestamp asc""",
}
