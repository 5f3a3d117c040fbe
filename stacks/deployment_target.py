"""Where an environment is deployed to, and that nobody's credentials lead it elsewhere."""

from __future__ import annotations

from collections.abc import Mapping

import aws_cdk as cdk

from stacks.environment import Environment
from stacks.reading import SettingsError

# The CDK CLI tells whose credentials it has; without any, the stacks fit every account.
_ACCOUNT = "CDK_DEFAULT_ACCOUNT"
_REGION = "CDK_DEFAULT_REGION"


def deployment_target(environment: Environment, variables: Mapping[str, str]) -> cdk.Environment:
    """Return the account and Region of an environment, as far as they are known.

    The Region is the environment's choice alone: the same credentials reach every one.

    Raises:
        SettingsError: the credentials are those of another account than the environment's.
    """
    account, credentials = environment.account, variables.get(_ACCOUNT)
    if account and credentials and account != credentials:
        raise SettingsError(
            f"environment {environment.name} is of account {account}, and the credentials are of "
            f"account {credentials}: nothing is deployed"
        )
    return cdk.Environment(
        account=account or credentials, region=environment.region or variables.get(_REGION)
    )
