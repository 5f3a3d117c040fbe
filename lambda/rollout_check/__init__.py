"""The custom resource that looks whether an endpoint really runs what was deployed.

SageMaker turns an update back when it fails or an alarm rings, and the endpoint is in service
again, on its old configuration. `handlers.on_event` runs under CDK's `custom_resources.Provider`,
on the standard library and boto3 alone.
"""
