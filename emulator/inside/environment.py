"""The environment of the processes that the emulator starts for its builds and containers."""

from __future__ import annotations

import os
from pathlib import Path

from emulator.inside.config import CONFIG
from emulator.processes import MARKER_VARIABLE

# What a process may know about this machine. Credentials, the caller's Python and whatever else
# happens to be set stay out: an AWS build or container would not have them either.
_INHERITED = (
    "LANG",
    "LC_ALL",
    "PATH",
    "TZ",
    # How this machine reaches package indexes.
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "NO_PROXY",
    "https_proxy",
    "http_proxy",
    "no_proxy",
    "PIP_CERT",
    "PIP_CONFIG_FILE",
    "PIP_DEFAULT_TIMEOUT",
    "PIP_EXTRA_INDEX_URL",
    "PIP_FIND_LINKS",
    "PIP_INDEX_URL",
    # The certificates to trust: the machine's, and the emulator's.
    "AWS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_FILE",
)


def child_environment(*first_on_path: Path) -> dict[str, str]:
    """Return the variables that a child inherits, with folders put before its `PATH`."""
    found = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    found["PATH"] = os.pathsep.join((*map(str, first_on_path), found["PATH"]))
    found[MARKER_VARIABLE] = CONFIG.marker
    # Builds have a home of their own, so pip must be told of the user's settings.
    settings = Path.home() / ".config/pip/pip.conf"
    if settings.is_file():
        found.setdefault("PIP_CONFIG_FILE", str(settings))
    return found
