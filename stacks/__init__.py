"""The CDK stacks: what an environment is, and how it becomes CloudFormation."""
