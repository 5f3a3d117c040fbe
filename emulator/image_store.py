"""The emulated Docker engine's images: what `docker build` was given, kept under its digest.

    images/<64 hex>/image.json    the build's inputs: base, Dockerfile, arguments
    images/<64 hex>/context/      a copy of the build context; none for a pulled image
    images/tags.json              tag -> digest

A digest is that of a manifest made from the inputs alone, so equal inputs give equal digests. The
standard library is all it needs: the `docker` stand-in and the emulator both read it.
"""

from __future__ import annotations

import fcntl
import fnmatch
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
_CONFIG_TYPE = "application/vnd.docker.container.image.v1+json"
_LAYER_TYPE = "application/vnd.docker.image.rootfs.diff.tar.gzip"


@dataclass(frozen=True)
class Image:
    """An image of the store."""

    base: str
    """The image that it is built from, or that it is, where nothing was built."""
    dockerfile: str | None = None
    arguments: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    """SHA-256 of each file of the build context, by its path."""

    @property
    def manifest(self) -> str:
        """The manifest as a registry holds it."""
        layer = _sha256(json.dumps(self.files, sort_keys=True))
        config = _sha256(json.dumps(asdict(self), sort_keys=True))
        return json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST_TYPE,
                "config": {"mediaType": _CONFIG_TYPE, "size": 0, "digest": config},
                "layers": [{"mediaType": _LAYER_TYPE, "size": 0, "digest": layer}],
            },
            separators=(",", ":"),
        )

    @property
    def layers(self) -> list[str]:
        """The digests of what is pushed beside the manifest."""
        manifest = json.loads(self.manifest)
        return [layer["digest"] for layer in (manifest["config"], *manifest["layers"])]

    @property
    def digest(self) -> str:
        """`sha256:` and 64 hex digits."""
        return _sha256(self.manifest)


class NoSuchImage(Exception):
    """The store lacks an image."""


class ImageStore:
    """The images under one folder; several processes may use it at once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(parents=True, exist_ok=True)

    def add(self, image: Image, *, context: Path | None = None) -> None:
        """Keep an image, with a copy of its build context."""
        target = self._folder(image.digest)
        if target.is_dir():
            return
        with tempfile.TemporaryDirectory(dir=self._root) as folder:
            whole = Path(folder) / "image"
            whole.mkdir()
            (whole / "image.json").write_text(json.dumps(asdict(image), indent=1))
            for name in image.files if context is not None else ():
                copy = whole / "context" / name
                copy.parent.mkdir(parents=True, exist_ok=True)
                assert context is not None
                shutil.copy(context / name, copy)
            try:
                whole.rename(target)
            except OSError:
                if not target.is_dir():  # another process was first
                    raise

    def get(self, digest: str) -> Image:
        """Return the image with a digest.

        Raises:
            NoSuchImage: there is none.
        """
        path = self._folder(digest) / "image.json"
        if not path.is_file():
            raise NoSuchImage(digest)
        return Image(**json.loads(path.read_text()))

    def context(self, digest: str) -> Path:
        """Return the folder of an image's build context."""
        return self._folder(digest) / "context"

    def tag(self, digest: str, name: str) -> None:
        """Give an image a name."""
        with self._locked():
            tags = {**self.tags(), name: digest}
            fresh = self._root / "tags.json.new"
            fresh.write_text(json.dumps(tags, indent=1, sort_keys=True))
            fresh.replace(self._root / "tags.json")

    def tags(self) -> dict[str, str]:
        """Return each name's digest."""
        path = self._root / "tags.json"
        found: dict[str, str] = json.loads(path.read_text()) if path.is_file() else {}
        return found

    def resolve(self, reference: str) -> str:
        """Return the digest of a name, or of a digest, an image id or a start of either.

        Raises:
            NoSuchImage: nothing has that name.
        """
        tags = self.tags()
        for name in (reference, f"{reference}:latest"):
            if name in tags:
                return tags[name]
        wanted = reference.removeprefix("sha256:")
        for digest in tags.values():
            if len(wanted) >= 12 and digest.removeprefix("sha256:").startswith(wanted):
                return digest
        raise NoSuchImage(reference)

    def _folder(self, digest: str) -> Path:
        return self._root / digest.removeprefix("sha256:")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self._root / "lock").open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield


def context_files(context: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a build context that `.dockerignore` does not exclude."""
    ignore = context / ".dockerignore"
    patterns = [
        line.strip().strip("/")
        for line in (ignore.read_text().splitlines() if ignore.is_file() else [])
        if line.strip() and not line.startswith("#")
    ]
    found = {}
    for folder, folders, files in os.walk(context):
        folders.sort()
        for file in sorted(files):
            path = Path(folder) / file
            name = path.relative_to(context).as_posix()
            if path.is_file() and not _is_ignored(name, patterns):
                found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def _is_ignored(name: str, patterns: list[str]) -> bool:
    ignored = False
    parts = name.split("/")
    prefixes = ["/".join(parts[: count + 1]) for count in range(len(parts))]
    for pattern in patterns:
        wanted = pattern.removeprefix("!").removeprefix("**/")
        anywhere = "**/" in pattern
        candidates = (*prefixes, *parts) if anywhere else prefixes
        if any(fnmatch.fnmatchcase(candidate, wanted) for candidate in candidates):
            ignored = not pattern.startswith("!")
    return ignored


def _sha256(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
