"""What SageMaker's instance types have inside, as far as Ballot's images care."""

from __future__ import annotations

import difflib
import re
from typing import Literal

Hardware = Literal["cpu", "gpu"]


def _families(*names: str) -> frozenset[str]:
    return frozenset(name for line in names for name in line.split())


# Families of real-time hosting. The GPU ones are those whose compute capability (7.5 and up) and
# whose driver on the CUDA 13 AMI run a CUDA 13 image.
CPU_FAMILIES = _families("c4 c5 c5d c6i c6in c7i", "m4 m5 m5d m6i m7i", "r5 r5d r6i r7i", "t2")
GPU_FAMILIES = _families("g4dn g5 g6 g6e g7 g7e", "p4d p4de p5 p5e p5en p6-b200 p6-b300")
ARM_FAMILIES = _families("c6g c6gd c6gn c7g c8g", "m6g m6gd m8g", "r6g r6gd r7gd r8g", "p6e-gb200")
OLD_GPU_FAMILIES = _families("p2 p3")
OTHER_FAMILIES = _families("dl1 inf1 inf2 trn1 trn1n trn2")
# Those of the above that Ballot runs on and whose models lie on disks inside the instance, which
# the hardware encrypts with keys of its own.
LOCAL_DISK_FAMILIES = _families("c5d m5d r5d") | GPU_FAMILIES

_REASONS = {
    ARM_FAMILIES: "is arm64, and the images are built for x86-64",
    OLD_GPU_FAMILIES: "has a GPU that CUDA 13 no longer runs on",
    OTHER_FAMILIES: "has an accelerator that llama.cpp does not run on",
}
_SHAPE = re.compile(r"ml\.(?P<family>[a-z0-9-]+)\.(medium|large|\d{0,2}xlarge)")


def hardware_of(instance_type: str) -> Hardware | None:
    """Return what the instance type decodes on, or None when `refusal` has a reason against it."""
    match = _SHAPE.fullmatch(instance_type)
    if match is None:
        return None
    if match["family"] in CPU_FAMILIES:
        return "cpu"
    return "gpu" if match["family"] in GPU_FAMILIES else None


def has_local_disks(instance_type: str) -> bool:
    """Tell whether the instance type keeps its data on disks that no KMS key can encrypt."""
    match = _SHAPE.fullmatch(instance_type)
    return match is not None and match["family"] in LOCAL_DISK_FAMILIES


def refusal(instance_type: str) -> str:
    """Return why an instance type without `hardware_of` cannot be used, as a predicate."""
    match = _SHAPE.fullmatch(instance_type)
    if match is None:
        return "must be an instance type such as ml.c7i.xlarge or ml.g6.xlarge"
    for families, reason in _REASONS.items():
        if match["family"] in families:
            return f"{reason}; allowed: {_allowed()}"
    nearest = difflib.get_close_matches(match["family"], sorted(CPU_FAMILIES | GPU_FAMILIES), n=1)
    hint = f"did you mean {instance_type.replace(match['family'], nearest[0])}? " if nearest else ""
    return f"is of no known family; {hint}allowed: {_allowed()}"


def _allowed() -> str:
    return f"CPU {', '.join(sorted(CPU_FAMILIES))}; GPU {', '.join(sorted(GPU_FAMILIES))}"
