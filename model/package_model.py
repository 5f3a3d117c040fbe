#!/usr/bin/env python3
"""Fetch a pinned GGUF model, prove that it is whole and the pinned one, and store it.

    python3 package_model.py --source '{"kind": "hub", "repository": "owner/name", ...}' \\
        --sha256 <64 hex> --bucket <bucket>

Needs Python 3.11, and the AWS CLI where a bucket takes part. CodeBuild gives the same by the
environment variables that `--help` names. What is stored, under `models/<16 hex>/` (or
`models/<16 hex>-gzip/`), where the digits are the first of the model's SHA-256:

    <name>.gguf           the model, in as many files as it has shards
    tokenizer/            the reference tokenizer's files, where they were asked for
    model.tar.gz          with gzip, instead of the above: all of it and the manifest, in one file
    model-manifest.json   written last, so that whatever has a manifest is complete

The manifest is one JSON object:

    schema             1
    source             where the model came from: the JSON that was given
    tokenizer_source   the same for the tokenizer, or null
    sha256             of the model; of a split one, of its shards' bytes one after another
    bytes              of the model, all shards together
    files              each file's path in the artifact, bytes and SHA-256
    archive            model.tar.gz's path, bytes and SHA-256, or null
    architecture       such as `qwen35`
    quantization       such as `Q4_K_M`, or null where the file does not say
    layers             how many blocks the model has, or null
    context_length     in tokens, as trained, or null
    gguf               version, shards, tensors and metadata_entries as the headers count them
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import shlex
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from downloads import ChecksumError, SourceError, Stored, hash_file
from gguf_header import GgufError, Header, check_shards, read_header
from sources import (
    HUB_URL,
    BadInput,
    HubSource,
    Source,
    parse_sha256,
    parse_source,
    parse_tokenizer,
)
from stores import Bucket, Folder, Store, StoreError

MANIFEST = "model-manifest.json"
ARCHIVE = "model.tar.gz"
SCHEMA = 1
COMPRESSIONS = ("none", "gzip")
EXIT_STATUS: dict[type[Exception], int] = {
    BadInput: 2,
    SourceError: 3,
    ChecksumError: 4,
    GgufError: 5,
    StoreError: 6,
    OSError: 7,
}
_STATUSES = """exit status:
  0  stored, or there already       4  a checksum is not the pinned one
  2  bad arguments                  5  not a whole GGUF model
  3  the source cannot be had       6  the store cannot be read or written
                                    7  this machine failed: no space, no permission"""

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to package; `described` holds the sources' own JSON, for the manifest."""

    source: Source
    sha256: str
    tokenizer: HubSource | None
    compression: str
    described: dict[str, Any]

    @property
    def prefix(self) -> str:
        """Where the artifact lies in its store."""
        suffix = "-gzip" if self.compression == "gzip" else ""
        return f"models/{self.sha256[:16]}{suffix}/"

    @property
    def data_key(self) -> str:
        """What SageMaker is given: the prefix, or the archive under it."""
        return self.prefix + (ARCHIVE if self.compression == "gzip" else "")


def package(request: Request, into: Store, *, say: Say) -> str:
    """Store the model that `request` asks for, unless it is there; return its address.

    Raises:
        SourceError: it cannot be had.
        ChecksumError: it is not the pinned one.
        GgufError: it is not whole.
        StoreError: the store cannot be read or written.
    """
    address = into.uri(request.data_key)
    if is_complete(into.read(request.prefix + MANIFEST), request):
        say(f"there already: {address}")
        return address
    with tempfile.TemporaryDirectory(prefix="ballot-model-") as folder:
        files, manifest = _fetch(request, Path(folder) / "artifact", say=say)
        if request.compression == "gzip":
            files, manifest = _archive(files, manifest, Path(folder), say=say)
        _upload(files, manifest, request.prefix, into, say=say)
    say(f"stored: {address}")
    return address


def is_complete(manifest: bytes | None, request: Request) -> bool:
    """Whether `manifest` is that of a complete artifact of what `request` asks for."""
    if manifest is None:
        return False
    try:
        found = json.loads(manifest)
    except (ValueError, RecursionError):
        return False
    wanted = {"schema": SCHEMA, "sha256": request.sha256, "tokenizer_source": None}
    wanted |= {"tokenizer_source": request.described["tokenizer_source"]}
    return isinstance(found, dict) and wanted.items() <= found.items()


def _fetch(request: Request, folder: Path, *, say: Say) -> tuple[dict[str, Stored], dict[str, Any]]:
    """Return the checked files of the artifact by their path in it, and its manifest."""
    folder.mkdir()
    say(f"fetching {json.dumps(request.described['source'])}")
    whole = hashlib.sha256()
    shards = request.source.fetch(folder, whole=whole)
    if whole.hexdigest() != request.sha256:
        names = ", ".join(shard.path.name for shard in shards)
        raise ChecksumError(names, expected=request.sha256, got=whole.hexdigest())
    headers = {shard.path.name: read_header(shard.path) for shard in shards}
    check_shards(headers)
    files = {shard.path.name: shard for shard in shards}
    if request.tokenizer is not None:
        say(f"fetching the tokenizer of {request.tokenizer.repository}")
        tokenizer = request.tokenizer.fetch(folder / "tokenizer", whole=hashlib.sha256())
        files |= {f"tokenizer/{file.path.name}": file for file in tokenizer}
    return files, _manifest(request, shards, headers, files)


def _manifest(
    request: Request,
    shards: Sequence[Stored],
    headers: Mapping[str, Header],
    files: Mapping[str, Stored],
) -> dict[str, Any]:
    first, *_ = headers.values()
    return {
        "schema": SCHEMA,
        **request.described,
        "sha256": request.sha256,
        "bytes": sum(shard.bytes for shard in shards),
        "files": [_describe(path, file) for path, file in files.items()],
        "archive": None,
        "architecture": first.architecture,
        "quantization": first.quantization,
        "layers": first.layers,
        "context_length": first.context_length,
        "gguf": {
            "version": first.version,
            "shards": len(shards),
            "tensors": sum(len(header.tensors) for header in headers.values()),
            "metadata_entries": first.entries,
        },
    }


def _describe(path: str, file: Stored) -> dict[str, Any]:
    return {"path": path, "bytes": file.bytes, "sha256": file.sha256}


def _archive(
    files: Mapping[str, Stored], manifest: dict[str, Any], folder: Path, *, say: Say
) -> tuple[dict[str, Stored], dict[str, Any]]:
    """Put the files and their manifest into one archive; return it, and the manifest with it."""
    say(f"writing {ARCHIVE}")
    inside = _write_manifest(manifest, folder / "inside.json")
    members = {**{path: file.path for path, file in files.items()}, MANIFEST: inside}
    path = folder / ARCHIVE
    with path.open("wb") as out:
        write_archive(members, out)
    archive = hash_file(path)
    return {ARCHIVE: archive}, {**manifest, "archive": _describe(ARCHIVE, archive)}


def write_archive(members: Mapping[str, Path], out: IO[bytes]) -> None:
    """Write regular files into a tar.gz that depends on their names and bytes alone.

    Compression is the fastest there is: weights hardly shrink.
    """
    with (
        gzip.GzipFile(filename="", mode="wb", compresslevel=1, fileobj=out, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive,
    ):
        for name, path in sorted(members.items()):
            member = tarfile.TarInfo(name)
            member.size = path.stat().st_size
            member.mode = 0o644
            with path.open("rb") as file:
                archive.addfile(member, file)


def _upload(
    files: Mapping[str, Stored], manifest: Mapping[str, Any], prefix: str, into: Store, *, say: Say
) -> None:
    """Write the files, and the manifest only after all of them."""
    for name, file in files.items():
        say(f"uploading {name} ({file.bytes:,} bytes)")
        into.write(file.path, prefix + name)
    with tempfile.TemporaryDirectory() as folder:
        into.write(_write_manifest(manifest, Path(folder) / MANIFEST), prefix + MANIFEST)


def _write_manifest(manifest: Mapping[str, Any], path: Path) -> Path:
    path.write_text(json.dumps(manifest, indent=2) + "\n", "utf-8")
    return path


def _parser(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="package_model.py",
        description="Fetch a pinned GGUF model, check it, and store it by its content.",
        epilog=_STATUSES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )

    def option(name: str, variable: str, text: str, default: str = "") -> None:
        parser.add_argument(
            name, default=environ.get(variable) or default, help=f"{text} [{variable}]"
        )

    option("--source", "MODEL_SOURCE", "where the model comes from, as JSON")
    option("--sha256", "MODEL_SHA256", "the model's pinned SHA-256")
    option("--tokenizer", "MODEL_TOKENIZER", "repository and revision of its tokenizer, as JSON")
    option("--compression", "MODEL_COMPRESSION", "none, or gzip for batch transform", "none")
    option("--bucket", "ARTIFACT_BUCKET", "the bucket to store it in")
    option("--hub-url", "MODEL_HUB_URL", "the model hub or a mirror of it", HUB_URL)
    parser.add_argument("--output", type=Path, help="a folder to store it in, instead of a bucket")
    parser.add_argument("--exports", type=Path, help="a file for the result, as shell exports")
    return parser


def _read_request(options: argparse.Namespace) -> Request:
    """Return what the options ask for.

    Raises:
        BadInput: they ask for nothing that can be.
    """
    if options.compression not in COMPRESSIONS:
        raise BadInput(f"the compression is {options.compression!r}; it must be none or gzip")
    source = parse_source(options.source, hub_url=options.hub_url)
    tokenizer = parse_tokenizer(options.tokenizer, hub_url=options.hub_url)
    return Request(
        source=source,
        sha256=parse_sha256(options.sha256),
        tokenizer=tokenizer,
        compression=options.compression,
        described={
            "source": json.loads(options.source),
            "tokenizer_source": json.loads(options.tokenizer) if tokenizer else None,
        },
    )


def _store(options: argparse.Namespace) -> Store:
    if options.output is not None:
        return Folder(options.output)
    if not options.bucket:
        raise BadInput("there is neither a bucket nor an output folder to store the model in")
    return Bucket(options.bucket)


def _say(text: str) -> None:
    print(f"package_model: {text}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Package a model; return the exit status, which `--help` explains."""
    options = _parser(os.environ).parse_args(arguments)
    try:
        request = _read_request(options)
        address = package(request, _store(options), say=_say)
        exports = {"MODEL_DATA_URI": address, "GGUF_SHA256": request.sha256}
        if options.exports is not None:
            lines = [f"export {name}={shlex.quote(value)}\n" for name, value in exports.items()]
            options.exports.write_text("".join(lines), "utf-8")
    except tuple(EXIT_STATUS) as error:
        print(f"package_model: {' '.join(str(error).split())}", file=sys.stderr)
        return next(code for kind, code in EXIT_STATUS.items() if isinstance(error, kind))
    return 0


if __name__ == "__main__":
    sys.exit(main())
