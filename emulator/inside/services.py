"""Registers services with ministack: JSON operations checked against AWS's own API model."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import ministack.app as ministack_app
from ministack.core.responses import error_response_json, json_response

from emulator.inside.validation import problems

Json = dict[str, Any]
Response = tuple[int, dict[str, str], Any]
Operation = Callable[[Json], Json]
DataPlane = Callable[[str, str, dict[str, str], bytes], Awaitable[Response | None]]

JSON_1_1 = "application/x-amz-json-1.1"
log = logging.getLogger("ballot.emulator")


class ApiError(Exception):
    """An error that an AWS service answers."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class JsonService:
    """A service of the AWS JSON 1.1 protocol: a table of operations."""

    def __init__(self, name: str, operations: Mapping[str, Operation]) -> None:
        self.name = name
        self._operations = operations

    def call(self, operation: str, parameters: Json) -> Json:
        """Check the parameters as AWS would and run the operation.

        Raises:
            ApiError: the operation is not emulated, refuses, or its parameters are not valid.
        """
        if operation not in self._operations:
            raise ApiError("UnknownOperationException", f"{self.name}.{operation} is not emulated")
        if found := problems(self.name, operation, parameters):
            raise ApiError("ValidationException", "; ".join(found))
        return self._operations[operation](copy.deepcopy(parameters))

    def answer(self, target: str, body: bytes) -> Response:
        """Answer one request whose `X-Amz-Target` header is `target`."""
        try:
            result = self.call(target.rpartition(".")[2], json.loads(body or b"{}"))
        except ApiError as error:
            refusal: Response = error_response_json(
                error.code, error.message, 400, content_type=JSON_1_1
            )
            return refusal
        except ValueError:
            return_value: Response = error_response_json(
                "SerializationException", "the body is not JSON", 400, content_type=JSON_1_1
            )
            return return_value
        success: Response = json_response(result, content_type=JSON_1_1)
        return success

    def register(self, data_plane: DataPlane | None = None) -> None:
        """Have ministack route the service's requests here; `data_plane` sees them first."""

        async def handle(
            method: str, path: str, headers: dict[str, str], body: bytes, _: object
        ) -> Response:
            if data_plane is not None:
                answer = await data_plane(method, path, headers, body)
                if answer is not None:
                    return answer
            return await asyncio.to_thread(self.answer, headers.get("x-amz-target", ""), body)

        ministack_app.SERVICE_HANDLERS[self.name] = handle

    def register_beside(self) -> None:
        """Have ministack's own service of this name leave the operations known here to these."""
        inner = ministack_app.SERVICE_HANDLERS[self.name]

        async def handle(
            method: str, path: str, headers: dict[str, str], body: bytes, query: object
        ) -> Response:
            target = headers.get("x-amz-target", "")
            if target.rpartition(".")[2] in self._operations:
                return await asyncio.to_thread(self.answer, target, body)
            answer: Response = await inner(method, path, headers, body, query)
            return answer

        ministack_app.SERVICE_HANDLERS[self.name] = handle


def check_requests(service: str) -> None:
    """Check the requests of one of ministack's own JSON services against AWS's API model."""
    inner = ministack_app.SERVICE_HANDLERS[service]

    async def handle(
        method: str, path: str, headers: dict[str, str], body: bytes, query: object
    ) -> Response:
        operation = headers.get("x-amz-target", "").rpartition(".")[2]
        try:
            parameters = json.loads(body or b"{}")
        except ValueError:
            parameters = None
        if operation and isinstance(parameters, dict):
            found = problems(service, operation, parameters)
            if found:
                code = "InvalidParameterException" if service == "ecr" else "InvalidInputException"
                refusal: Response = error_response_json(
                    code, "; ".join(found), 400, content_type=JSON_1_1
                )
                return refusal
        answer: Response = await inner(method, path, headers, body, query)
        return answer

    ministack_app.SERVICE_HANDLERS[service] = handle
