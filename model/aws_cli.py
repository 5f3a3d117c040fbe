"""Runs the AWS command line interface, which knows credentials, multipart uploads and retries."""

from __future__ import annotations

import os
import subprocess

# Version 2 of the CLI else writes details of an error on lines of their own, after the error.
_ONE_LINE_ERRORS = {"AWS_CLI_ERROR_FORMAT": "legacy"}


class AwsError(Exception):
    """A command failed; the text is the AWS CLI's error, in one line."""

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
            env={**os.environ, **_ONE_LINE_ERRORS},
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
        reason = _reason(ended.stderr) or f"status {ended.returncode}"
        raise AwsError(f"aws {' '.join(arguments[:2])}: {reason}")


def _reason(stderr: str) -> str:
    """Return the line that names the error, or else the last one."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    named = [line for line in lines if "An error occurred" in line]
    return (named or lines or [""])[-1]


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
