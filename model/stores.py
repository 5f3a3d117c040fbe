"""Where a packaged model goes: a bucket, or a folder of this machine."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import aws_cli


class StoreError(Exception):
    """The store cannot be read or written; the text says why, in one line."""


class Store(Protocol):
    """Files by key; a key never ends in `/`, so there are no empty "folder" objects."""

    def read(self, key: str) -> bytes | None:
        """Return what lies under `key`, or None when nothing does."""

    def write(self, path: Path, key: str) -> None:
        """Put the file at `path` under `key`; it is there as a whole or not at all."""

    def uri(self, key: str) -> str:
        """Return the address of `key`, which may also be a prefix that ends in `/`."""


@dataclass(frozen=True)
class Bucket:
    """A bucket of Amazon S3."""

    name: str

    def read(self, key: str) -> bytes | None:
        """Return what lies under `key`, or None when nothing does."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "object"
            try:
                aws_cli.get_object(self.name, key, str(path))
            except aws_cli.AwsError as error:
                if error.is_missing:
                    return None
                raise StoreError(f"{self.uri(key)} cannot be read: {error}") from None
            return path.read_bytes()

    def write(self, path: Path, key: str) -> None:
        """Upload the file at `path`."""
        try:
            aws_cli.upload(str(path), self.name, key)
        except aws_cli.AwsError as error:
            raise StoreError(f"{self.uri(key)} cannot be written: {error}") from None

    def uri(self, key: str) -> str:
        """Return the S3 URI of `key`."""
        return f"s3://{self.name}/{key}"


@dataclass(frozen=True)
class Folder:
    """A folder of this machine."""

    root: Path

    def read(self, key: str) -> bytes | None:
        """Return what lies under `key`, or None when nothing does."""
        try:
            return (self.root / key).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"{self.root / key} cannot be read: {error.strerror}") from None

    def write(self, path: Path, key: str) -> None:
        """Copy the file at `path`."""
        target = self.root / key
        fresh = target.with_name(f".{target.name}.new")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, fresh)
            fresh.replace(target)
        except OSError as error:
            raise StoreError(f"{target} cannot be written: {error.strerror}") from None

    def uri(self, key: str) -> str:
        """Return the path of `key`."""
        return f"{self.root}/{key}"
