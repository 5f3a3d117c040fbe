"""The gateway: System One, OpenAI's chat and the native API by HTTP, in front of the endpoints.

`GatewaySettings` says what it is started with, `create_app` makes its ASGI application, and `run`
serves it until a signal ends it.
"""

from ballot.gateway.app import create_app
from ballot.gateway.errors import StartupError
from ballot.gateway.serve import run
from ballot.gateway.settings import GatewaySettings, SageMakerTarget, UrlTarget

__all__ = [
    "GatewaySettings",
    "SageMakerTarget",
    "StartupError",
    "UrlTarget",
    "create_app",
    "run",
]
