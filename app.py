#!/usr/bin/env python3
"""The CDK app: the stacks of one environment, chosen with `-c environment=NAME`."""

import os
import sys

import aws_cdk as cdk

from stacks.assembly import assemble
from stacks.deployment_target import deployment_target
from stacks.environment import choose_environment
from stacks.reading import SettingsError

app = cdk.App()
try:
    environment = choose_environment(
        app.node.try_get_context("environment"), app.node.try_get_context("environments")
    )
    target = deployment_target(environment, os.environ)
except SettingsError as error:
    sys.exit(f"ballot: {error}")

assemble(app, environment, env=target)
app.synth()
