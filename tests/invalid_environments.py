"""Wrong environments: what is changed in a right one, and the one message that it gets."""

from __future__ import annotations

import copy
from typing import Any

GONE = object()
SMALL = "smollm2-135m-instruct-q4-1"
DIGEST = "sha256:" + "a" * 64
COMMIT = "8a0810fa04bde084bd3446d126831ae5bd65e373"

CHAT = {"kind": "chat", "model": SMALL, "instance_type": "ml.c7i.xlarge"}
SETTINGS: dict[str, Any] = {
    "endpoints": {
        "cpu": {"kind": "decision", "model": SMALL, "instance_type": "ml.c7i.xlarge"},
        "gpu": {"kind": "decision", "model": SMALL, "instance_pools": ["ml.g6.xlarge"]},
        "chat": CHAT,
    }
}
HUB_FILE = {"repository": "o/n", "file": "a.gguf"}
HUB_MODEL: dict[str, Any] = {
    "source": {"kind": "hub", "repository": "o/n", "revision": COMMIT, "files": ["a.gguf"]},
    "sha256": "b" * 64,
}
WHEEL_SOURCE = {
    "kind": "wheel",
    "project": "llm-x",
    "version": "1.0",
    "filename": "llm_x-1.0-py3-none-any.whl",
    "wheel_sha256": "c" * 64,
    "member": "llm_x/x.gguf",
}

FAMILIES = (
    "CPU c4, c5, c5d, c6i, c6in, c7i, m4, m5, m5d, m6i, m7i, r5, r5d, r6i, r7i, t2; "
    "GPU g4dn, g5, g6, g6e, g7, g7e, p4d, p4de, p5, p5e, p5en, p6-b200, p6-b300"
)
ENVIRONMENT_KEYS = (
    "account, artifacts, build_timeout_minutes, endpoints, images, log_retention_days, models, "
    "region, tags, vpc"
)
ENDPOINT_KEYS = (
    "calibration, compression, context_tokens, download_timeout_seconds, gpu_layers, "
    "health_timeout_seconds, hub, instance_count, instance_pools, instance_type, kind, layout, "
    "max_queue, model, network_isolation, orders, provision_timeout_seconds, role_arn, scaling, "
    "tags, threads, vpc"
)
MODELS = f"qwen3.5-4b-q4-k-m, {SMALL}"
AMIS = (
    "al2-ami-sagemaker-inference-gpu-2, al2-ami-sagemaker-inference-gpu-2-1, "
    "al2-ami-sagemaker-inference-gpu-3-1, al2023-ami-sagemaker-inference-gpu-4-1"
)
NAME_WORDS = "a name of 1 to 32 lower-case letters, digits and single dashes, other than artifacts"
DIGEST_WORDS = (
    "an image by its full digest, repository@sha256:<64 hexadecimal digits>, for tags move"
)
BINDINGS_WORDS = (
    "llama-cpp-python==VERSION or llama-cpp-python @ git+https://...@<40 hexadecimal digits>"
)
SHA256_WORDS = "a SHA-256: 64 lower-case hexadecimal digits"
COMMIT_WORDS = "a full commit: 40 lower-case hexadecimal digits, for branches and tags move"


def changed(changes: dict[str, Any]) -> dict[str, Any]:
    """Return the right settings with values put at paths, or taken away."""
    settings = copy.deepcopy(SETTINGS)
    for path, value in changes.items():
        *parents, last = path.split("/")
        target = settings
        for parent in parents:
            target = target.setdefault(parent, {})
        if value is GONE:
            del target[last]
        else:
            target[last] = copy.deepcopy(value)
    return settings


INVALID: dict[str, tuple[dict[str, Any], str]] = {
    "unknown key of an environment": (
        {"acount": "1"},
        "dev.acount: is not a setting (did you mean account?); the settings here: "
        f"{ENVIRONMENT_KEYS}",
    ),
    "unknown key of an endpoint": (
        {"endpoints/cpu/treads": 4},
        "dev.endpoints.cpu.treads: is not a setting (did you mean threads?); the "
        f"settings here: {ENDPOINT_KEYS}",
    ),
    "unknown key near nothing": (
        {"endpoints/cpu/zzz": 4},
        f"dev.endpoints.cpu.zzz: is not a setting; the settings here: {ENDPOINT_KEYS}",
    ),
    "unknown key of scaling": (
        {"endpoints/cpu/scaling": {"min": 1, "max": 2, "maximum": 3}},
        "dev.endpoints.cpu.scaling.maximum: is not a setting (did you mean max?); the "
        "settings here: invocations_per_instance, max, min, scale_in_cooldown_seconds, "
        "scale_out_cooldown_seconds",
    ),
    "unknown key of the network": (
        {"vpc": {"cidr": "10.0.0.0/16", "nat_gateways": 1}},
        "dev.vpc.nat_gateways: is not a setting; the settings here: availability_zones, cidr",
    ),
    "unknown key of artifacts": (
        {"artifacts/bucket": "x"},
        "dev.artifacts.bucket: is not a setting (did you mean bucket_name?); the "
        "settings here: bucket_name, image_build_role_arn, model_build_role_arn",
    ),
    "no endpoints": (
        {"endpoints": GONE},
        "dev.endpoints: is missing; must be an object",
    ),
    "empty endpoints": (
        {"endpoints": {}},
        "dev.endpoints: {} must have at least one entry",
    ),
    "endpoints as a list": (
        {"endpoints": [1]},
        "dev.endpoints: [1] must be an object",
    ),
    "an endpoint that is no object": (
        {"endpoints/cpu": "decision"},
        'dev.endpoints.cpu: "decision" must be an object',
    ),
    "bad name of an endpoint": (
        {"endpoints/Chat_2": CHAT},
        f'dev.endpoints: "Chat_2" must be {NAME_WORDS}',
    ),
    "endpoint called artifacts": (
        {"endpoints/artifacts": CHAT},
        f'dev.endpoints: "artifacts" must be {NAME_WORDS}',
    ),
    "no kind": (
        {"endpoints/cpu/kind": GONE},
        "dev.endpoints.cpu.kind: is missing; must be one of decision, chat",
    ),
    "unknown kind": (
        {"endpoints/cpu/kind": "decisions"},
        'dev.endpoints.cpu.kind: "decisions" must be one of decision, chat (did you mean '
        "decision?)",
    ),
    "neither instance type nor pools": (
        {"endpoints/cpu/instance_type": GONE},
        "dev.endpoints.cpu: needs exactly one of instance_type and instance_pools; neither is",
    ),
    "both instance type and pools": (
        {"endpoints/cpu/instance_pools": ["ml.c7i.xlarge"]},
        "dev.endpoints.cpu: needs exactly one of instance_type and instance_pools; both are there",
    ),
    "six pools": (
        {
            "endpoints/gpu/instance_pools": [
                "ml.g6.xlarge",
                "ml.g5.xlarge",
                "ml.g4dn.xlarge",
                "ml.g6e.xlarge",
                "ml.g6.2xlarge",
                "ml.g5.2xlarge",
            ]
        },
        'dev.endpoints.gpu.instance_pools: ["ml.g6.xlarge", "ml.g5.xlarge", '
        '"ml.g4dn.xlarge", "ml.g6e.xlarge", "ml.g6.2xlarge", "ml.g5.2xlar... must be a '
        "list of 1 to 5, each an instance type",
    ),
    "no pools": (
        {"endpoints/gpu/instance_pools": []},
        "dev.endpoints.gpu.instance_pools: [] must be a list of 1 to 5, each an instance type",
    ),
    "duplicate pools": (
        {"endpoints/gpu/instance_pools": ["ml.g6.xlarge", "ml.g5.xlarge", "ml.g6.xlarge"]},
        'dev.endpoints.gpu.instance_pools[2]: "ml.g6.xlarge" is there twice',
    ),
    "pools of CPU and GPU": (
        {"endpoints/gpu/instance_pools": ["ml.g6.xlarge", "ml.c7i.xlarge"]},
        'dev.endpoints.gpu.instance_pools: ["ml.g6.xlarge", "ml.c7i.xlarge"] must not '
        "mix CPU and GPU types: one image serves all pools",
    ),
    "pools of x86-64 and arm64": (
        {
            "endpoints/cpu/instance_type": GONE,
            "endpoints/cpu/instance_pools": ["ml.c7i.xlarge", "ml.c7g.xlarge"],
        },
        'dev.endpoints.cpu.instance_pools: "ml.c7g.xlarge" is arm64, and the images are '
        f"built for x86-64; allowed: {FAMILIES}",
    ),
    "arm64 type": (
        {"endpoints/cpu/instance_type": "ml.c7g.xlarge"},
        'dev.endpoints.cpu.instance_type: "ml.c7g.xlarge" is arm64, and the images are '
        f"built for x86-64; allowed: {FAMILIES}",
    ),
    "GPU that is too old": (
        {"endpoints/cpu/instance_type": "ml.p3.2xlarge"},
        'dev.endpoints.cpu.instance_type: "ml.p3.2xlarge" has a GPU that CUDA 13 no '
        f"longer runs on; allowed: {FAMILIES}",
    ),
    "accelerator of another kind": (
        {"endpoints/cpu/instance_type": "ml.inf2.xlarge"},
        'dev.endpoints.cpu.instance_type: "ml.inf2.xlarge" has an accelerator that '
        f"llama.cpp does not run on; allowed: {FAMILIES}",
    ),
    "unknown family": (
        {"endpoints/cpu/instance_type": "ml.g4.xlarge"},
        'dev.endpoints.cpu.instance_type: "ml.g4.xlarge" is of no known family; did you '
        f"mean ml.g4dn.xlarge? allowed: {FAMILIES}",
    ),
    "type without ml.": (
        {"endpoints/cpu/instance_type": "c7i.xlarge"},
        'dev.endpoints.cpu.instance_type: "c7i.xlarge" must be an instance type such as '
        "ml.c7i.xlarge or ml.g6.xlarge",
    ),
    "type that is a number": (
        {"endpoints/cpu/instance_type": 7},
        "dev.endpoints.cpu.instance_type: 7 must be an instance type",
    ),
    "gpu_layers on a CPU type": (
        {"endpoints/cpu/gpu_layers": -1},
        "dev.endpoints.cpu.gpu_layers: -1 must be 0 on a CPU instance type",
    ),
    "no gpu_layers on a GPU type": (
        {"endpoints/gpu/gpu_layers": 0},
        "dev.endpoints.gpu.gpu_layers: 0 must be -1 (all) or 1 and more on a GPU instance type",
    ),
    "gpu_layers below all": (
        {"endpoints/gpu/gpu_layers": -2},
        "dev.endpoints.gpu.gpu_layers: -2 must be a whole number from -1 to 100000",
    ),
    "provision time-out too short": (
        {"endpoints/gpu/provision_timeout_seconds": 299},
        "dev.endpoints.gpu.provision_timeout_seconds: 299 must be a whole number from 300 to 3600",
    ),
    "provision time-out too long": (
        {"endpoints/gpu/provision_timeout_seconds": 3601},
        "dev.endpoints.gpu.provision_timeout_seconds: 3601 must be a whole number from 300 to 3600",
    ),
    "provision time-out without pools": (
        {"endpoints/cpu/provision_timeout_seconds": 600},
        "dev.endpoints.cpu.provision_timeout_seconds: 600 is for instance_pools only",
    ),
    "health time-out too short": (
        {"endpoints/cpu/health_timeout_seconds": 59},
        "dev.endpoints.cpu.health_timeout_seconds: 59 must be a whole number from 60 to 3600",
    ),
    "download time-out too long": (
        {"endpoints/cpu/download_timeout_seconds": 3601},
        "dev.endpoints.cpu.download_timeout_seconds: 3601 must be a whole number from 60 to 3600",
    ),
    "threads as text": (
        {"endpoints/cpu/threads": "4"},
        'dev.endpoints.cpu.threads: "4" must be a whole number from 1 to 1024',
    ),
    "no threads": (
        {"endpoints/cpu/threads": 0},
        "dev.endpoints.cpu.threads: 0 must be a whole number from 1 to 1024",
    ),
    "context too short": (
        {"endpoints/cpu/context_tokens": 128},
        "dev.endpoints.cpu.context_tokens: 128 must be a whole number from 256 to 1048576",
    ),
    "half a token": (
        {"endpoints/cpu/context_tokens": 4096.5},
        "dev.endpoints.cpu.context_tokens: 4096.5 must be a whole number from 256 to 1048576",
    ),
    "true for a number": (
        {"endpoints/cpu/max_queue": True},
        "dev.endpoints.cpu.max_queue: true must be a whole number from 0 to 100000",
    ),
    "queue of a chat endpoint": (
        {"endpoints/chat/max_queue": 4},
        "dev.endpoints.chat.max_queue: 4 is for decision endpoints",
    ),
    "image by its tag": (
        {
            "images/cpu": {
                "base": "public.ecr.aws/x/llama-cpp:v1",
                "bindings": "llama-cpp-python==0.3.36",
            }
        },
        f'dev.images.cpu.base: "public.ecr.aws/x/llama-cpp:v1" must be {DIGEST_WORDS}',
    ),
    "image by a short digest": (
        {
            "images/cpu": {
                "base": "public.ecr.aws/x/llama-cpp@sha256:1f19c220",
                "bindings": "llama-cpp-python==0.3.36",
            }
        },
        f'dev.images.cpu.base: "public.ecr.aws/x/llama-cpp@sha256:1f19c220" must be {DIGEST_WORDS}',
    ),
    "image without bindings": (
        {"images/cpu": {"base": f"public.ecr.aws/x/llama-cpp@{DIGEST}"}},
        f"dev.images.cpu.bindings: is missing; must be {BINDINGS_WORDS}",
    ),
    "bindings at a branch": (
        {
            "images/cpu": {
                "base": f"public.ecr.aws/x/llama-cpp@{DIGEST}",
                "bindings": "llama-cpp-python @ git+https://example.com/x@main",
            }
        },
        'dev.images.cpu.bindings: "llama-cpp-python @ git+https://example.com/x@main" '
        f"must be {BINDINGS_WORDS}",
    ),
    "GPU image without an AMI": (
        {"images/chat-cuda": {"base": f"public.ecr.aws/x/llama-cpp@{DIGEST}"}},
        f"dev.images.chat-cuda.inference_ami_version: is missing; must be one of {AMIS}",
    ),
    "unknown AMI": (
        {
            "images/chat-cuda": {
                "base": f"public.ecr.aws/x/llama-cpp@{DIGEST}",
                "inference_ami_version": "al2023-ami-sagemaker-inference-gpu-4",
            }
        },
        "dev.images.chat-cuda.inference_ami_version: "
        f'"al2023-ami-sagemaker-inference-gpu-4" must be one of {AMIS} (did you mean '
        "al2023-ami-sagemaker-inference-gpu-4-1?)",
    ),
    "unknown image": (
        {"images/rocm": {"base": f"x/y@{DIGEST}"}},
        'dev.images: "rocm" must be one of cpu, cuda, chat-cpu, chat-cuda',
    ),
    "account of 11 digits": (
        {"account": "12345678901"},
        'dev.account: "12345678901" must be an account: a text of 12 digits',
    ),
    "account as a number": (
        {"account": 123456789012},
        "dev.account: 123456789012 must be an account: a text of 12 digits",
    ),
    "unknown Region": (
        {"region": "eu-wets-1"},
        'dev.region: "eu-wets-1" must be a Region such as eu-west-1',
    ),
    "Region with a zone": (
        {"region": "eu-west-1a"},
        'dev.region: "eu-west-1a" must be a Region such as eu-west-1',
    ),
    "unknown model": (
        {"endpoints/cpu/model": "smollm2-135m-instruct-q4-2"},
        f'dev.endpoints.cpu.model: "smollm2-135m-instruct-q4-2" must be one of {MODELS} '
        f"(did you mean {SMALL}?)",
    ),
    "no model": (
        {"endpoints/cpu/model": GONE},
        f"dev.endpoints.cpu.model: is missing; must be one of {MODELS}",
    ),
    "chat without a model": (
        {"endpoints/chat/model": GONE},
        "dev.endpoints.chat: needs exactly one of model and hub; neither is",
    ),
    "chat with a model and a hub file": (
        {"endpoints/chat/hub": HUB_FILE, "endpoints/chat/network_isolation": False},
        "dev.endpoints.chat: needs exactly one of model and hub; both are there",
    ),
    "hub file of an isolated endpoint": (
        {"endpoints/chat/model": GONE, "endpoints/chat/hub": HUB_FILE},
        'dev.endpoints.chat.hub: {"repository": "o/n", "file": "a.gguf"} needs '
        "network_isolation false, to reach the hub",
    ),
    "hub file of a decision endpoint": (
        {"endpoints/cpu/hub": HUB_FILE},
        'dev.endpoints.cpu.hub: {"repository": "o/n", "file": "a.gguf"} is for chat '
        "endpoints; a decision endpoint has a model",
    ),
    "hub file inside a closed network": (
        {
            "vpc": {"cidr": "10.0.0.0/16"},
            "endpoints/chat/model": GONE,
            "endpoints/chat/network_isolation": False,
            "endpoints/chat/hub": HUB_FILE,
        },
        'dev.endpoints.chat.hub: {"repository": "o/n", "file": "a.gguf"} needs '
        "vpc false: the environment's VPC has no way out",
    ),
    "hub file that is no GGUF": (
        {
            "endpoints/chat/model": GONE,
            "endpoints/chat/network_isolation": False,
            "endpoints/chat/hub": {"repository": "o/n", "file": "a.bin"},
        },
        'dev.endpoints.chat.hub.file: "a.bin" must be the path of a .gguf file',
    ),
    "text for a flag": (
        {"endpoints/chat/network_isolation": "no"},
        'dev.endpoints.chat.network_isolation: "no" must be true or false',
    ),
    "decision endpoint that reaches out": (
        {"endpoints/cpu/network_isolation": False},
        "dev.endpoints.cpu.network_isolation: false must be true on a decision endpoint",
    ),
    "scaling from more to fewer": (
        {"endpoints/cpu/scaling": {"min": 3, "max": 2}},
        "dev.endpoints.cpu.scaling.min: 3 must not be more than max, 2",
    ),
    "scaling without a maximum": (
        {"endpoints/cpu/scaling": {"min": 3}},
        "dev.endpoints.cpu.scaling.max: is missing; must be a whole number from 1 to 100",
    ),
    "scaling to nothing": (
        {"endpoints/cpu/scaling": {"min": 0, "max": 2}},
        "dev.endpoints.cpu.scaling.min: 0 must be a whole number from 1 to 100",
    ),
    "instances beside scaling": (
        {"endpoints/cpu/scaling": {"min": 1, "max": 2}, "endpoints/cpu/instance_count": 2},
        "dev.endpoints.cpu.instance_count: 2 cannot go with scaling, which sets the number",
    ),
    "no instances": (
        {"endpoints/cpu/instance_count": 0},
        "dev.endpoints.cpu.instance_count: 0 must be a whole number from 1 to 100",
    ),
    "unknown compression": (
        {"endpoints/cpu/compression": "zstd"},
        'dev.endpoints.cpu.compression: "zstd" must be one of none, gzip',
    ),
    "role by its name": (
        {"endpoints/cpu/role_arn": "MyRole"},
        'dev.endpoints.cpu.role_arn: "MyRole" must be the ARN of an existing role, '
        "arn:aws:iam::<account>:role/<name>",
    ),
    "bad name of a bucket": (
        {"artifacts/bucket_name": "My_Bucket"},
        'dev.artifacts.bucket_name: "My_Bucket" must be the name of an existing bucket',
    ),
    "network with both a block and subnets": (
        {"vpc": {"cidr": "10.0.0.0/16", "subnet_ids": ["subnet-0a1b2c3d"]}},
        "dev.vpc: needs exactly one of cidr and subnet_ids; both are there",
    ),
    "public block of addresses": (
        {"vpc": {"cidr": "8.8.0.0/16"}},
        'dev.vpc.cidr: "8.8.0.0/16" must be a private IPv4 block of size /16 to /24 such '
        "as 10.20.0.0/16",
    ),
    "subnets without security groups": (
        {"vpc": {"subnet_ids": ["subnet-0a1b2c3d"]}},
        "dev.vpc.security_group_ids: is missing; must be a list of 1 to 5, each a "
        "security group id such as sg-0a1b2c3d",
    ),
    "bad subnet": (
        {"endpoints/cpu/vpc": {"subnet_ids": ["subnet-1"], "security_group_ids": ["sg-0a1b2c3d"]}},
        'dev.endpoints.cpu.vpc.subnet_ids[0]: "subnet-1" must be a subnet id such as '
        "subnet-0a1b2c3d",
    ),
    "one zone": (
        {"vpc": {"cidr": "10.0.0.0/16", "availability_zones": 1}},
        "dev.vpc.availability_zones: 1 must be a whole number from 2 to 6",
    ),
    "reserved tag": (
        {"tags": {"aws:x": "y"}},
        'dev.tags: "aws:x" must be a tag key: 1 to 128 letters, digits, spaces or '
        ".:/=+@_-, not starting with aws:",
    ),
    "tag that is a number": (
        {"endpoints/cpu/tags": {"cost": 7}},
        "dev.endpoints.cpu.tags.cost: 7 must be a tag value: up to 256 letters, digits, "
        "spaces or .:/=+@_-",
    ),
    "build that outlasts the wait": (
        {"build_timeout_minutes": 51},
        "dev.build_timeout_minutes: 51 must be a whole number from 5 to 50",
    ),
    "retention that CloudWatch lacks": (
        {"log_retention_days": 10},
        "dev.log_retention_days: 10 must be one of 1, 3, 5, 7, 14, 30, 60, 90, 120, 150, "
        "180, 365, 400, 545, 731, 1096, 1827, 3653",
    ),
    "model at a branch": (
        {"models/mine": {**HUB_MODEL, "source": {**HUB_MODEL["source"], "revision": "main"}}},
        f'dev.models.mine.source.revision: "main" must be {COMMIT_WORDS}',
    ),
    "model with a short checksum": (
        {"models/mine": {"source": HUB_MODEL["source"], "sha256": "b" * 16}},
        f'dev.models.mine.sha256: "bbbbbbbbbbbbbbbb" must be {SHA256_WORDS}',
    ),
    "model with an upper-case checksum": (
        {"models/mine": {"source": HUB_MODEL["source"], "sha256": "B" * 64}},
        "dev.models.mine.sha256: "
        '"BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB" must be '
        f"{SHA256_WORDS}",
    ),
    "model without a checksum": (
        {"models/mine": {"source": HUB_MODEL["source"]}},
        f"dev.models.mine.sha256: is missing; must be {SHA256_WORDS}",
    ),
    "model from nowhere": (
        {"models/mine": {**HUB_MODEL, "source": {"kind": "ftp"}}},
        'dev.models.mine.source.kind: "ftp" must be one of hub, s3, wheel',
    ),
    "model from a bucket that is no URI": (
        {"models/mine": {**HUB_MODEL, "source": {"kind": "s3", "uri": "bucket/a.gguf"}}},
        'dev.models.mine.source.uri: "bucket/a.gguf" must be s3://bucket/path/of/a.gguf',
    ),
    "model from a wheel without a checksum": (
        {
            "models/mine": {
                **HUB_MODEL,
                "source": {
                    key: value for key, value in WHEEL_SOURCE.items() if key != "wheel_sha256"
                },
            }
        },
        f"dev.models.mine.source.wheel_sha256: is missing; must be {SHA256_WORDS}",
    ),
    "model that is no GGUF": (
        {
            "models/mine": {
                **HUB_MODEL,
                "source": {**HUB_MODEL["source"], "files": ["model.safetensors"]},
            }
        },
        'dev.models.mine.source.files[0]: "model.safetensors" must be the path of a .gguf file',
    ),
    "tokenizer at a tag": (
        {"models/mine": {**HUB_MODEL, "tokenizer": {"repository": "o/n", "revision": "v1"}}},
        f'dev.models.mine.tokenizer.revision: "v1" must be {COMMIT_WORDS}',
    ),
}
