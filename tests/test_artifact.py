"""The model artifact: which GGUF is found, in which shards, and what it hashes to."""

from __future__ import annotations

import io
import subprocess
from pathlib import Path

import pytest

from adapter.artifact import digest, find_artifact
from adapter.errors import StartupError

SHARDS = tuple(f"m-0000{number}-of-00003.gguf" for number in (1, 2, 3))

# FIPS 180-2, appendix B: the SHA-256 of "abc" and of a million times "a".
ABC_SHA256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
MILLION_A_SHA256 = "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"


def make_files(folder: Path, *names: str, content: bytes = b"GGUF and the rest") -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def found(folder: Path, gguf: str | None = None) -> list[str]:
    artifact = find_artifact(folder, None if gguf is None else folder / gguf)
    assert artifact.path == artifact.shards[0]
    return [str(shard.relative_to(folder)) for shard in artifact.shards]


@pytest.mark.parametrize(
    ("files", "shards"),
    [
        (["m.gguf"], ["m.gguf"]),
        (["m.gguf", "model-manifest.json", "tokenizer/tokenizer.json"], ["m.gguf"]),
        (["q4/m.gguf", "README.md"], ["q4/m.gguf"]),
        (["m.gguf", "a/b/other.gguf"], ["m.gguf"]),
        ([*SHARDS], [*SHARDS]),
        ([f"q4/{name}" for name in SHARDS], [f"q4/{name}" for name in SHARDS]),
        # Names that only look like a shard's.
        (["m-1-of-3.gguf"], ["m-1-of-3.gguf"]),
        (["m-00001-of-00001.gguf"], ["m-00001-of-00001.gguf"]),
    ],
)
def test_the_only_model_is_found(files: list[str], shards: list[str], tmp_path: Path) -> None:
    make_files(tmp_path, *files)
    assert found(tmp_path) == shards


@pytest.mark.parametrize("named", SHARDS)
def test_any_shard_names_them_all(named: str, tmp_path: Path) -> None:
    make_files(tmp_path, *SHARDS, "another.gguf")
    assert found(tmp_path, named) == [*SHARDS]


@pytest.mark.parametrize("named", ["m-00000-of-00000.gguf", "m-00004-of-00003.gguf"])
def test_a_shard_that_cannot_be_is_refused(named: str, tmp_path: Path) -> None:
    make_files(tmp_path, *SHARDS, named)
    with pytest.raises(StartupError, match=f"{named} cannot be: its name counts shards from 1"):
        find_artifact(tmp_path, tmp_path / named)


def test_a_named_file_stands_before_the_folder(tmp_path: Path) -> None:
    make_files(tmp_path, "a.gguf", "b.gguf")
    assert found(tmp_path, "b.gguf") == ["b.gguf"]


def test_a_named_file_needs_no_ending(tmp_path: Path) -> None:
    make_files(tmp_path, "weights")
    assert found(tmp_path, "weights") == ["weights"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "no .gguf file in {folder} or one level down; put one there or set BALLOT_GGUF_PATH"),
        (
            ["a/b/m.gguf", "README.md"],
            "no .gguf file in {folder} or one level down; put one there or set BALLOT_GGUF_PATH",
        ),
        (
            ["b.gguf", "a.gguf"],
            "2 models in {folder} (a.gguf, b.gguf); set BALLOT_GGUF_PATH to one of them",
        ),
        (
            ["a.gguf", *SHARDS, "q8/a.gguf"],
            "3 models in {folder} (a.gguf, m-00001-of-00003.gguf, q8/a.gguf); "
            "set BALLOT_GGUF_PATH to one of them",
        ),
        (
            [SHARDS[0], SHARDS[2]],
            "the split GGUF misses its shard m-00002-of-00003.gguf; put it beside the others",
        ),
        (
            [SHARDS[1], SHARDS[2]],
            "the split GGUF misses its shard m-00001-of-00003.gguf; put it beside the others",
        ),
        (
            [SHARDS[0], SHARDS[1], "q4/" + SHARDS[2]],
            "2 models in {folder} (m-00001-of-00003.gguf, q4/m-00001-of-00003.gguf); "
            "set BALLOT_GGUF_PATH to one of them",
        ),
    ],
)
def test_folders_without_one_whole_model(files: list[str], message: str, tmp_path: Path) -> None:
    make_files(tmp_path, *files)
    with pytest.raises(StartupError) as refusal:
        find_artifact(tmp_path, None)
    assert str(refusal.value) == message.format(folder=tmp_path)


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(StartupError) as refusal:
        find_artifact(tmp_path / "model", None)
    assert str(refusal.value) == (
        f"there is no model folder {tmp_path}/model; set BALLOT_MODEL_DIR or BALLOT_GGUF_PATH"
    )


@pytest.mark.parametrize("name", ["absent.gguf", "folder.gguf", "dangling.gguf"])
def test_a_named_file_that_is_none(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder.gguf").mkdir()
    (tmp_path / "dangling.gguf").symlink_to(tmp_path / "nowhere")
    with pytest.raises(StartupError) as refusal:
        find_artifact(tmp_path, tmp_path / name)
    assert str(refusal.value) == f"BALLOT_GGUF_PATH names no file: {tmp_path}/{name}"


@pytest.mark.parametrize("content", [b"", b"GGU", b"gguf", b"PK\x03\x04", b"<html>", b"FUGG"])
def test_files_that_are_no_gguf(content: bytes, tmp_path: Path) -> None:
    make_files(tmp_path, "m.gguf", content=content)
    with pytest.raises(StartupError) as refusal:
        find_artifact(tmp_path, None)
    assert str(refusal.value) == (
        f"{tmp_path}/m.gguf is not a GGUF file; download or convert it again"
    )


def test_every_shard_must_be_a_gguf(tmp_path: Path) -> None:
    make_files(tmp_path, SHARDS[0], SHARDS[1])
    make_files(tmp_path, SHARDS[2], content=b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(StartupError) as refusal:
        find_artifact(tmp_path, None)
    assert str(refusal.value) == (
        f"{tmp_path}/{SHARDS[2]} is not a GGUF file; download or convert it again"
    )


def test_a_folder_named_like_a_model(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").mkdir()
    with pytest.raises(StartupError) as refusal:
        find_artifact(tmp_path, None)
    assert str(refusal.value) == (
        f"{tmp_path}/m.gguf cannot be read (Is a directory); mend it or set BALLOT_GGUF_PATH"
    )


@pytest.mark.parametrize(
    ("contents", "sha256"),
    [
        ([b"abc"], ABC_SHA256),
        ([b"a", b"bc"], ABC_SHA256),
        ([b"ab", b"", b"c"], ABC_SHA256),
        ([b"a" * 1_000_000], MILLION_A_SHA256),
        ([b"a" * 600_000, b"a" * 400_000], MILLION_A_SHA256),
    ],
)
def test_sha256_is_of_the_shards_one_after_another(contents: list[bytes], sha256: str) -> None:
    assert digest(map(io.BytesIO, contents)) == sha256


def test_sha256_of_files_larger_than_a_read(tmp_path: Path) -> None:
    first, second = tmp_path / "1.gguf", tmp_path / "2.gguf"
    first.write_bytes(bytes(range(256)) * 12_288 + b"the rest")
    second.write_bytes(b"GGUF" * 300_000)
    printed = subprocess.run(
        ["/bin/sh", "-c", 'cat "$1" "$2" | sha256sum', "sh", str(first), str(second)],
        check=True,
        capture_output=True,
        text=True,
    )
    with first.open("rb") as one, second.open("rb") as other:
        assert digest([one, other]) == printed.stdout.split()[0]
