"""A certificate for the emulator, and a bundle that trusts it beside what the machine trusts."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import NamedTuple

# Whoever sets one of these needs it to reach package indexes from this machine.
BUNDLE_VARIABLES = (
    "AWS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_FILE",
)
_COMMAND = (
    *("openssl", "req", "-x509", "-nodes", "-days", "30", "-subj", "/CN=ballot-emulator"),
    *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
    *("-addext", "basicConstraints=critical,CA:FALSE"),
    *("-addext", "keyUsage=critical,digitalSignature"),
    *("-addext", "extendedKeyUsage=serverAuth"),
    *("-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"),
)


class Certificate(NamedTuple):
    """Files in PEM format."""

    certificate: Path
    key: Path
    bundle: Path


def make_certificate(folder: Path) -> Certificate:
    """Make a certificate for 127.0.0.1 in a folder.

    Raises:
        RuntimeError: there is no `openssl`, or it failed.
    """
    if shutil.which("openssl") is None:
        raise RuntimeError("the emulator needs openssl (Debian, Ubuntu: apt-get install openssl)")
    made = Certificate(folder / "server.crt", folder / "server.key", folder / "ca-bundle.pem")
    files = ("-out", made.certificate, "-keyout", made.key)
    result = subprocess.run([*_COMMAND, *files], capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"openssl failed: {result.stderr.strip()}")
    parts = [made.certificate, *_trusted_files()]
    made.bundle.write_bytes(b"\n".join(path.read_bytes() for path in parts))
    return made


def _trusted_files() -> list[Path]:
    paths = ssl.get_default_verify_paths()
    named = [paths.cafile, paths.openssl_cafile, *map(os.environ.get, BUNDLE_VARIABLES)]
    found = {Path(name).resolve() for name in named if name and Path(name).is_file()}
    if not found:
        import certifi

        found = {Path(certifi.where())}
    return sorted(found)
