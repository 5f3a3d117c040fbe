"""What runs in the emulator's own process: ministack, and the services that it lacks.

Imports only ministack, what ministack brings (botocore, PyYAML beside it) and the standard
library: this process has its own Python environment, `.build/emulator`.
"""
