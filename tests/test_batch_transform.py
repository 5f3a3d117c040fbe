"""What `ballot batch` asks of batch transform, and makes of what it says, without an account."""

from __future__ import annotations

import json
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import botocore.session
import pytest

from ballot.batch.answers import own_error
from ballot.batch.errors import BatchError
from ballot.batch.lines import Line, look_at
from ballot.commands import transform_jobs
from ballot.commands.inventory import DeployedEndpoint, DeployedModel, Provenance
from ballot.commands.transform_jobs import (
    _batch_model,
    _data,
    _extend,
    _part_lines,
    _Place,
    _resources,
)
from ballot.errors import BallotError
from stacks.instance_types import hardware_of, has_local_disks
from tests.adapter_process import ROOT
from tests.api_model import violations
from tests.cli_process import Scripted, ScriptedServer, aws_environment, ballot
from tests.lines_server import decision, encoded

KEY = "arn:aws:kms:eu-west-1:123456789012:key/0123abcd-0123-abcd-0123-0123456789ab"
PLACE = _Place.of("s3://bucket/batch/job")


def asked(instance_type: str, key: str | None) -> dict[str, Any]:
    return {
        "TransformJobName": "job",
        "ModelName": "model",
        "TransformResources": _resources(instance_type, 1, key),
        **_data(PLACE, key),
    }


def test_a_key_encrypts_answers_and_volumes() -> None:
    request = asked("ml.c7i.xlarge", KEY)
    assert violations("sagemaker", "CreateTransformJob", request) == []
    assert request["TransformOutput"]["KmsKeyId"] == KEY
    assert request["TransformResources"]["VolumeKmsKeyId"] == KEY
    assert "Kms" not in str(asked("ml.c7i.xlarge", None))


def test_the_volumes_that_take_a_key_are_those_of_the_stacks() -> None:
    model = botocore.session.get_session().get_service_model("sagemaker")
    offered: list[str] = model.shape_for("TransformInstanceType").enum
    taking = {name for name in offered if "VolumeKmsKeyId" in _resources(name, 1, KEY)}
    ours = {name for name in offered if hardware_of(name) == "cpu" and not has_local_disks(name)}
    assert taking == ours
    assert taking


def endpoint(tags: dict[str, str] | None) -> DeployedEndpoint:
    """Return an endpoint whose own model is an archive, with or without readable tags."""
    return DeployedEndpoint(
        name="ballot-dev-decision",
        status="InService",
        kind="decision",
        instances=(),
        wanted_instances=1,
        instance_types=("ml.c7i.xlarge",),
        image=None,
        model_name="own",
        model=DeployedModel("s3://bucket/models/0123456789abcdef-gzip/model.tar.gz", None),
        provenance=None if tags is None else Provenance(tags),
        changed=None,
        failure_reason=None,
    )


def test_only_the_tag_says_which_model_has_the_rights() -> None:
    assert _batch_model(endpoint({"batch-model": "packed"})) == "packed"
    with pytest.raises(BatchError, match='set "batch": true for it') as refused:
        _batch_model(endpoint({}))
    assert refused.value.code == "no_batch_model"
    with pytest.raises(BatchError, match="have sagemaker:ListTags granted") as refused:
        _batch_model(endpoint(None))
    assert refused.value.code == "no_tags"


@pytest.mark.parametrize(
    ("lines", "instances", "expected"),
    [(1, 1, 1), (4_999, 1, 4_999), (10_001, 1, 5_000), (350, 2, 44), (3, 4, 1), (10**7, 9, 5_000)],
)
def test_parts_keep_instances_busy_and_are_small_enough_to_lose(
    lines: int, instances: int, expected: int
) -> None:
    assert _part_lines(lines, instances) == expected


def test_parts_are_bounded_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part ends with the line that fills it; together they are the input."""
    monkeypatch.setattr(transform_jobs, "_MOST_PART_BYTES", 25)
    source, part = tmp_path / "in.jsonl", tmp_path / "part"
    source.write_bytes(b"".join(b"line-%03d\n" % number for number in range(8)))
    lines = look_at(source).read()
    sizes, content = [], b""
    while size := transform_jobs._write_part(part, lines, 5):
        sizes.append(size)
        content += part.read_bytes()
    assert sizes == [3, 3, 2]
    assert content == source.read_bytes()


def test_missing_lines_that_stand_together_are_told_together() -> None:
    ranges: list[tuple[int, int]] = []
    for first in (1, 11, 31, 41):
        _extend(ranges, first, first + 9)
    assert ranges == [(1, 20), (31, 50)]


def test_the_recipe_puts_the_answers_of_a_second_job_in_their_places(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "batch.md").read_text()
    (recipe,) = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    cut, merge = recipe.splitlines()
    numbers = range(1, 12_001)
    (tmp_path / "requests.jsonl").write_bytes(encoded(*map(decision, numbers)))
    error = BallotError("the job ended", code="not_answered", retryable=True)
    (tmp_path / "answers-of-the-job.jsonl").write_bytes(
        encoded(
            *(
                own_error(error, Line(n, b"{}")).line
                if 5_000 < n <= 10_000
                else {"result": {"id": f"d-{n}"}}
                for n in numbers
            )
        )
    )
    subprocess.run(["bash", "-ec", cut], cwd=tmp_path, check=True)
    rest = [json.loads(line) for line in (tmp_path / "rest.jsonl").read_bytes().splitlines()]
    (tmp_path / "answers-of-the-rest.jsonl").write_bytes(
        encoded(*({"result": {"id": request["decision"]["id"]}} for request in rest))
    )
    subprocess.run(["bash", "-ec", merge], cwd=tmp_path, check=True)
    answers = (tmp_path / "answers.jsonl").read_bytes()
    assert answers == encoded(*({"result": {"id": f"d-{n}"}} for n in numbers))


def test_jobs_of_an_endpoint_are_not_those_of_one_whose_name_begins_alike() -> None:
    jobs = [
        "ballot-dev-a-20260131-120000-1f2e",
        "ballot-dev-a-b-20260131-120000-1f2e",
        "other-ballot-dev-a-20260131-120000-1f2e",
        "ballot-dev-a-20260131-nightly",
    ]
    created = datetime(2026, 1, 31, 12, tzinfo=UTC)
    summaries = [
        {
            "TransformJobName": name,
            "TransformJobArn": f"arn:aws:sagemaker:eu-west-1:123456789012:transform-job/{name}",
            "CreationTime": created.timestamp(),
            "TransformJobStatus": "Completed",
        }
        for name in jobs
    ]
    with ScriptedServer(Scripted.of({"TransformJobSummaries": summaries})) as server:
        first, second = (
            ballot("batch", "list", "-e", name, **aws_environment(server.url)).stdout
            for name in ("ballot-dev-a", "ballot-dev-a-b")
        )
    assert first == f"{jobs[0]}  Completed  2026-01-31T12:00 UTC\n"
    assert second == f"{jobs[1]}  Completed  2026-01-31T12:00 UTC\n"


def test_fetching_into_a_name_that_says_gzip_is_refused() -> None:
    ended = ballot("batch", "fetch", "job", "-o", "answers.jsonl.gz")
    assert ended.returncode == 2
    assert "answers.jsonl.gz would not be gzip; name a file without .gz" in ended.stderr
