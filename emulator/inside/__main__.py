"""Starts ministack with what it lacks. Ends, with all that it started, when its input ends."""

from __future__ import annotations

import os
import sys
import threading

# Emulated functions and builds inherit this process's environment, and must not find its modules.
os.environ.pop("PYTHONPATH", None)

import ministack.app as ministack_app

from emulator.inside import (
    alarms,
    autoscaling,
    cloudformation,
    codebuild,
    invocations,
    metric_filters,
    metrics,
    registries,
    roles,
    sagemaker,
    saved_queries,
)
from emulator.inside.config import CONFIG, PREFIX
from emulator.processes import MARKER_VARIABLE, end


def _end_with_input() -> None:
    """Wait for the parent to close our input, or to die, which closes it too."""
    sys.stdin.buffer.read()
    for variable in (MARKER_VARIABLE, f"{PREFIX}MARKER"):
        end(f"{variable}={CONFIG.marker}")
    # ministack does not end while a custom resource is pending.
    os._exit(0)


def main() -> None:
    """Register everything and serve."""
    roles.install()
    codebuild.install()
    registries.install()
    sagemaker.SERVICE_API.register(invocations.data_plane)
    autoscaling.SERVICE_API.register()
    saved_queries.SERVICE_API.register_beside()
    metrics.install()
    metric_filters.install()
    alarms.install()
    cloudformation.install()
    # Port 443 is for Cognito alone, which is not needed here.
    ministack_app._port_is_bindable = lambda host, port: False
    threading.Thread(target=_end_with_input, name="end with input", daemon=True).start()
    sys.argv[1:] = []
    ministack_app.main()


if __name__ == "__main__":
    main()
