"""How `ballot` ends: an exit status that docs/cli.md names, and one line that says what to do."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from ballot.commands.status import Status
from tests.adapter_process import PATIENCE, ROOT
from tests.cli_process import (
    COMMAND,
    SILENCE,
    Scripted,
    ScriptedServer,
    aws_environment,
    ballot,
    clean_environment,
    result,
)

SUPPORT_ROUTE = "examples/support-route.json"
ASK = ("decide", SUPPORT_ROUTE)
RESULT = result("support-route", {"account_access": 0.8, "billing": 0.15, "sales": 0.05})
ANSWER = Scripted.of({"result": RESULT})
DECISION = json.loads((ROOT / SUPPORT_ROUTE).read_text())["decision"]


def one_line(ended: subprocess.CompletedProcess[str]) -> str:
    """Check that the command ended with one line on its standard error, and return it."""
    assert ended.stdout == ""
    assert ended.stderr.startswith("ballot: ")
    assert ended.stderr.count("\n") == 1
    return ended.stderr.removeprefix("ballot: ").rstrip("\n")


def native_error(status: int, code: str, error: str, **more: Any) -> Scripted:
    """Return an error as docs/errors.md describes it."""
    said = {"error": error, "code": code, "field": None, "request_id": "id-1", **more}
    return Scripted.of({"retryable": status == 503, **said}, status)


def test_the_exit_statuses_are_those_documented() -> None:
    text = (ROOT / "docs/cli.md").read_text()
    documented = [int(number) for number in re.findall(r"^\| (\d+) \|", text, re.M)]
    assert documented == [status.value for status in Status]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("decide",), "Missing argument 'REQUEST'; see `ballot decide --help`"),
        (("vote",), "No such command 'vote'; see `ballot --help`"),
        ((*ASK, "--urls", "x"), "No such option: --urls"),
        ((*ASK, "--timeout", "soon"), "Invalid value for '--timeout'"),
        (ASK, "give one of --endpoint and --url; see --help"),
        ((*ASK, "--url", "http://x", "--endpoint", "y"), "give one of --endpoint and --url"),
        ((*ASK, "--url", "x:1"), "'x:1' is not a URL such as http://127.0.0.1:8080"),
        ((*ASK, "--url", "http://x", "--timeout", "0"), "--timeout 0.0: budget_seconds must be"),
        ((*ASK, "--url", "http://x", "--timeout", "nan"), "--timeout nan: budget_seconds must"),
        ((*ASK, "--url", "http://x", "--orders", "3"), "--orders 3 is not offered; give 1 or 2"),
        ((*ASK, "--url", "http://x", "--layout", "x"), "give evidence_first or criterion_first"),
        (("chat", " ", "--url", "http://x"), "there is nothing to say; give a text"),
        (("chat", "x", "--url", "http://x", "--max-tokens", "0"), "Invalid value for '--max-t"),
        (("endpoints", "-c", "Dev"), "'Dev' is no environment's name; take one of cdk.json"),
        (("doctor", "-c", "a b"), "'a b' is no environment's name"),
        (("endpoints",), "Missing option '-c' / '--environment'"),
        (("doctor", "-c", "dev", "--endpoint", "x"), "give one of --endpoint, --url and -c"),
        (("batch", "vote"), "No such command 'vote'; see `ballot batch --help`"),
        (("batch", "run", "x"), "Missing option '-o' / '--output'; see `ballot batch run --help`"),
        (("batch", "run", "x", "-o", "y"), "give one of --endpoint, --url and --model; see --help"),
        (
            ("batch", "run", "x", "-o", "y", "--url", "http://x", "--concurrency", "0"),
            "--concurrency 0 is not offered; give 1 to 64",
        ),
        (("batch", "run", "absent", "-o", "y", "--url", "http://x"), "cannot read absent: No such"),
        (("batch", "submit", "x"), "Missing option '-e' / '--endpoint'"),
        (("batch", "wait", "x", "--timeout", "0"), "--timeout 0 is no time; give seconds"),
        (("gateway",), "name an endpoint or a URL"),
        (("gateway", "--url", "http://x", "--endpoint", "y"), "give one of --endpoint and --url"),
        (("gateway", "--url", "http://x", "--host", "0.0.0.0"), "give it a key"),
    ],
)
def test_wrong_usage_is_2(arguments: tuple[str, ...], line: str) -> None:
    ended = ballot(*arguments)
    assert line in one_line(ended)
    assert ended.returncode == 2


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b"", "standard input is empty"),
        (b'{"decision": {\n  "id": }\n}', "is not JSON: line 2, column 9: Expecting value"),
        (b'{"decision": 1} {}', "is not JSON: line 1, column 17: Extra data"),
        (b'{"a": 1,\n "a": 2}', 'an object has the key "a" twice'),
        (b'{"decision": NaN}', "NaN is not a JSON number"),
        (b'{"decision": 1e999}', "the number 1e999 is too large"),
        (b'{"decision": ' + b"1" * 5000 + b"}", "Exceeds the limit (4300 digits)"),
        (b"[" * 100_000, "nests too deeply"),
        (b'{"decision":\n"\xff"}', "is not UTF-8 (line 2)"),
        (b"[]", "is no request; give a JSON object with decision, decisions or questions"),
        (b'{"state": "a"}', "is no request"),
        (b'{"decision": {}}', "decision.id is missing (missing_field)"),
        (b'{"decisions": []}', "decisions needs at least 1 (too_few_items)"),
        (b'{"decision": {}, "extra": 1}', "extra is not a field here; the fields are: "),
        (b'{"questions": []}', "questions must be an object (wrong_type)"),
        (b'{"questions": {}}', "state is missing (missing_field)"),
        (b'{"questions": {}, "state": "a", "assets": []}', "assets are not supported"),
    ],
    ids=range(17),
)
def test_an_unreadable_request_is_2_and_says_where(text: bytes, line: str) -> None:
    ended = ballot("decide", "-", "--url", "http://127.0.0.1:9", stdin=text)
    assert line in one_line(ended)
    assert ended.returncode == 2


def test_a_file_that_cannot_be_read_is_2(tmp_path: Path) -> None:
    for path, reason in (("absent.json", "No such file or directory"), (".", "Is a directory")):
        ended = ballot("decide", str(tmp_path / path), "--url", "http://127.0.0.1:9")
        assert f"{tmp_path / path}: {reason}; check the path" in one_line(ended)
        assert ended.returncode == 2


def test_what_editors_put_before_a_text_is_no_fault() -> None:
    with ScriptedServer(ANSWER) as server:
        text = "\ufeff" + (ROOT / SUPPORT_ROUTE).read_text()
        assert ballot("decide", "-", "--url", server.url, stdin=text).returncode == 0


@pytest.mark.parametrize(
    ("answer", "status", "line"),
    [
        (
            native_error(413, "too_many_tokens", "decision has 9000 tokens", field="decision"),
            1,
            "decision has 9000 tokens (too_many_tokens, request id-1); shorten the state",
        ),
        (
            native_error(400, "empty_value", "decision.id is empty"),
            1,
            "decision.id is empty (empty_value, request id-1); mend the request",
        ),
        (native_error(404, "not_found", "no such route"), 1, "check the URL"),
        (
            native_error(500, "scoring_failed", "the decision could not be scored"),
            1,
            "look into the endpoint's log",
        ),
        (Scripted(200, b"<html>"), 1, "the answer is not JSON (invalid_answer); check that it is"),
        (Scripted.of({"result": {}}), 1, "(invalid_answer)"),
        (Scripted.of({"error": {"message": "no\x1b[2J key", "type": "authentication_error"}}, 401),
         3, r"no\x1b[2J key (authentication_error); check the key"),
        (native_error(503, "loading", "the model is loading"), 3, "no answer within 0.3 s"),
    ],
)  # fmt: skip
def test_an_error_of_the_endpoint(answer: Scripted, status: int, line: str) -> None:
    with ScriptedServer(answer) as server:
        ended = ballot(*ASK, "--url", server.url, "--timeout", "0.3" if status == 3 else "60")
    assert line in one_line(ended)
    assert ended.returncode == status


def test_a_server_that_is_not_there_is_3_and_named() -> None:
    with ScriptedServer(ANSWER) as server:
        url = server.url
    ended = ballot(*ASK, "--url", url.replace("//", "//me:secret@"), "--timeout", "0.3")
    line = one_line(ended)
    assert ended.returncode == 3
    assert line.startswith(f"{url}: ")
    assert "Connection refused" in line
    assert "secret" not in line


def aws_error(code: str, message: str, status: int, **more: Any) -> Scripted:
    """Return an error as the AWS JSON protocols have it."""
    said = {"__type": code, "message": message, "Message": message, **more}
    return Scripted.of(said, status, x_amzn_errortype=code, x_amzn_requestid="aws-1")


@pytest.mark.parametrize(
    ("answer", "status", "line"),
    [
        (
            aws_error("ExpiredTokenException", "The security token is expired.", 403),
            3,
            "sign in (again): `aws sso login`",
        ),
        (
            aws_error("AccessDeniedException", "not authorized to sagemaker:InvokeEndpoint", 403),
            3,
            "have the permission that it names granted",
        ),
        (
            aws_error("ValidationError", "Endpoint absent of account 1 not found.", 400),
            3,
            "`ballot endpoints -c ENVIRONMENT` lists those there are",
        ),
        (
            aws_error(
                "ModelError",
                "Received client error (400) from primary",
                424,
                OriginalStatusCode=400,
                OriginalMessage=native_error(
                    400, "too_many_options", "decision.options has 300"
                ).body.decode(),
            ),
            1,
            "decision.options has 300 (too_many_options, request id-1); decide in two steps",
        ),
    ],
)
def test_an_error_of_sagemaker(answer: Scripted, status: int, line: str) -> None:
    with ScriptedServer(answer) as server:
        ended = ballot(*ASK, "--endpoint", "absent", **aws_environment(server.url))
    assert line in one_line(ended)
    assert ended.returncode == status
    assert len(server.received) == 1


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        ({"AWS_REGION": "eu-west-1"}, "Unable to locate credentials (no_credentials); sign in"),
        ({"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}, "(no_region); give --region"),
        ({"AWS_PROFILE": "nobody", "AWS_REGION": "eu-west-1"}, "(nobody) could not be found"),
    ],
)
@pytest.mark.parametrize("command", [(*ASK, "--endpoint", "x"), ("endpoints", "-c", "dev")])
def test_aws_that_is_not_set_up_is_3(
    command: tuple[str, ...], variables: dict[str, str], line: str
) -> None:
    ended = ballot(*command, **variables)
    assert line in one_line(ended)
    assert ended.returncode == 3


def test_a_stream_that_breaks_off_keeps_what_came() -> None:
    chunk = {"choices": [{"index": 0, "delta": {"content": "Red,"}}]}
    events = b"data: " + json.dumps(chunk).encode() + b"\n\n"
    stream = Scripted(200, events, {"content-type": "text/event-stream"})
    with ScriptedServer(stream) as server:
        ended = ballot("chat", "Colours?", "--url", server.url)
    assert (ended.returncode, ended.stdout) == (3, "Red,\n")
    assert ended.stderr.endswith("the answer broke off (broken_stream); try again\n")


def test_interrupting_is_130() -> None:
    """Ctrl-C while the answer is awaited: the server never gives it."""
    with ScriptedServer(SILENCE) as server:
        process = subprocess.Popen(
            [*COMMAND, *ASK, "--url", server.url],
            cwd=ROOT,
            env=clean_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        server.wait_for_request()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out, err) == (130, "", "ballot: interrupted\n")


def written_to(path: str | int, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run the command with an output that cannot be written to."""
    target = os.open(path, os.O_WRONLY) if isinstance(path, str) else path
    try:
        return subprocess.run(
            [*COMMAND, *arguments],
            cwd=ROOT,
            env=clean_environment(),
            stdout=target,
            stderr=subprocess.PIPE,
            timeout=PATIENCE,
            check=False,
        )
    finally:
        os.close(target)


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_reader_that_left_ends_it_in_silence(options: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with ScriptedServer(ANSWER) as server:
        ended = written_to(writer, *ASK, "--url", server.url, *options)
    assert (ended.returncode, ended.stderr) == (141, b"")


def test_an_output_that_is_full_is_told() -> None:
    expected = b"ballot: cannot write the output: No space left on device\n"
    with ScriptedServer(ANSWER) as server:
        ended = written_to("/dev/full", *ASK, "--url", server.url)
    assert (ended.returncode, ended.stderr) == (1, expected)
    ended = written_to("/dev/full", "--version")
    assert (ended.returncode, ended.stderr) == (1, expected)


def test_outputs_and_inputs_that_are_closed_do_no_harm() -> None:
    with ScriptedServer(ANSWER) as server:
        command = [*COMMAND, "decide", "-", "--url", server.url]
        for closed, status in (("<&-", 2), (">&-", 0), ("2>&-", 0), (">&- 2>&-", 0)):
            ended = subprocess.run(
                ["sh", "-c", f'exec "$@" {closed}', "sh", *command],
                cwd=ROOT,
                env=clean_environment(),
                input=None if "<" in closed else (ROOT / SUPPORT_ROUTE).read_bytes(),
                capture_output=True,
                timeout=PATIENCE,
                check=False,
            )
            assert ended.returncode == status, (closed, ended.stderr)
            assert b"Traceback" not in ended.stderr


def test_a_gateway_serves_until_it_is_told_to_stop_and_cannot_share_a_port() -> None:
    command = [*COMMAND, "gateway", "--url", "http://127.0.0.1:9", "--port", "0"]
    with subprocess.Popen(
        command, cwd=ROOT, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        port = json.loads(process.stdout.readline())["port"]
        assert httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200
        ended = ballot("gateway", "--url", "http://127.0.0.1:9", "--port", str(port))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (0, b"")
    line = one_line(ended)
    assert f"cannot listen on 127.0.0.1 port {port}: Address already in use" in line
    assert ended.returncode == 2


# A bug, made by replacing what reads the request.
BUGGY = """
import sys
from ballot.commands import main
sys.modules["ballot.commands.decide"].read_request = lambda source: {}[source]
sys.exit(main())
"""


def test_a_bug_is_told_in_one_line_and_shown_on_request() -> None:
    def run(**variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", BUGGY, *ASK, "--url", "http://x"],
            cwd=ROOT,
            env=clean_environment(**variables),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    ended = run()
    expected = f"KeyError: '{SUPPORT_ROUTE}'; this is a bug: please report it"
    assert one_line(ended).startswith(expected)
    assert ended.returncode == 1
    shown = run(BALLOT_DEBUG="1")
    assert "Traceback (most recent call last)" in shown.stderr
    assert shown.stderr.splitlines()[-1] == ended.stderr.rstrip()
