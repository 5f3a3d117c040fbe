"""Labelled data is read as it is meant, and every line that cannot be is named."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from ballot.decision import Option
from ballot.quality.examples import DataError, UnusableData, parse_jsonl, read_data
from tests.cli_process import ballot
from tests.evaluation import COLOURS, PUBLIC_TASKS, SAMPLE, native_line, write_lines

TEAMS = {
    "columns": {"id": "ticket", "state": "text", "expected": "team", "family": "channel"},
    "question": "Which team?",
    "options": [
        {"id": "billing", "description": "Payments."},
        {"id": "tech", "description": "Bugs."},
    ],
}


def task(id: str, kind: str, expected: Any, labels: list[str], **question: Any) -> dict[str, Any]:
    return {
        "id": id,
        "family": None,
        "group": None,
        "split": "public",
        "state": {"text": "I was charged twice.", "tags": ["billing", 2]},
        "labels": labels,
        "expected": expected,
        "question": {"type": kind, **question},
    }


# What the System One API allows beyond what the published tasks use.
UNUSUAL = [
    task("one-sided", "noul", "yes", ["no", "yes"], criteria={"true": "Money is asked back."}),
    task("bare", "noul", "no", ["no", "yes"], instructions="Is this urgent?", criteria=None),
    task(
        "structured",
        "choice",
        "b",
        ["b", "a c"],
        instructions={"rule": "pick é", "not": [1, 2.5]},
        criteria={"a c": {"z": 1, "a": "x"}, "b": ["one", "two"]},
    ),
    task("names", "choice", "up", ["up", "down"], criteria={"up": None, "down": "  "}),
    task("levels", "score", 1, ["0", "1"], instructions=" ", criteria=["Low", {"is": "high"}]),
]


def tasks() -> list[dict[str, Any]]:
    return [*map(json.loads, SAMPLE.read_text().splitlines()), *UNUSUAL]


@pytest.mark.parametrize("line", tasks(), ids=lambda line: line["id"])
def test_a_task_is_decided_bit_for_bit_as_its_question_is_answered(
    line: dict[str, Any], client: httpx.Client
) -> None:
    [example] = parse_jsonl("tasks", json.dumps(line).encode()).examples

    body = {"state": line["state"], "questions": {"asked": line["question"]}}
    asked = client.post("/invocations", json=body).json()["answers"]["asked"]
    decided = client.post("/invocations", json={"decision": example.decision.as_json()}).json()

    result = decided["result"]
    assert result["prompt_sha256"] == asked["x_prompt_sha256"]
    assert result["option_logits"] == asked["x_option_logits"]
    if example.kind == "noul":
        assert result["option_ids"] == ["yes", "no"]
        assert result["probabilities"][0] == asked["noul"]
    else:
        assert (
            dict(zip(result["option_ids"], result["probabilities"], strict=True))
            == (asked["probabilities"])
        )
    assert example.expected == str(line["expected"])
    assert sorted(result["option_ids"]) == sorted(line["labels"])


def test_the_sample_has_every_type_and_keeps_family_and_group() -> None:
    data = read_data(SAMPLE)

    assert Counter(example.kind for example in data.examples) == {
        "choice": 5,
        "noul": 4,
        "score": 3,
    }
    first = data.examples[0]
    assert (first.id, first.family, first.group) == (
        "original-policy-01-0",
        "policy",
        "original-policy-01",
    )
    assert data.sha256 == hashlib.sha256(SAMPLE.read_bytes()).hexdigest()


@pytest.mark.skipif(not PUBLIC_TASKS.exists(), reason="the 120 public tasks are not here")
def test_all_public_tasks_are_read() -> None:
    examples = read_data(PUBLIC_TASKS).examples
    lines = [json.loads(line) for line in PUBLIC_TASKS.read_text().splitlines()]

    assert [example.id for example in examples] == [line["id"] for line in lines]
    assert [example.expected for example in examples] == [str(line["expected"]) for line in lines]


def test_a_native_line_is_the_decision_that_a_request_has(tmp_path: Path) -> None:
    line = native_line("one", "blue", family="sky", group="g")
    # A line separator inside a string ends no line, and neither does an empty one.
    line["decision"]["state"] = {"text": "a\u2028b", "n": [1, None, True]}
    path = write_lines(tmp_path / "data.jsonl", json.dumps(line, ensure_ascii=False), "", "  ")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))

    [example] = read_data(path).examples

    assert json.loads(json.dumps(example.decision.as_json())) == line["decision"]
    assert (example.id, example.expected, example.kind) == ("one", "blue", "native")
    assert (example.family, example.group) == ("sky", "g")


def test_every_bad_line_is_named() -> None:
    lines = [
        json.dumps(native_line("good")),
        "{",
        "[]",
        '{"expected": "red"}',
        json.dumps(native_line("good")),
        json.dumps(native_line("other", "pink")),
        json.dumps(native_line("extra", more=1)),
        '{"decision": {"id": "a", "id": "b"}, "expected": "red"}',
        '{"decision": {"id": "a", "state": NaN}, "expected": "red"}',
        json.dumps({**native_line("family"), "family": 7}),
        json.dumps(native_line("unlabelled") | {"expected": None}),
        json.dumps({"decision": {"id": "half"}, "expected": "red"}),
        '{"decision": ' + "[" * 100_000,
    ]

    with pytest.raises(DataError) as caught:
        parse_jsonl("data", "\n".join(lines).encode())

    found = {bad.line: bad.message for bad in caught.value.bad_lines}
    assert list(found) == [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]
    assert "not JSON" in found[2]
    assert "not a JSON object" in found[3]
    assert "neither" in found[4]
    assert found[5] == "the id 'good' is that of line 1 too"
    assert "'pink'" in found[6]
    assert "'green'" in found[6]
    assert "more is not a field" in found[7]
    assert '"id" twice' in found[8]
    assert "NaN" in found[9]
    assert "family must be a string" in found[10]
    assert "expected must be a string" in found[11]
    assert "decision.state is missing" in found[12]
    assert "nests too deeply" in found[13]


def broken(change: Callable[[dict[str, Any]], object]) -> str:
    line = native_line("one")
    change(line["decision"])
    return json.dumps(line)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (broken(lambda it: it.update(options=it["options"][:1])), "at least 2 options, not 1"),
        (broken(lambda it: it["options"].append(it["options"][0])), "two options have the id"),
        (broken(lambda it: it.update(question=" ")), "the question is empty"),
        (broken(lambda it: it.update(id="")), "the id is empty"),
        (broken(lambda it: it["options"][0].update(description="")), "description of option 'red'"),
        (broken(lambda it: it.update(state="\ud800")), "surrogate"),
        (json.dumps(task("t", "rank", "a", ["a"])), "question.type must be one of"),
        (
            json.dumps(task("t", "choice", "a", ["a", "b"], criteria=["a", "b"])),
            "must be an object",
        ),
        (json.dumps(task("t", "score", 0, ["0"], criteria={"0": "x"})), "must be an array"),
        (
            json.dumps(task("t", "noul", "yes", ["no", "yes"], criteria={"maybe": "x"})),
            "true, false",
        ),
        (json.dumps(task("t", "noul", "true", ["true", "false"])), "labels must be"),
        (json.dumps(task("t", "score", 2, ["0", "1"], criteria=["a", "b"])), "expected is '2'"),
        (json.dumps(task("t", "score", True, ["0", "1"], criteria=["a", "b"])), "must be a string"),
        (json.dumps(task("t", "score", 0, ["0", "1"], criteria=["a", None])), "description of"),
        (json.dumps(task("t", "noul", "yes", ["no", "yes"], instructions=5)), "instructions must"),
    ],
)
def test_what_no_endpoint_takes_is_a_bad_line(line: str, told: str) -> None:
    with pytest.raises(DataError) as caught:
        parse_jsonl("data", line.encode())

    [bad] = caught.value.bad_lines
    assert bad.line == 1
    assert told in bad.message


@pytest.mark.parametrize(
    ("content", "told"),
    [(b"", "has no examples"), (b"\n \n", "has no examples"), (b"{}\n\xff", "not UTF-8 (line 2)")],
)
def test_a_file_without_examples_or_not_in_utf8_is_refused(content: bytes, told: str) -> None:
    with pytest.raises(UnusableData) as caught:
        parse_jsonl("data", content)

    assert told in caught.value.message


def write_csv(folder: Path, *rows: list[str]) -> Path:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    path = folder / "tickets.csv"
    path.write_text(text.getvalue(), encoding="utf-8")
    return path


def write_mapping(folder: Path, mapping: Any) -> Path:
    return write_lines(folder / "tickets.json", mapping)


HEADER = ["ticket", "channel", "text", "team"]


def test_columns_of_csv_become_examples(tmp_path: Path) -> None:
    written = 'Charged "twice",\nplease refund é'
    path = write_csv(tmp_path, HEADER, ["t-1", "mail", written, "billing"], ["2", "", "x", "tech"])

    data = read_data(path, write_mapping(tmp_path, TEAMS))

    first, second = data.examples
    assert (first.id, first.decision.state, first.expected, first.family) == (
        "t-1",
        written,
        "billing",
        "mail",
    )
    assert first.decision.question == "Which team?"
    assert first.decision.options == (Option("billing", "Payments."), Option("tech", "Bugs."))
    assert (second.id, second.expected, second.kind) == ("2", "tech", "native")
    assert (
        data.mapping_sha256 == hashlib.sha256((tmp_path / "tickets.json").read_bytes()).hexdigest()
    )


def test_blank_families_and_groups_are_none(tmp_path: Path) -> None:
    """A cell that nobody filled in makes no group of all that have one."""
    path = write_csv(
        tmp_path, HEADER, ["1", "", "a", "tech"], ["2", " ", "b", "tech"], ["3", "m", "c", "tech"]
    )
    columns = {"state": "text", "expected": "team", "group": "channel", "family": "channel"}
    rows = read_data(path, write_mapping(tmp_path, {**TEAMS, "columns": columns})).examples
    assert [(row.family, row.group) for row in rows] == [(None, None), (None, None), ("m", "m")]

    written = [
        native_line("one", "blue", family="", group=" "),
        {**task("two", "noul", "no", ["no", "yes"]), "family": " ", "group": ""},
    ]
    lines = read_data(write_lines(tmp_path / "data.jsonl", *map(json.dumps, written))).examples
    assert [(line.family, line.group) for line in lines] == [(None, None), (None, None)]


def test_several_columns_make_an_object_and_rows_without_an_id_are_counted(tmp_path: Path) -> None:
    path = write_csv(tmp_path, HEADER, ["7", "mail", "a", "tech"], ["8", "web", "b", "tech"])
    columns = {"state": ["text", "channel"], "expected": "team"}

    data = read_data(path, write_mapping(tmp_path, {**TEAMS, "columns": columns}))

    assert [example.id for example in data.examples] == ["1", "2"]
    assert data.examples[1].decision.state == {"text": "b", "channel": "web"}


def test_bad_rows_of_csv_are_named_by_the_line_on_which_they_begin(tmp_path: Path) -> None:
    path = write_csv(
        tmp_path,
        HEADER,
        ["1", "mail", "two\nlines", "billing"],
        ["2", "mail", "short"],
        ["1", "mail", "x", "tech"],
        ["4", "mail", "x", "sales"],
    )

    with pytest.raises(DataError) as caught:
        read_data(path, write_mapping(tmp_path, TEAMS))

    found = {bad.line: bad.message for bad in caught.value.bad_lines}
    assert list(found) == [4, 5, 6]
    assert found[4] == "there are 3 cells; the header has 4 columns"
    assert found[5] == "the id '1' is that of line 2 too"
    assert "'sales'" in found[6]


def test_broken_quoting_is_named_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "tickets.csv"
    path.write_text('ticket,channel,text,team\n1,mail,"a" b,tech\n')

    with pytest.raises(DataError) as caught:
        read_data(path, write_mapping(tmp_path, TEAMS))

    [bad] = caught.value.bad_lines
    assert bad.line == 2
    assert "not CSV" in bad.message


@pytest.mark.parametrize(
    ("mapping", "told"),
    [
        ([], "not a JSON object"),
        ("{", "not JSON"),
        ({**TEAMS, "limit": 3}, "limit is not a field"),
        ({**TEAMS, "columns": {"expected": "team"}}, "columns.state must be"),
        ({**TEAMS, "columns": {"state": [], "expected": "team"}}, "columns.state must be"),
        ({**TEAMS, "columns": {"state": "text"}}, "columns.expected is missing"),
        ({**TEAMS, "columns": {"state": "body", "expected": "team"}}, "no column 'body'"),
        ({**TEAMS, "question": 3}, "question must be a string"),
        ({**TEAMS, "options": {"billing": "Payments."}}, "options must be an array"),
        ({**TEAMS, "options": [{"id": "billing"}]}, "options[0].description is missing"),
    ],
)
def test_a_mapping_that_does_not_fit_is_refused(tmp_path: Path, mapping: Any, told: str) -> None:
    path = write_csv(tmp_path, HEADER, ["1", "mail", "x", "tech"])

    with pytest.raises(UnusableData) as caught:
        read_data(path, write_mapping(tmp_path, mapping))

    assert told in caught.value.message


def test_a_column_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = write_csv(tmp_path, [*HEADER, "text"], ["1", "mail", "x", "tech", "y"])

    with pytest.raises(UnusableData) as caught:
        read_data(path, write_mapping(tmp_path, TEAMS))

    assert "several columns 'text'" in caught.value.message


def test_csv_without_a_mapping_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnusableData, match="--map"):
        read_data(write_csv(tmp_path, HEADER))
    with pytest.raises(UnusableData, match="No such file"):
        read_data(tmp_path / "nowhere.jsonl")


def test_the_command_lists_bad_lines_and_asks_nothing(tmp_path: Path) -> None:
    lines = [native_line(f"e-{index}", "pink") for index in range(25)]
    path = write_lines(tmp_path / "data.jsonl", native_line("good"), *lines)

    ended = ballot(
        "evaluate", str(path), "--url", "http://127.0.0.1:9", "--out", str(tmp_path / "o")
    )

    told = ended.stderr.splitlines()
    assert ended.returncode == 2
    assert [line.split(":")[1] for line in told[:20]] == [str(line) for line in range(2, 22)]
    assert told[20] == "data.jsonl: and 5 more"
    assert told[21].startswith("ballot: data.jsonl: 25 lines cannot be used; ")
    assert not (tmp_path / "o").exists()
    assert all(f"'{name}'" in told[0] for name in COLOURS)
