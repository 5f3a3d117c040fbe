"""Runs the AWS command line interface, which knows credentials, multipart uploads and retries."""

from __future__ import annotations

import subprocess


class AwsError(Exception):
    """A command failed; the text is what the AWS CLI said last, in one line."""

    @property
    def is_missing(self) -> bool:
        """Whether the object does not exist."""
        return "(NoSuchKey)" in str(self) or "(404)" in str(self)


def aws(*arguments: str) -> None:
    """Run `aws` with `arguments`.

    Raises:
        AwsError: it failed, or is not installed.
    """
    try:
        ended = subprocess.run(
            ["aws", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            check=False,
        )
    except FileNotFoundError:
        raise AwsError("the AWS CLI is not installed: there is no `aws` on the PATH") from None
    if ended.returncode:
        lines = [line.strip() for line in ended.stderr.splitlines() if line.strip()]
        reason = lines[-1] if lines else f"status {ended.returncode}"
        raise AwsError(f"aws {' '.join(arguments[:2])}: {reason}")


def get_object(bucket: str, key: str, path: str, *, version: str | None = None) -> None:
    """Download an object, or one version of it, to `path`.

    Raises:
        AwsError: it cannot be had.
    """
    chosen = ("--version-id", version) if version else ()
    aws("s3api", "get-object", "--bucket", bucket, "--key", key, *chosen, path)


def upload(path: str, bucket: str, key: str) -> None:
    """Upload the file at `path`, in parts where it is large.

    Raises:
        AwsError: it cannot be written.
    """
    aws("s3", "cp", "--only-show-errors", path, f"s3://{bucket}/{key}")
