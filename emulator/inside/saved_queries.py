"""Saved queries of CloudWatch Logs Insights: kept and described."""

from __future__ import annotations

import time
import uuid
from typing import Any

from ministack.core.responses import AccountRegionScopedDict

from emulator.inside.services import ApiError, Json, JsonService

queries: Any = AccountRegionScopedDict()


def _put(p: Json) -> Json:
    identity = p.get("queryDefinitionId")
    if identity is not None and identity not in queries:
        raise ApiError("ResourceNotFoundException", f"There is no query definition {identity}.")
    identity = identity or str(uuid.uuid4())
    kept = {name: value for name, value in p.items() if name != "clientToken"}
    queries[identity] = {
        "queryLanguage": "CWLI",
        **kept,
        "queryDefinitionId": identity,
        "lastModified": int(time.time() * 1000),
    }
    return {"queryDefinitionId": identity}


def _delete(p: Json) -> Json:
    if queries.pop(p["queryDefinitionId"], None) is None:
        raise ApiError("ResourceNotFoundException", "There is no such query definition.")
    return {"success": True}


def _describe(p: Json) -> Json:
    prefix = p.get("queryDefinitionNamePrefix", "")
    found = [query for query in queries.values() if query["name"].startswith(prefix)]
    return {"queryDefinitions": sorted(found, key=lambda query: str(query["name"]))}


SERVICE_API = JsonService(
    "logs",
    {
        "PutQueryDefinition": _put,
        "DeleteQueryDefinition": _delete,
        "DescribeQueryDefinitions": _describe,
    },
)
