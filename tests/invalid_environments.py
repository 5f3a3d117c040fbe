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
    "account, artifacts, build_timeout_minutes, endpoints, images, kms_key, log_retention_days, "
    "models, monitoring, region, tags, termination_protection, vpc"
)
ENDPOINT_KEYS = (
    "alarms, batch, calibration, compression, context_tokens, deployment, "
    "download_timeout_seconds, gpu_layers, health_timeout_seconds, hub, instance_count, "
    "instance_pools, instance_type, kind, layout, max_queue, model, network_isolation, orders, "
    "price_per_instance_hour_usd, provision_timeout_seconds, role_arn, routing, scaling, tags, "
    "threads, vpc"
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
WHEN = (
    "a schedule: at(yyyy-mm-ddThh:mm:ss), rate(value unit) or "
    "cron(minutes hours day-of-month month day-of-week year)"
)
DAY = {
    "name": "day",
    "schedule": "cron(0 7 ? * MON-FRI *)",
    "time_zone": "Europe/Berlin",
    "min": 2,
}
TOPIC = "arn:aws:sns:eu-west-1:123456789012:pager"
KEY = "arn:aws:kms:eu-west-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab"
SHA256_WORDS = "a SHA-256: 64 lower-case hexadecimal digits"
COMMIT_WORDS = "a full commit: 40 lower-case hexadecimal digits, for branches and tags move"


def without(values: dict[str, Any]) -> dict[str, Any]:
    """Return an object less what is taken away."""
    return {key: value for key, value in values.items() if value is not GONE}


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
    "bulk work on a chat endpoint": (
        {"endpoints/chat/batch": True},
        "dev.endpoints.chat.batch: true is for decision endpoints",
    ),
    "bulk work on a GPU": (
        {"endpoints/gpu/batch": True},
        "dev.endpoints.gpu.batch: true is for CPU instance types: batch transform has no driver "
        "for CUDA 13; `ballot batch run` asks the endpoint itself",
    ),
    "bulk work that is no flag": (
        {"endpoints/cpu/batch": "yes"},
        'dev.endpoints.cpu.batch: "yes" must be true or false',
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
        "settings here: concurrent_requests_per_instance, max, min, scale_in_cooldown_seconds, "
        "scale_out_cooldown_seconds, scheduled",
    ),
    "whom to tell under another name": (
        {"monitoring": {"emails": ["a@example.com"]}},
        "dev.monitoring.emails: is not a setting (did you mean alarm_emails?); the settings here: "
        "alarm_emails, monthly_budget_usd, topic_arn",
    ),
    "an address without a host": (
        {"monitoring": {"alarm_emails": ["ops@example.com", "ops"]}},
        'dev.monitoring.alarm_emails[1]: "ops" must be an e-mail address',
    ),
    "addresses for a topic that has its own": (
        {
            "monitoring": {
                "alarm_emails": ["ops@example.com"],
                "topic_arn": TOPIC,
            }
        },
        'dev.monitoring.alarm_emails: ["ops@example.com"] cannot go with topic_arn, which has its '
        "own subscriptions",
    ),
    "a topic by its name": (
        {"monitoring": {"topic_arn": "pager"}},
        'dev.monitoring.topic_arn: "pager" must be the ARN of an existing topic, '
        "arn:aws:sns:<region>:<account>:<name>",
    ),
    "a topic of another Region": (
        {"region": "eu-central-1", "monitoring": {"topic_arn": TOPIC}},
        f'dev.monitoring.topic_arn: "{TOPIC}" must be a topic of the environment\'s Region, '
        "eu-central-1",
    ),
    "a budget that would tell another account's topic": (
        {
            "account": "210987654321",
            "monitoring": {"topic_arn": TOPIC, "monthly_budget_usd": 500},
        },
        f'dev.monitoring.topic_arn: "{TOPIC}" must be a topic of the environment\'s account, '
        "210987654321",
    ),
    "a budget of nothing": (
        {"monitoring": {"monthly_budget_usd": 0}},
        "dev.monitoring.monthly_budget_usd: 0 must be a number from 1 to 100,000,000",
    ),
    "a budget in words": (
        {"monitoring": {"monthly_budget_usd": "500 USD"}},
        'dev.monitoring.monthly_budget_usd: "500 USD" must be a number from 1 to 100,000,000',
    ),
    "alarms that are true": (
        {"endpoints/cpu/alarms": True},
        "dev.endpoints.cpu.alarms: true must be an object",
    ),
    "an alarm that there is not": (
        {"endpoints/cpu/alarms": {"p90_seconds": 3}},
        "dev.endpoints.cpu.alarms.p90_seconds: is not a setting (did you mean p99_seconds?); the "
        "settings here: client_error_rate, container_failures, disk_percent, instances, "
        "memory_percent, p95_seconds, p99_seconds, refused_per_minute, server_error_rate, "
        "token_mass",
    ),
    "a rate in percent": (
        {"endpoints/cpu/alarms": {"server_error_rate": 5}},
        "dev.endpoints.cpu.alarms.server_error_rate: 5 must be a number from 0.0001 to 1",
    ),
    "an alarm that is true": (
        {"endpoints/cpu/alarms": {"token_mass": True}},
        "dev.endpoints.cpu.alarms.token_mass: true must be a number from 0.0001 to 1",
    ),
    "a latency beyond SageMaker's own": (
        {"endpoints/cpu/alarms": {"p99_seconds": 61}},
        "dev.endpoints.cpu.alarms.p99_seconds: 61 must be a number from 0.001 to 60",
    ),
    "latencies the wrong way round": (
        {"endpoints/cpu/alarms": {"p95_seconds": 9, "p99_seconds": 3.5}},
        "dev.endpoints.cpu.alarms.p95_seconds: 9 must not be more than p99_seconds, 3.5",
    ),
    "a decision's alarm on a chat endpoint": (
        {"endpoints/chat/alarms": {"token_mass": 0.5}},
        "dev.endpoints.chat.alarms.token_mass: 0.5 is for decision endpoints",
    ),
    "a price that is none": (
        {"endpoints/cpu/price_per_instance_hour_usd": -1},
        "dev.endpoints.cpu.price_per_instance_hour_usd: -1 must be a number from 0.0001 to 10,000",
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
    "scaling by the old measure": (
        {"endpoints/cpu/scaling": {"min": 1, "max": 2, "invocations_per_instance": 30}},
        "dev.endpoints.cpu.scaling.invocations_per_instance: has become "
        "concurrent_requests_per_instance: the requests at an instance at a time, waiting ones "
        "included, instead of those of a minute",
    ),
    "a target beyond what an instance holds": (
        {
            "endpoints/cpu/max_queue": 4,
            "endpoints/cpu/scaling": {
                "min": 1,
                "max": 2,
                "concurrent_requests_per_instance": 6,
            },
        },
        "dev.endpoints.cpu.scaling.concurrent_requests_per_instance: 6 can never be reached: an "
        "instance holds at most 5, max_queue and the one being scored",
    ),
    "a target beyond the queue that an instance has by itself": (
        {
            "endpoints/cpu/scaling": {
                "min": 1,
                "max": 2,
                "concurrent_requests_per_instance": 34,
            }
        },
        "dev.endpoints.cpu.scaling.concurrent_requests_per_instance: 34 can never be reached: an "
        "instance holds at most 33, max_queue and the one being scored",
    ),
    "schedules that are no list": (
        {"endpoints/cpu/scaling": {"min": 1, "max": 2, "scheduled": {}}},
        "dev.endpoints.cpu.scaling.scheduled: {} must be a list of up to 50 objects",
    ),
    "a schedule that is no object": (
        {"endpoints/cpu/scaling": {"min": 1, "max": 2, "scheduled": ["cron(0 7 * * ? *)"]}},
        'dev.endpoints.cpu.scaling.scheduled[0]: "cron(0 7 * * ? *)" must be an object',
    ),
    **{
        what: (
            {
                "endpoints/cpu/scaling": {
                    "min": 1,
                    "max": 4,
                    "scheduled": [without({**DAY, **changes})],
                }
            },
            f"dev.endpoints.cpu.scaling.scheduled[0].{message}",
        )
        for what, changes, message in (
            (
                "unknown key of a schedule",
                {"minimum": 2},
                "minimum: is not a setting (did you mean min?); the settings here: max, min, name, "
                "schedule, time_zone",
            ),
            (
                "a name that auto scaling refuses",
                {"name": "9:00"},
                'name: "9:00" must be a name of 1 to 64 letters, digits, dashes and underscores',
            ),
            (
                "a schedule of another kind",
                {"schedule": "daily"},
                f'schedule: "daily" must be {WHEN}',
            ),
            (
                "a cron of five fields",
                {"schedule": "cron(0 7 * * ?)"},
                'schedule: "cron(0 7 * * ?)" must have six fields with one space between them: '
                f"{WHEN}",
            ),
            (
                "a minute that there is not",
                {"schedule": "cron(60 7 * * ? *)"},
                'schedule: "cron(60 7 * * ? *)" has "60" for the minutes, which go from 0 to 59',
            ),
            (
                "a weekday that there is not",
                {"schedule": "cron(0 7 ? * MON-FRY *)"},
                'schedule: "cron(0 7 ? * MON-FRY *)" has "MON-FRY" for the day of the week, which '
                "go from 1 to 7 or SUN to SAT",
            ),
            (
                "a day of the month and of the week",
                {"schedule": "cron(0 7 * * * *)"},
                'schedule: "cron(0 7 * * * *)" must have ? for exactly one of the day of the month '
                "and the day of the week",
            ),
            (
                "a rate of one in the plural",
                {"schedule": "rate(1 days)", "time_zone": GONE},
                'schedule: "rate(1 days)" must be a rate such as rate(1 day) or rate(12 hours)',
            ),
            (
                "a rate in a time zone",
                {"schedule": "rate(1 day)"},
                'time_zone: "Europe/Berlin" is for at and cron; a rate knows no time of the day',
            ),
            (
                "a day that there is not",
                {"schedule": "at(2027-02-30T08:00:00)"},
                'schedule: "at(2027-02-30T08:00:00)" must name a date and a time that there are, '
                "as in at(2027-01-31T08:00:00)",
            ),
            (
                "a time zone that there is not",
                {"time_zone": "Europe/Berlim"},
                'time_zone: "Europe/Berlim" is no time zone that there is (did you mean '
                "Europe/Berlin?)",
            ),
            ("a schedule beyond the most", {"min": 5}, "min: 5 must not be more than max, 4"),
            (
                "a schedule that contradicts itself",
                {"min": 3, "max": 2},
                "min: 3 must not be more than max, 2",
            ),
            (
                "a schedule without a minimum",
                {"min": GONE},
                "min: is missing; must be a whole number from 1 to 100",
            ),
        )
    },
    "two schedules of one name": (
        {"endpoints/cpu/scaling": {"min": 1, "max": 4, "scheduled": [DAY, DAY]}},
        'dev.endpoints.cpu.scaling.scheduled[1].name: "day" is there twice',
    ),
    "schedules of which some set the most": (
        {
            "endpoints/cpu/scaling": {
                "min": 1,
                "max": 4,
                "scheduled": [DAY, {**DAY, "name": "night", "max": 2}],
            }
        },
        "dev.endpoints.cpu.scaling.scheduled: must have max in all of its entries or in none",
    ),
    "unknown routing": (
        {"endpoints/cpu/routing": "random"},
        'dev.endpoints.cpu.routing.strategy: "random" must be one of least_outstanding, '
        "prefix_aware",
    ),
    "routing without a strategy": (
        {"endpoints/cpu/routing": {}},
        "dev.endpoints.cpu.routing.strategy: is missing; must be one of least_outstanding, "
        "prefix_aware",
    ),
    "routing that is a number": (
        {"endpoints/cpu/routing": 7},
        "dev.endpoints.cpu.routing: 7 must be an object",
    ),
    "a prefix that SageMaker finds too short": (
        {"endpoints/cpu/routing": {"strategy": "prefix_aware", "prefix_bytes": 512}},
        "dev.endpoints.cpu.routing.prefix_bytes: 512 must be a whole number from 1024 to 65536",
    ),
    "a threshold that lets nothing through": (
        {"endpoints/cpu/routing": {"strategy": "prefix_aware", "concurrency_threshold": 0}},
        "dev.endpoints.cpu.routing.concurrency_threshold: 0 must be a whole number from 1 to 1024",
    ),
    "a prefix for the routing that has none": (
        {"endpoints/cpu/routing": {"strategy": "least_outstanding", "prefix_bytes": 2048}},
        "dev.endpoints.cpu.routing.prefix_bytes: is not a setting; the settings here: strategy",
    ),
    "affinity across pools": (
        {"endpoints/gpu/routing": "prefix_aware"},
        'dev.endpoints.gpu.routing.strategy: "prefix_aware" cannot go with instance_pools, which '
        "need least_outstanding",
    ),
    **{
        what: (
            {"endpoints/cpu/instance_count": 2, "endpoints/cpu/deployment": deployment},
            f"dev.endpoints.cpu.deployment.{message}",
        )
        for what, deployment, message in (
            (
                "unknown strategy",
                {"strategy": "canari"},
                'strategy: "canari" must be one of all_at_once, canary, linear, rolling (did you '
                "mean canary?)",
            ),
            (
                "unknown key of a deployment",
                {"strategy": "canary", "bake": 60},
                "bake: is not a setting; the settings here: "
                "bake_seconds, max_seconds, percent, strategy, wait_seconds",
            ),
            (
                "a canary that is no canary",
                {"strategy": "canary", "percent": 51},
                "percent: 51 must be a whole number from 1 to 50",
            ),
            (
                "a linear step that is too small",
                {"strategy": "linear", "percent": 9},
                "percent: 9 must be a whole number from 10 to 50",
            ),
            (
                "a rolling batch that is too small",
                {"strategy": "rolling", "percent": 4},
                "percent: 4 must be a whole number from 5 to 50",
            ),
            (
                "a part of all at once",
                {"percent": 10},
                "percent: 10 is for canary, linear and rolling",
            ),
            (
                "a wait between no steps",
                {"strategy": "all_at_once", "wait_seconds": 10},
                "wait_seconds: 10 is for canary, linear and rolling",
            ),
            (
                "a bake beside rolling",
                {"strategy": "rolling", "bake_seconds": 10},
                "bake_seconds: 10 is not for rolling: wait_seconds bakes each step",
            ),
            (
                "a limit below the waiting",
                {
                    "strategy": "linear",
                    "percent": 30,
                    "wait_seconds": 300,
                    "bake_seconds": 60,
                    "max_seconds": 1260,
                },
                "max_seconds: 1260 must be more than the waiting, 1260 seconds",
            ),
            (
                "steps that wait for longer than SageMaker does",
                {"strategy": "rolling", "percent": 5, "wait_seconds": 3600, "max_seconds": 28800},
                "wait_seconds: 3600 comes to 72000 seconds of waiting; an update must end within "
                "28800",
            ),
            (
                "a limit beyond SageMaker's",
                {"max_seconds": 28801},
                "max_seconds: 28801 must be a whole number from 600 to 28800",
            ),
        )
    },
    "a part of one instance": (
        {"endpoints/cpu/deployment": {"strategy": "rolling"}},
        'dev.endpoints.cpu.deployment.strategy: "rolling" needs two instances or more to move a '
        "part of (scaling.min and every scheduled min, or instance_count)",
    ),
    "a part of what may be one instance": (
        {
            "endpoints/cpu/scaling": {"min": 1, "max": 4},
            "endpoints/cpu/deployment": {"strategy": "canary"},
        },
        'dev.endpoints.cpu.deployment.strategy: "canary" needs two instances or more to move a '
        "part of (scaling.min and every scheduled min, or instance_count)",
    ),
    "a part of what is one instance at night": (
        {
            "endpoints/cpu/scaling": {
                "min": 2,
                "max": 4,
                "scheduled": [{"name": "night", "schedule": "cron(0 22 * * ? *)", "min": 1}],
            },
            "endpoints/cpu/deployment": {"strategy": "linear"},
        },
        'dev.endpoints.cpu.deployment.strategy: "linear" needs two instances or more to move a '
        "part of (scaling.min and every scheduled min, or instance_count)",
    ),
    "key by its alias": (
        {"kms_key": "alias/ballot"},
        'dev.kms_key: "alias/ballot" must be new, or the ARN of an existing key, '
        "arn:aws:kms:<region>:<account>:key/<id>",
    ),
    "key of another Region": (
        {"region": "eu-central-1", "kms_key": KEY},
        f'dev.kms_key: "{KEY}" must be a key of the environment\'s Region, eu-central-1',
    ),
    "key of another account": (
        {"account": "210987654321", "kms_key": KEY},
        f'dev.kms_key: "{KEY}" must be a key of the environment\'s account, 210987654321',
    ),
    "protection that is a text": (
        {"termination_protection": "yes"},
        'dev.termination_protection: "yes" must be true or false',
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
        ".:/=+@_-, not starting with aws: or ballot:",
    ),
    "tag of Ballot's own": (
        {"endpoints/cpu/tags": {"ballot:model": "y"}},
        'dev.endpoints.cpu.tags: "ballot:model" must be a tag key: 1 to 128 letters, digits, '
        "spaces or .:/=+@_-, not starting with aws: or ballot:",
    ),
    "more tags than a resource may have": (
        {
            "tags": {f"a{number}": "x" for number in range(30)},
            "endpoints/cpu/tags": {f"b{number}": "x" for number in range(11)},
        },
        "dev.endpoints.cpu.tags: come to 41 with those of the environment; at most 40",
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
