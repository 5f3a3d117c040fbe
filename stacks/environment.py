"""Environments: what `cdk.json` may say about one, read into types, every problem at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from stacks.batch import read_batch
from stacks.calibration import LAYOUTS, ORDERS, Served, read_calibration
from stacks.catalog import (
    GGUF_FILE,
    HUB_REPOSITORY,
    Catalog,
    Image,
    ImageName,
    Model,
    read_catalog,
)
from stacks.instance_types import Hardware, hardware_of, has_local_disks, refusal
from stacks.monitoring_settings import Alarms, Monitoring, read_alarms, read_monitoring
from stacks.reading import Format, Problems, Section, SettingsError, nearest
from stacks.rollout_settings import Deployment, Routing, read_deployment, read_routing
from stacks.scaling_settings import MOST_INSTANCES, Scaling, read_scaling

Kind = Literal["decision", "chat"]
Compression = Literal["none", "gzip"]

KINDS = ("decision", "chat")
COMPRESSIONS = ("none", "gzip")
NEW_KEY = "new"
# Stacks of the environment of this name are protected unless it says otherwise.
PROTECTED = "prod"
MOST_POOLS = 5
MOST_TAGS = 40
# The adapter's own: what it does where no `max_queue` is set.
DEFAULT_MAX_QUEUE = 32
ALL_LAYERS = -1
# Where cdk.json lies: what it says of files is meant from there.
PROJECT_FOLDER = Path(__file__).resolve().parent.parent
# The retention periods that CloudWatch Logs takes, up to ten years.
RETENTION_DAYS = (1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 3653)

ENVIRONMENT_NAME = Format(
    pattern=r"[a-z][a-z0-9]{0,15}", words="a name of 1 to 16 lower-case letters and digits"
)
ENDPOINT_NAME = Format(
    pattern=r"(?!artifacts$)[a-z]([a-z0-9]|-(?=[a-z0-9])){0,31}",
    words="a name of 1 to 32 lower-case letters, digits and single dashes, other than artifacts",
)
ACCOUNT = Format(pattern=r"\d{12}", words="an account: a text of 12 digits")
REGION = Format(
    pattern=r"(af|ap|ca|eu|il|me|mx|sa|us)"
    r"-(central|north|south|east|west|northeast|northwest|southeast|southwest)-\d",
    words="a Region such as eu-west-1",
)
BUCKET = Format(
    pattern=r"(?!.*\.\.)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]",
    words="the name of an existing bucket",
)
ROLE_ARN = Format(
    pattern=r"arn:aws:iam::\d{12}:role/[\w+=,.@/-]{1,512}",
    words="the ARN of an existing role, arn:aws:iam::<account>:role/<name>",
)
KMS_KEY_ARN = Format(
    pattern=r"arn:aws:kms:[a-z0-9-]+:\d{12}:key/"
    r"([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|mrk-[0-9a-f]{32})",
    words="new, or the ARN of an existing key, arn:aws:kms:<region>:<account>:key/<id>",
)
CIDR = Format(
    pattern=r"(10\.\d{1,3}|172\.(1[6-9]|2\d|3[01])|192\.168)\.\d{1,3}\.0/(1[6-9]|2[0-4])",
    words="a private IPv4 block of size /16 to /24 such as 10.20.0.0/16",
)
SUBNET_ID = Format(pattern=r"subnet-[0-9a-f]{8,17}", words="a subnet id such as subnet-0a1b2c3d")
GROUP_ID = Format(pattern=r"sg-[0-9a-f]{8,17}", words="a security group id such as sg-0a1b2c3d")
TEXT = Format(pattern=r"(?s).*", words="an instance type")


@dataclass(frozen=True, kw_only=True)
class NewVpc:
    """A VPC to make: private subnets without a way out, but for S3."""

    cidr: str
    availability_zones: int


@dataclass(frozen=True, kw_only=True)
class ExistingVpc:
    """A place in a VPC that exists."""

    subnet_ids: tuple[str, ...]
    security_group_ids: tuple[str, ...]


Vpc = NewVpc | ExistingVpc


@dataclass(frozen=True, kw_only=True)
class HubFile:
    """A GGUF that the chat server fetches from the hub by itself, unpinned."""

    repository: str
    file: str


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """One SageMaker endpoint.

    `instance_types` is in order of preference, `calibration` the text of the file.
    """

    name: str
    kind: Kind
    image: Image
    model: Model | None
    hub: HubFile | None
    compression: Compression
    hardware: Hardware
    instance_types: tuple[str, ...]
    pooled: bool
    provision_timeout_seconds: int
    instance_count: int
    scaling: Scaling | None
    routing: Routing
    deployment: Deployment | None
    threads: int | None
    gpu_layers: int
    context_tokens: int
    max_queue: int | None
    layout: str | None
    orders: int | None
    calibration: str | None
    batch: bool
    health_timeout_seconds: int
    download_timeout_seconds: int
    network_isolation: bool
    vpc: Vpc | None
    role_arn: str | None
    alarms: Alarms | None
    price_per_instance_hour_usd: float | None
    tags: Mapping[str, str]

    @property
    def least_instances(self) -> int:
        """The fewest instances that it ever has."""
        return self.scaling.least_instances if self.scaling else self.instance_count

    @property
    def takes_volume_key(self) -> bool:
        """Whether a KMS key can encrypt its volumes; disks inside an instance take none."""
        return not any(has_local_disks(item) for item in self.instance_types)


@dataclass(frozen=True, kw_only=True)
class Artifacts:
    """What exists already and is to be used instead of being made."""

    bucket_name: str | None
    model_build_role_arn: str | None
    image_build_role_arn: str | None


@dataclass(frozen=True, kw_only=True)
class Environment:
    """One environment; `account` and `region` are those of the deployment's credentials if None.

    `kms_key` is `NEW_KEY`, the ARN of a key, or None for the keys that AWS has.
    """

    name: str
    account: str | None
    region: str | None
    kms_key: str | None
    termination_protection: bool
    artifacts: Artifacts
    build_timeout_minutes: int
    log_retention_days: int
    monitoring: Monitoring
    vpc: Vpc | None
    tags: Mapping[str, str]
    endpoints: tuple[Endpoint, ...]

    @property
    def images(self) -> tuple[Image, ...]:
        """The images that its endpoints use, each once."""
        return tuple({item.image.name: item.image for item in self.endpoints}.values())

    @property
    def models(self) -> tuple[Model, ...]:
        """The models that its endpoints use, each once."""
        models = [item.model for item in self.endpoints if item.model]
        return tuple({model.name: model for model in models}.values())


def choose_environment(name: object, environments: object) -> Environment:
    """Read the environment called `name` out of those of `cdk.json`.

    Raises:
        SettingsError: there is no such environment, or its settings have problems; all are named.
    """
    if not isinstance(environments, Mapping) or not environments:
        raise SettingsError("cdk.json: context.environments must be an object of environments")
    there = ", ".join(sorted(environments))
    if name is None:
        raise SettingsError(f"choose an environment with -c environment=NAME; there are: {there}")
    if name not in environments:
        raise SettingsError(
            f"there is no environment {name}{nearest(name, environments)}; there are: {there}"
        )
    return read_environment(str(name), environments[name])


def read_environment(name: str, settings: object) -> Environment:
    """Read the settings of one environment.

    Raises:
        SettingsError: every problem, one a line, with path, value and what is allowed.
    """
    problems = Problems()
    if not ENVIRONMENT_NAME.fits(name):
        problems.add(name, f"must be {ENVIRONMENT_NAME.words}")
    section = Section(settings, path=name, problems=problems)
    catalog = read_catalog(section, problems)
    vpc = _read_vpc(section)
    account = section.text("account", ACCOUNT) or None
    region = section.text("region", REGION) or None
    environment = Environment(
        name=name,
        account=account,
        region=region,
        kms_key=_read_kms_key(section, account=account, region=region),
        termination_protection=section.flag("termination_protection", default=name == PROTECTED),
        artifacts=_read_artifacts(section),
        build_timeout_minutes=section.integer("build_timeout_minutes", 5, 50, default=40),
        log_retention_days=section.number("log_retention_days", RETENTION_DAYS, default=30),
        monitoring=read_monitoring(section, account=account, region=region),
        vpc=vpc,
        tags=section.tags("tags"),
        endpoints=tuple(
            _EndpointReader(endpoint_name, endpoint, catalog=catalog, vpc=vpc).read()
            for endpoint_name, endpoint in section.sections(
                "endpoints", ENDPOINT_NAME, required=True
            )
        ),
    )
    section.finish()
    _check_tags(environment, problems)
    problems.raise_any(f"environment {name}")
    return environment


def _read_kms_key(section: Section, *, account: str | None, region: str | None) -> str | None:
    if section.is_text("kms_key", NEW_KEY):
        return NEW_KEY
    arn = section.text("kms_key", KMS_KEY_ARN)
    if not arn:
        return None
    # Neither buckets nor repositories nor logs take a key of another Region.
    section.refuse_elsewhere("kms_key", arn, "a key", account=account, region=region)
    return arn


def _check_tags(environment: Environment, problems: Problems) -> None:
    """Leave room among the 50 tags that a resource may have for those of the stacks."""
    for endpoint in environment.endpoints:
        count = len({**environment.tags, **endpoint.tags})
        if count > MOST_TAGS:
            problems.add(
                f"{environment.name}.endpoints.{endpoint.name}.tags",
                f"come to {count} with those of the environment; at most {MOST_TAGS}",
            )


def _read_artifacts(parent: Section) -> Artifacts:
    section = parent.section("artifacts") or Section({}, path="", problems=parent.problems)
    artifacts = Artifacts(
        bucket_name=section.text("bucket_name", BUCKET) or None,
        model_build_role_arn=section.text("model_build_role_arn", ROLE_ARN) or None,
        image_build_role_arn=section.text("image_build_role_arn", ROLE_ARN) or None,
    )
    section.finish()
    return artifacts


def _read_vpc(parent: Section) -> Vpc | None:
    section = parent.section("vpc")
    if section is None:
        return None
    vpc: Vpc | None = None
    match section.one_of("cidr", "subnet_ids"):
        case "cidr":
            vpc = NewVpc(
                cidr=section.text("cidr", CIDR),
                availability_zones=section.integer("availability_zones", 2, 6, default=2),
            )
        case "subnet_ids":
            vpc = _existing_vpc(section)
        case _:
            return None
    section.finish()
    return vpc


def _existing_vpc(section: Section) -> ExistingVpc:
    return ExistingVpc(
        subnet_ids=section.texts("subnet_ids", SUBNET_ID, most=16, required=True),
        security_group_ids=section.texts("security_group_ids", GROUP_ID, most=5, required=True),
    )


class _EndpointReader:
    """Reads one endpoint: its own settings, and the rules between them."""

    def __init__(self, name: str, section: Section, *, catalog: Catalog, vpc: Vpc | None) -> None:
        self._name = name
        self._section = section
        self._catalog = catalog
        self._environment_vpc = vpc
        self._kind: Kind | None = cast(
            "Kind | None", section.choice("kind", KINDS, required=True) or None
        )

    def read(self) -> Endpoint:
        section = self._section
        types, pooled = self._instance_types()
        hardware = self._hardware(types)
        slow = hardware == "gpu"
        max_queue = self._max_queue()
        scaling = read_scaling(section, most_concurrent=self._most_concurrent(max_queue))
        instance_count = self._instance_count(scaling)
        isolated = self._network_isolation()
        model = self._model()
        layout, orders = self._layout(), self._orders()
        endpoint = Endpoint(
            name=self._name,
            kind=self._kind or "decision",
            image=self._image(hardware or "cpu"),
            model=model,
            hub=self._hub(isolated=isolated),
            compression=cast(
                "Compression", section.choice("compression", COMPRESSIONS, default="none")
            ),
            hardware=hardware or "cpu",
            instance_types=types,
            pooled=pooled,
            provision_timeout_seconds=self._provision_timeout(pooled=pooled),
            instance_count=instance_count,
            scaling=scaling,
            routing=read_routing(section, pooled=pooled),
            deployment=read_deployment(
                section, instances=scaling.least_instances if scaling else instance_count
            ),
            threads=section.optional_integer("threads", 1, 1024),
            gpu_layers=self._gpu_layers(hardware),
            context_tokens=section.integer("context_tokens", 256, 1_048_576, default=4096),
            max_queue=max_queue,
            layout=layout,
            orders=orders,
            calibration=self._calibration(model, layout, orders),
            batch=read_batch(section, is_decision=self._kind != "chat", hardware=hardware),
            health_timeout_seconds=section.integer(
                "health_timeout_seconds", 60, 3600, default=900 if slow else 600
            ),
            download_timeout_seconds=section.integer(
                "download_timeout_seconds", 60, 3600, default=1200
            ),
            network_isolation=isolated,
            vpc=self._vpc(),
            role_arn=section.text("role_arn", ROLE_ARN) or None,
            alarms=read_alarms(section, kind=self._kind or "decision", hardware=hardware or "cpu"),
            price_per_instance_hour_usd=section.optional_decimal(
                "price_per_instance_hour_usd", 0.0001, 10_000
            ),
            tags=section.tags("tags"),
        )
        section.finish()
        return endpoint

    def _instance_types(self) -> tuple[tuple[str, ...], bool]:
        section = self._section
        chosen = section.one_of("instance_type", "instance_pools")
        single = section.text("instance_type", TEXT)
        pools = section.texts("instance_pools", TEXT, most=MOST_POOLS)
        if chosen == "instance_type":
            return ((single,) if single else ()), False
        return (pools, True) if chosen == "instance_pools" else ((), False)

    def _hardware(self, types: tuple[str, ...]) -> Hardware | None:
        section = self._section
        key = "instance_pools" if "instance_pools" in section else "instance_type"
        found: set[Hardware] = set()
        for item in dict.fromkeys(types):
            hardware = hardware_of(item)
            if hardware is None:
                section.problem(key, f'"{item}" {refusal(item)}')
            else:
                found.add(hardware)
        if len(found) > 1:
            section.refuse(key, "must not mix CPU and GPU types: one image serves all pools")
        return next(iter(found)) if len(found) == 1 else None

    def _image(self, hardware: Hardware) -> Image:
        names: dict[tuple[Kind, Hardware], ImageName] = {
            ("decision", "cpu"): "cpu",
            ("decision", "gpu"): "cuda",
            ("chat", "cpu"): "chat-cpu",
            ("chat", "gpu"): "chat-cuda",
        }
        return self._catalog.images[names[self._kind or "decision", hardware]]

    def _model(self) -> Model | None:
        section, known = self._section, self._catalog.models
        if self._kind == "chat" and section.one_of("model", "hub") != "model":
            section.known("model")
            return None
        name = section.choice("model", sorted(known), required=True)
        return known.get(name)

    def _hub(self, *, isolated: bool) -> HubFile | None:
        section = self._section.section("hub")
        if section is None:
            return None
        if self._kind == "decision":
            self._section.refuse("hub", "is for chat endpoints; a decision endpoint has a model")
        elif isolated:
            self._section.refuse("hub", "needs network_isolation false, to reach the hub")
        elif isinstance(self._environment_vpc, NewVpc) and "vpc" not in self._section:
            self._section.refuse("hub", "needs vpc false: the environment's VPC has no way out")
        hub = HubFile(
            repository=section.text("repository", HUB_REPOSITORY, required=True),
            file=section.text("file", GGUF_FILE, required=True),
        )
        section.finish()
        return hub

    def _network_isolation(self) -> bool:
        isolated = self._section.flag("network_isolation", default=True)
        if self._kind == "decision" and not isolated:
            self._section.refuse("network_isolation", "must be true on a decision endpoint")
        return isolated

    def _provision_timeout(self, *, pooled: bool) -> int:
        section = self._section
        seconds = section.integer("provision_timeout_seconds", 300, 3600, default=1800)
        if "provision_timeout_seconds" in section and not pooled:
            section.refuse("provision_timeout_seconds", "is for instance_pools only")
        return seconds

    def _gpu_layers(self, hardware: Hardware | None) -> int:
        section = self._section
        default = ALL_LAYERS if hardware == "gpu" else 0
        layers = section.integer("gpu_layers", ALL_LAYERS, 100_000, default=default)
        if hardware == "cpu" and layers != 0:
            section.refuse("gpu_layers", "must be 0 on a CPU instance type")
        if hardware == "gpu" and layers == 0:
            section.refuse("gpu_layers", "must be -1 (all) or 1 and more on a GPU instance type")
        return layers

    def _max_queue(self) -> int | None:
        self._for_decisions("max_queue")
        return self._section.optional_integer("max_queue", 0, 100_000)

    def _most_concurrent(self, max_queue: int | None) -> int | None:
        """Return how many requests an instance holds before it refuses more, if that is known."""
        if self._kind == "chat":
            return None
        return 1 + (DEFAULT_MAX_QUEUE if max_queue is None else max_queue)

    def _layout(self) -> str | None:
        self._for_decisions("layout")
        return self._section.choice("layout", LAYOUTS) or None

    def _orders(self) -> int | None:
        self._for_decisions("orders")
        return self._section.optional_integer("orders", ORDERS[0], ORDERS[-1])

    def _calibration(
        self, model: Model | None, layout: str | None, orders: int | None
    ) -> str | None:
        section = self._section
        self._for_decisions("calibration")
        if model is None or self._kind == "chat":
            section.known("calibration")
            return None
        served = Served(
            model_sha256=model.sha256, layout=layout or LAYOUTS[0], orders=orders or ORDERS[0]
        )
        return read_calibration(section, "calibration", served, folder=PROJECT_FOLDER)

    def _for_decisions(self, key: str) -> None:
        if key in self._section and self._kind == "chat":
            self._section.refuse(key, "is for decision endpoints")

    def _instance_count(self, scaling: Scaling | None) -> int:
        section = self._section
        count = section.integer("instance_count", 1, MOST_INSTANCES, default=1)
        if scaling is None:
            return count
        if "instance_count" in section:
            section.refuse("instance_count", "cannot go with scaling, which sets the number")
        return scaling.minimum

    def _vpc(self) -> Vpc | None:
        if self._section.is_false("vpc"):
            return None
        section = self._section.section("vpc")
        if section is None:
            return self._environment_vpc
        vpc = _existing_vpc(section)
        section.finish()
        return vpc
