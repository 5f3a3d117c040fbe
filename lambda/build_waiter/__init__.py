"""The custom resource that has an image or a model built, waits, and returns what was checked.

`handlers.on_event` and `handlers.is_complete` run under CDK's `custom_resources.Provider`, on the
standard library and boto3 alone.
"""
