"""The model build: what it fetches, refuses and stores, run as CodeBuild and as a person runs it.

A server of this machine stands for the hub, a folder of wheels for the package index, and a script
named `aws` for Amazon S3; the deployment tests run the same build with the real AWS CLI.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

import downloads
import package_model
from adapter.artifact import digest as adapter_digest
from adapter.artifact import find_artifact
from sources import parse_source, parse_tokenizer
from stores import Folder, StoreError
from tests.adapter_process import ROOT
from tests.gguf_models import BYTES_TEMPLATE, write_tiny_model
from tests.model_hub import Hub, running_hub

COMMIT = "4168f45a16a1290d65a4ec0fa312ae917a4c15d6"
OTHER_COMMIT = "851bf6e806efd8d0a36b00ddf55e13ccb7b8cd0a"
SHARDS = tuple(f"split-0000{number}-of-00005.gguf" for number in (1, 2, 3, 4, 5))
TOKENIZER = {"repository": "owner/base", "revision": OTHER_COMMIT}
TOKENIZER_FILES = {"tokenizer.json": b'{"model": {}}', "tokenizer_config.json": b"{}"}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class Models:
    """A small model, whole and in shards, as bytes by file name."""

    whole: bytes
    shards: dict[str, bytes]

    @property
    def sha256(self) -> str:
        return sha256(self.whole)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    folder = tmp_path_factory.mktemp("models")
    write_tiny_model(folder / "tiny.gguf", chat_template=BYTES_TEMPLATE)
    write_tiny_model(folder / "split.gguf", chat_template=BYTES_TEMPLATE, tensors_per_shard=4)
    return Models(
        whole=(folder / "tiny.gguf").read_bytes(),
        shards={name: (folder / name).read_bytes() for name in SHARDS},
    )


@pytest.fixture
def hub(models: Models, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setattr(downloads, "RETRY_SECONDS", 0.0)
    with running_hub() as hub:
        prefix = f"/owner/model/resolve/{COMMIT}"
        hub.files[f"{prefix}/tiny.gguf"] = models.whole
        hub.files |= {f"{prefix}/q4/{name}": data for name, data in models.shards.items()}
        hub.files |= {
            f"/owner/base/resolve/{OTHER_COMMIT}/{name}": data
            for name, data in TOKENIZER_FILES.items()
        }
        yield hub


def hub_source(*files: str) -> dict[str, Any]:
    named = {"file": files[0]} if len(files) == 1 else {"files": list(files)}
    return {"kind": "hub", "repository": "owner/model", "revision": COMMIT, **named}


def run(source: dict[str, Any], sha256: str, *options: str | Path, tokenizer: Any = None) -> int:
    """Run the build in this process; return its exit status."""
    given = ["--tokenizer", json.dumps(tokenizer)] if tokenizer else []
    return package_model.main(
        ["--source", json.dumps(source), "--sha256", sha256, *given, *map(str, options)]
    )


def stored(folder: Path) -> dict[str, bytes]:
    """Return what lies in a folder, by its path in it."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def manifest(files: dict[str, bytes], prefix: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(files[f"{prefix}model-manifest.json"])
    return found


# --- what is stored


def test_a_hub_model_is_stored_by_its_content(
    hub: Hub, models: Models, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        run(hub_source("tiny.gguf"), models.sha256, "--hub-url", hub.url, "--output", tmp_path) == 0
    )
    prefix = f"models/{models.sha256[:16]}/"
    files = stored(tmp_path)
    assert sorted(files) == [f"{prefix}model-manifest.json", f"{prefix}tiny.gguf"]
    assert files[f"{prefix}tiny.gguf"] == models.whole
    assert manifest(files, prefix) == {
        "schema": 1,
        "source": hub_source("tiny.gguf"),
        "tokenizer_source": None,
        "sha256": models.sha256,
        "bytes": len(models.whole),
        "files": [{"path": "tiny.gguf", "bytes": len(models.whole), "sha256": models.sha256}],
        "archive": None,
        "architecture": "llama",
        "quantization": "F32",
        "layers": 2,
        "context_length": 1024,
        "gguf": {"version": 3, "shards": 1, "tensors": 20, "metadata_entries": 20},
    }
    assert capsys.readouterr().out.splitlines()[-1] == f"package_model: stored: {tmp_path}/{prefix}"


def test_what_is_there_is_not_fetched_again(
    hub: Hub, models: Models, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--hub-url", hub.url, "--output", str(tmp_path))
    assert run(hub_source("tiny.gguf"), models.sha256, *options) == 0
    hub.requests.clear()
    capsys.readouterr()
    assert run(hub_source("tiny.gguf"), models.sha256, *options) == 0
    assert hub.requests == []
    assert capsys.readouterr().out.startswith("package_model: there already: ")


@pytest.mark.parametrize("left", [b"", b"{", b"[]", b"{}", b'{"schema": 0}'])
def test_an_artifact_without_its_manifest_is_made_again(
    left: bytes, hub: Hub, models: Models, tmp_path: Path
) -> None:
    path = tmp_path / f"models/{models.sha256[:16]}/model-manifest.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(left)
    assert (
        run(hub_source("tiny.gguf"), models.sha256, "--hub-url", hub.url, "--output", tmp_path) == 0
    )
    assert json.loads(path.read_bytes())["sha256"] == models.sha256


def test_a_split_model_is_fetched_whole_and_hashed_as_the_adapter_hashes_it(
    hub: Hub, models: Models, tmp_path: Path
) -> None:
    digest = sha256(b"".join(models.shards.values()))
    source = hub_source(f"q4/{SHARDS[2]}")
    assert run(source, digest, "--hub-url", hub.url, "--output", tmp_path) == 0
    folder = tmp_path / f"models/{digest[:16]}"
    found = manifest(stored(tmp_path), f"models/{digest[:16]}/")
    assert [item["path"] for item in found["files"]] == [*SHARDS]
    assert found["bytes"] == sum(map(len, models.shards.values()))
    assert found["gguf"]["shards"] == 5
    assert found["gguf"]["tensors"] == 20
    shards = find_artifact(folder, None).shards
    assert adapter_digest(io.BytesIO(shard.read_bytes()) for shard in shards) == digest


def test_the_tokenizer_comes_along_and_a_new_pin_is_fetched(
    hub: Hub, models: Models, tmp_path: Path
) -> None:
    options = ("--hub-url", hub.url, "--output", str(tmp_path))
    prefix = f"models/{models.sha256[:16]}/"
    assert run(hub_source("tiny.gguf"), models.sha256, *options) == 0
    assert run(hub_source("tiny.gguf"), models.sha256, *options, tokenizer=TOKENIZER) == 0
    files = stored(tmp_path)
    assert {
        name.removeprefix(f"{prefix}tokenizer/"): data
        for name, data in files.items()
        if "/tokenizer/" in name
    } == TOKENIZER_FILES
    assert manifest(files, prefix)["tokenizer_source"] == TOKENIZER
    assert [item["path"] for item in manifest(files, prefix)["files"]] == [
        "tiny.gguf",
        "tokenizer/tokenizer.json",
        "tokenizer/tokenizer_config.json",
    ]


def test_gzip_makes_one_archive_that_is_the_same_each_time(
    hub: Hub, models: Models, tmp_path: Path
) -> None:
    options = ("--compression", "gzip", "--hub-url", hub.url, "--output")
    for folder in (tmp_path / "a", tmp_path / "b"):
        assert (
            run(hub_source("tiny.gguf"), models.sha256, *options, folder, tokenizer=TOKENIZER) == 0
        )
    prefix = f"models/{models.sha256[:16]}-gzip/"
    files = stored(tmp_path / "a")
    assert files == stored(tmp_path / "b")
    assert sorted(files) == [f"{prefix}model-manifest.json", f"{prefix}model.tar.gz"]
    outside = manifest(files, prefix)
    assert outside["archive"] == {
        "path": "model.tar.gz",
        "bytes": len(files[f"{prefix}model.tar.gz"]),
        "sha256": sha256(files[f"{prefix}model.tar.gz"]),
    }
    # RFC 1952: bytes 4 to 7 are the time, and flag 8 in byte 3 says that a file name follows.
    assert files[f"{prefix}model.tar.gz"][3:8] == bytes(5)
    with tarfile.open(tmp_path / "a" / prefix / "model.tar.gz") as archive:
        members = archive.getmembers()
        contents = {item.name: archive.extractfile(item) for item in members}
        inside = {name: file.read() for name, file in contents.items() if file is not None}
    assert all(item.isreg() and item.mtime == 0 and item.mode == 0o644 for item in members)
    assert json.loads(inside.pop("model-manifest.json")) == {**outside, "archive": None}
    assert inside == {
        "tiny.gguf": models.whole,
        **{f"tokenizer/{name}": data for name, data in TOKENIZER_FILES.items()},
    }


def test_the_manifest_is_written_last(hub: Hub, models: Models, tmp_path: Path) -> None:
    written = []

    class Full(Folder):
        def write(self, path: Path, key: str) -> None:
            written.append(key.rpartition("/")[2])
            if key.endswith("tokenizer_config.json"):
                raise StoreError("the disk is full")
            super().write(path, key)

    source, tokenizer = hub_source("tiny.gguf"), json.dumps(TOKENIZER)
    request = package_model.Request(
        source=parse_source(json.dumps(source), hub_url=hub.url),
        sha256=models.sha256,
        tokenizer=parse_tokenizer(tokenizer, hub_url=hub.url),
        compression="none",
        described={"source": source, "tokenizer_source": TOKENIZER},
    )
    with pytest.raises(StoreError):
        package_model.package(request, Full(tmp_path), say=lambda text: None)
    assert written == ["tiny.gguf", "tokenizer.json", "tokenizer_config.json"]
    assert package_model.package(request, Folder(tmp_path), say=lambda text: None)
    assert (tmp_path / request.prefix / "model-manifest.json").is_file()


# --- connections


def url_of(hub: Hub) -> str:
    return f"{hub.url}/owner/model/resolve/{COMMIT}/tiny.gguf"


def test_a_broken_download_is_taken_up_where_it_broke(hub: Hub, models: Models) -> None:
    hub.broken = 3
    assert b"".join(downloads.read_url(url_of(hub))) == models.whole
    starts = [int(asked[6:-1]) if asked else 0 for _, asked in hub.requests]
    assert starts[0] == 0
    assert starts == sorted(set(starts))
    assert len(starts) == 4


def test_a_server_without_ranges_sends_it_all_again(hub: Hub, models: Models) -> None:
    hub.broken, hub.ranges = 2, False
    assert b"".join(downloads.read_url(url_of(hub))) == models.whole
    assert len(hub.requests) == 3


def test_a_server_that_is_busy_is_asked_again(hub: Hub, models: Models) -> None:
    hub.statuses = [503, 429, 500]
    assert b"".join(downloads.read_url(url_of(hub))) == models.whole


def test_a_redirect_keeps_the_range(hub: Hub, models: Models) -> None:
    hub.files["/elsewhere"] = models.whole
    hub.redirects[url_of(hub).removeprefix(hub.url)] = f"{hub.url}/elsewhere"
    hub.broken = 1
    assert b"".join(downloads.read_url(url_of(hub))) == models.whole
    assert hub.requests[-1] == ("/elsewhere", f"bytes={len(models.whole) // 2}-")


def test_a_download_that_keeps_breaking_ends(hub: Hub) -> None:
    hub.statuses = [503] * 100
    with pytest.raises(downloads.SourceError, match=r"HTTP 503 .* \(tried 8 times\)$"):
        list(downloads.read_url(url_of(hub)))
    assert len(hub.requests) == 8


# --- what is refused


def test_a_wrong_checksum_says_which_was_expected_and_which_came(
    hub: Hub, models: Models, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = "0" * 64
    assert run(hub_source("tiny.gguf"), wrong, "--hub-url", hub.url, "--output", tmp_path) == 4
    assert capsys.readouterr().err == (
        "package_model: the SHA-256 of tiny.gguf is not the pinned one: "
        f"expected {wrong}, got {models.sha256}\n"
    )
    assert stored(tmp_path) == {}


def test_a_file_that_the_hub_lacks(
    hub: Hub, models: Models, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--hub-url", hub.url, "--output", tmp_path)
    assert run(hub_source("other.gguf"), models.sha256, *options) == 3
    url = f"{hub.url}/owner/model/resolve/{COMMIT}/other.gguf"
    assert capsys.readouterr().err == f"package_model: {url}: HTTP 404 Not Found\n"
    assert len(hub.requests) == 1


def test_a_hub_that_is_not_there(
    hub: Hub, models: Models, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--hub-url", "http://127.0.0.1:1", "--output", tmp_path)
    assert run(hub_source("tiny.gguf"), models.sha256, *options) == 3
    assert "Connection refused (tried 8 times)" in capsys.readouterr().err


def test_a_split_that_misses_a_shard(
    hub: Hub, models: Models, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [name for name in SHARDS if name != SHARDS[3]]
    digest = sha256(b"".join(models.shards[name] for name in names))
    source = hub_source(*(f"q4/{name}" for name in names))
    assert run(source, digest, "--hub-url", hub.url, "--output", tmp_path) == 5
    assert capsys.readouterr().err == (
        f"package_model: {SHARDS[0]} is one of 5 shards, but the source has 4 of them\n"
    )
    assert stored(tmp_path) == {}


def test_a_file_that_is_no_gguf(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = b"<!DOCTYPE html><title>Sign in</title>"
    hub.files[f"/owner/model/resolve/{COMMIT}/page.gguf"] = page
    options = ("--hub-url", hub.url, "--output", tmp_path)
    assert run(hub_source("page.gguf"), sha256(page), *options) == 5
    assert capsys.readouterr().err == (
        "package_model: page.gguf: not a GGUF file: it does not start with GGUF\n"
    )


def test_an_output_folder_that_cannot_be_written(
    hub: Hub, models: Models, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    options = ("--hub-url", hub.url, "--output", tmp_path / "file")
    assert run(hub_source("tiny.gguf"), models.sha256, *options) == 6
    assert "cannot be read: Not a directory" in capsys.readouterr().err


GOOD_SOURCE = hub_source("tiny.gguf")
WHEEL = {
    "kind": "wheel",
    "project": "some-model",
    "version": "1.0",
    "filename": "some_model-1.0-py3-none-any.whl",
    "wheel_sha256": "0" * 64,
    "member": "some_model/tiny.gguf",
}
BAD_INPUTS = {
    "no source": ({"MODEL_SOURCE": ""}, "the source is not JSON"),
    "nested": ({"MODEL_SOURCE": "[" * 100_000}, "the source is not JSON: maximum recursion"),
    "half a character": (
        {"MODEL_SOURCE": '{"kind": "\\ud800"}'},
        "the source holds half of a surrogate pair, which is no text",
    ),
    "no file name": (
        {"MODEL_SOURCE": '{"kind": "s3", "uri": "s3://bucket/models/.."}'},
        "source.uri does not end in the name of a file",
    ),
    "no JSON": ({"MODEL_SOURCE": "hub"}, "the source is not JSON: Expecting value"),
    "no object": ({"MODEL_SOURCE": "[]"}, "the source is not a JSON object"),
    "no kind": (
        {"MODEL_SOURCE": "{}"},
        "source.kind is null; it must be hub, s3, wheel",
    ),
    "an unknown kind": (
        {"MODEL_SOURCE": '{"kind": "ftp"}'},
        'source.kind is "ftp"; it must be hub, s3, wheel',
    ),
    "a branch": (
        {"MODEL_SOURCE": json.dumps({**GOOD_SOURCE, "revision": "main"})},
        'source.revision is "main"; it must be a full commit: 40 lower-case hex digits',
    ),
    "a short commit": (
        {"MODEL_SOURCE": json.dumps({**GOOD_SOURCE, "revision": COMMIT[:12]})},
        "it must be a full commit",
    ),
    "two mistakes": (
        {"MODEL_SOURCE": json.dumps({**GOOD_SOURCE, "repository": "model", "revision": 1})},
        'source.repository is "model"; it must be owner/name; source.revision is 1; it must be a',
    ),
    "an unknown field": (
        {"MODEL_SOURCE": json.dumps({**GOOD_SOURCE, "branch": "main"})},
        "source.branch is unknown",
    ),
    "no file": (
        {"MODEL_SOURCE": json.dumps({**GOOD_SOURCE, "file": ""})},
        'source.file is ""; it must be a path in the repository',
    ),
    "a path that leaves the repository": (
        {"MODEL_SOURCE": json.dumps({**GOOD_SOURCE, "file": "../../etc/passwd"})},
        "source.files must be a list of paths in the repository, with distinct names",
    ),
    "an absolute path": (
        {"MODEL_SOURCE": json.dumps({**GOOD_SOURCE, "file": "/tiny.gguf"})},
        "source.files must be a list of paths",
    ),
    "two files of one name": (
        {"MODEL_SOURCE": json.dumps(hub_source("a/tiny.gguf", "b/tiny.gguf"))},
        "with distinct names",
    ),
    "a short wheel hash": (
        {"MODEL_SOURCE": json.dumps({**WHEEL, "wheel_sha256": "abc"})},
        'source.wheel_sha256 is "abc"; it must be 64 lower-case hex digits',
    ),
    "a wheel that is none": (
        {"MODEL_SOURCE": json.dumps({**WHEEL, "filename": "../x.tar.gz"})},
        "source.filename",
    ),
    "no S3 URI": (
        {"MODEL_SOURCE": '{"kind": "s3", "uri": "https://bucket/key.gguf"}'},
        'source.uri is "https://bucket/key.gguf"; it must be s3://bucket/key',
    ),
    "a version of several objects": (
        {
            "MODEL_SOURCE": json.dumps(
                {"kind": "s3", "uri": f"s3://bucket/{SHARDS[0]}", "version": "v1"}
            )
        },
        "source.version fixes one object, and the model has several shards",
    ),
    "an upper-case SHA-256": (
        {"MODEL_SHA256": "A" * 64},
        f"the SHA-256 is '{'A' * 64}'; it must be 64 lower-case hex digits",
    ),
    "an unknown compression": (
        {"MODEL_COMPRESSION": "zstd"},
        "the compression is 'zstd'; it must be none or gzip",
    ),
    "a tokenizer at a branch": (
        {"MODEL_TOKENIZER": json.dumps({**TOKENIZER, "revision": "main"})},
        'tokenizer.revision is "main"; it must be a full commit',
    ),
    "no store": ({"ARTIFACT_BUCKET": ""}, "there is neither a bucket nor an output folder"),
}


@pytest.mark.parametrize(("wrong", "message"), BAD_INPUTS.values(), ids=BAD_INPUTS.keys())
def test_bad_input_is_refused_before_anything_is_fetched(
    wrong: dict[str, str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    good = {
        "MODEL_SOURCE": json.dumps(GOOD_SOURCE),
        "MODEL_SHA256": "0" * 64,
        "ARTIFACT_BUCKET": "bucket",
    }
    for name, value in {**good, **wrong}.items():
        monkeypatch.setenv(name, value)
    assert package_model.main([]) == 2
    error = capsys.readouterr().err
    assert error.startswith("package_model: ")
    assert error.count("\n") == 1
    assert message in error


# --- wheels


@dataclass(frozen=True)
class Wheel:
    folder: Path
    sha256: str


@pytest.fixture
def wheel(models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wheel:
    """A wheel with the model in a folder that pip takes for its index."""
    path = tmp_path / "index" / str(WHEEL["filename"])
    path.parent.mkdir()
    info = "some_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("some_model/tiny.gguf", models.whole)
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: some-model\nVersion: 1.0\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(path.parent))
    return Wheel(path.parent, sha256(path.read_bytes()))


def test_a_file_of_a_wheel_is_stored(wheel: Wheel, models: Models, tmp_path: Path) -> None:
    source = {**WHEEL, "wheel_sha256": wheel.sha256}
    assert run(source, models.sha256, "--output", tmp_path / "out") == 0
    assert stored(tmp_path / "out")[f"models/{models.sha256[:16]}/tiny.gguf"] == models.whole


def test_another_wheel_is_refused(
    wheel: Wheel, models: Models, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(WHEEL, models.sha256, "--output", tmp_path / "out") == 4
    assert capsys.readouterr().err == (
        f"package_model: the SHA-256 of {WHEEL['filename']} is not the pinned one: "
        f"expected {WHEEL['wheel_sha256']}, got {wheel.sha256}\n"
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"member": "some_model/other.gguf"},
            f"{WHEEL['filename']} holds no some_model/other.gguf",
        ),
        ({"filename": "other-1.0.whl"}, f"pip brought {WHEEL['filename']}, not other-1.0.whl"),
        ({"version": "2.0"}, "No matching distribution found for some-model==2.0"),
    ],
)
def test_a_wheel_without_the_file(
    wrong: dict[str, str],
    message: str,
    wheel: Wheel,
    models: Models,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = {**WHEEL, "wheel_sha256": wheel.sha256, **wrong}
    assert run(source, models.sha256, "--output", tmp_path / "out") == 3
    assert message in capsys.readouterr().err


# --- Amazon S3


AWS = """\
#!/bin/sh
# Stands for the AWS CLI, with folders for buckets.
echo "$*" >> "$S3_ROOT/calls"
case "$1 $2" in
"s3api get-object")
    object="$S3_ROOT/$4/$6"
    [ "$7" = --version-id ] && object="$object@$8" && shift 2
    if [ "$4" = denied ]; then
        echo "An error occurred (AccessDenied) when calling the GetObject operation: no" >&2
        exit 254
    elif [ ! -f "$object" ]; then
        printf '\\nAn error occurred (NoSuchKey) when calling the GetObject operation: none\\n' >&2
        exit 254
    fi
    cp "$object" "$7" ;;
"s3 cp")
    target="$S3_ROOT/${5#s3://}"
    mkdir -p "${target%/*}" && cp "$4" "$target" ;;
*) echo "Unknown command" >&2; exit 252 ;;
esac
"""


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the buckets behind an `aws` that stands for the AWS CLI."""
    root = tmp_path / "s3"
    root.mkdir()
    command = tmp_path / "bin" / "aws"
    command.parent.mkdir()
    command.write_text(AWS)
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("S3_ROOT", str(root))
    return root


def calls(s3: Path) -> list[list[str]]:
    return [line.split() for line in (s3 / "calls").read_text().splitlines()]


def test_a_bucket_gets_the_files_and_no_folders(hub: Hub, models: Models, s3: Path) -> None:
    options = ("--hub-url", hub.url, "--bucket", "artifacts")
    assert run(hub_source("tiny.gguf"), models.sha256, *options, tokenizer=TOKENIZER) == 0
    prefix = f"models/{models.sha256[:16]}/"
    keys = [call[4] for call in calls(s3) if call[:2] == ["s3", "cp"]]
    assert keys == [
        f"s3://artifacts/{prefix}{name}"
        for name in (
            "tiny.gguf",
            "tokenizer/tokenizer.json",
            "tokenizer/tokenizer_config.json",
            "model-manifest.json",
        )
    ]
    (s3 / "calls").unlink()
    assert run(hub_source("tiny.gguf"), models.sha256, *options, tokenizer=TOKENIZER) == 0
    assert [call[:2] for call in calls(s3)] == [["s3api", "get-object"]]


@pytest.mark.parametrize("version", [None, "v7"])
def test_an_object_of_a_bucket(
    version: str | None, models: Models, s3: Path, tmp_path: Path
) -> None:
    (s3 / "theirs" / "a b").mkdir(parents=True)
    name = "tiny.gguf" if version is None else f"tiny.gguf@{version}"
    (s3 / "theirs" / "a b" / name).write_bytes(models.whole)
    source = {"kind": "s3", "uri": "s3://theirs/a b/tiny.gguf"}
    source |= {"version": version} if version else {}
    assert run(source, models.sha256, "--output", tmp_path / "out") == 0
    assert stored(tmp_path / "out")[f"models/{models.sha256[:16]}/tiny.gguf"] == models.whole


@pytest.mark.parametrize(
    ("bucket", "message"),
    [
        ("theirs", "s3api get-object: An error occurred (NoSuchKey)"),
        ("denied", "s3api get-object: An error occurred (AccessDenied)"),
    ],
)
def test_an_object_that_cannot_be_had(
    bucket: str,
    message: str,
    models: Models,
    s3: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = {"kind": "s3", "uri": f"s3://{bucket}/tiny.gguf"}
    assert run(source, models.sha256, "--output", tmp_path / "out") == 3
    assert f"s3://{bucket}/tiny.gguf: aws {message}" in capsys.readouterr().err


def test_a_bucket_that_cannot_be_read(
    hub: Hub, models: Models, s3: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--hub-url", hub.url, "--bucket", "denied")
    assert run(hub_source("tiny.gguf"), models.sha256, *options) == 6
    assert "(AccessDenied)" in capsys.readouterr().err
    assert hub.requests == []


def test_the_details_that_newer_aws_clis_add_hide_no_error(
    hub: Hub,
    models: Models,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Version 2.31 and later end what they say with the details of the error."""
    command = tmp_path / "bin" / "aws"
    command.parent.mkdir()
    command.write_text(
        "#!/bin/sh\n"
        'case "$2" in\n'
        "  get-object)\n"
        '    echo "An error occurred (NoSuchKey) when calling the GetObject operation: The '
        'specified key does not exist." >&2\n'
        '    printf "\\nAdditional error details:\\nKey: model-manifest.json\\n" >&2\n'
        "    exit 254 ;;\n"
        "  cp)\n"
        '    echo "An error occurred (AccessDenied) when calling the PutObject operation: no" >&2\n'
        '    printf "\\nAdditional error details:\\nHostId: x\\n" >&2\n'
        "    exit 254 ;;\n"
        "esac\n"
    )
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(command.parent), prepend=os.pathsep)
    options = ("--hub-url", hub.url, "--bucket", "artifacts")
    assert run(hub_source("tiny.gguf"), models.sha256, *options) == 6
    assert "(AccessDenied) when calling the PutObject" in capsys.readouterr().err
    assert hub.requests, "a manifest that is not there does not end the build"


def test_a_machine_without_the_aws_cli(
    hub: Hub, models: Models, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    options = ("--hub-url", hub.url, "--bucket", "artifacts")
    assert run(hub_source("tiny.gguf"), models.sha256, *options) == 6
    assert "the AWS CLI is not installed" in capsys.readouterr().err


# --- as a command


def test_help_needs_nothing_but_python() -> None:
    shown = subprocess.run(
        [sys.executable, "-S", ROOT / "model" / "package_model.py", "--help"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for variable in ("MODEL_SOURCE", "MODEL_SHA256", "MODEL_TOKENIZER", "MODEL_COMPRESSION"):
        assert f"[{variable}]" in shown
    assert "4  a checksum is not the pinned one" in shown


def test_the_buildspec_stores_the_model_and_exports_what_it_is(
    hub: Hub, models: Models, s3: Path, tmp_path: Path
) -> None:
    spec = yaml.safe_load((ROOT / "model" / "buildspec.yml").read_text())
    assert spec["version"] == 0.2
    assert spec["env"]["exported-variables"] == ["MODEL_DATA_URI", "GGUF_SHA256"]
    assert spec["phases"]["build"]["on-failure"] == "ABORT"
    source = tmp_path / "source"
    source.mkdir()
    for path in (ROOT / "model").iterdir():
        if path.is_file():
            (source / path.name).write_bytes(path.read_bytes())
    ended = subprocess.run(
        ["bash", "-ec", "\n".join([*spec["phases"]["build"]["commands"], "env"])],
        cwd=source,
        env={
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "S3_ROOT": str(s3),
            "MODEL_SOURCE": json.dumps(hub_source("tiny.gguf")),
            "MODEL_SHA256": models.sha256,
            "MODEL_TOKENIZER": "",
            "MODEL_COMPRESSION": "gzip",
            "MODEL_HUB_URL": hub.url,
            "ARTIFACT_BUCKET": "artifacts",
        },
        check=True,
        capture_output=True,
        text=True,
    )
    printed = ended.stdout.splitlines()
    prefix = f"s3://artifacts/models/{models.sha256[:16]}-gzip/"
    assert f"MODEL_DATA_URI={prefix}model.tar.gz" in printed
    assert f"GGUF_SHA256={models.sha256}" in printed
