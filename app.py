#!/usr/bin/env python3
"""The CDK app: the stacks of one environment, chosen with `-c environment=NAME`."""

import os
import sys

import aws_cdk as cdk

from stacks.assembly import assemble
from stacks.environment import choose_environment
from stacks.reading import SettingsError

app = cdk.App()
try:
    environment = choose_environment(
        app.node.try_get_context("environment"), app.node.try_get_context("environments")
    )
except SettingsError as error:
    sys.exit(f"ballot: {error}")

# The CDK CLI tells whose credentials it has; without any, the stacks fit every account.
target = cdk.Environment(
    account=environment.account or os.environ.get("CDK_DEFAULT_ACCOUNT"),
    region=environment.region or os.environ.get("CDK_DEFAULT_REGION"),
)
assemble(app, environment, env=target)
app.synth()
