"""An existing cluster, as described in its `cluster.yaml`; see docs/clusters.md for an example."""

from __future__ import annotations

from datetime import date
from itertools import combinations
from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from sailor_cloud.model.duration import Duration
from sailor_cloud.model.provider import CLUSTERS, Provider

# Groups are zones in a plan, and their names occur in those of nodes, jobs and pods.
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$")]


def _of_cluster(scheduler: object) -> object:
    if scheduler not in CLUSTERS:
        raise ValueError(f"must be {' or '.join(CLUSTERS)}, the schedulers that a cluster may have")
    return scheduler


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class Toleration(_Part):
    """A toleration of Kubernetes: pods may start on nodes with such a taint."""

    key: str | None = None
    operator: Literal["Equal", "Exists"] = "Equal"
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.operator == "Exists" and self.value is not None:
            raise ValueError("has operator Exists and a value; leave one out")
        if self.key is None and self.operator == "Equal":
            raise ValueError("names no key; give one, or operator: Exists for all taints")
        return self


class NodeGroup(_Part):
    """Equal nodes. `partition`, `constraint`, `gres` and `max_time` are for Slurm, the next fields for Kubernetes.

    `usd_per_hour` is for one node, 0 if nobody is charged. `gbit_per_s` is the network card of a node.
    `device_link_gb_per_s` counts both directions per device, as data sheets do. `gres` is without a count.
    `max_time` is the longest that a job may have the nodes. Pods request `vcpus` and `memory_gib`.
    """

    accelerator: str
    nodes: int = Field(gt=0, le=100_000)
    devices_per_node: int = Field(gt=0, le=256)
    usd_per_hour: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    gbit_per_s: float = Field(gt=0, allow_inf_nan=False)
    rtt_ms: float | None = Field(default=None, gt=0)
    device_link: str = ""
    device_link_gb_per_s: float | None = Field(default=None, gt=0)
    vcpus: int | None = Field(default=None, gt=0)
    memory_gib: float | None = Field(default=None, gt=0)
    partition: str | None = Field(default=None, pattern=r"^[\w.,-]+$")
    constraint: str | None = Field(default=None, pattern=r"^[\w.&|*\[\]()-]+$")
    gres: str | None = Field(default=None, pattern=r"^\w+(:[\w.-]+)?$")
    max_time: Duration | None = None
    node_selector: dict[str, str] = {}
    resource: str = Field(default="nvidia.com/gpu", pattern=r"^[a-z0-9.-]+(/[A-Za-z0-9._-]+)?$")
    tolerations: tuple[Toleration, ...] = ()

    @property
    def tolerated(self) -> tuple[Toleration, ...]:
        """The tolerations of pods, with that of the usual taint on nodes with GPUs."""
        return (Toleration(key=self.resource, operator="Exists"), *self.tolerations)

    @model_validator(mode="after")
    def _linked(self) -> Self:
        if self.devices_per_node > 1 and self.device_link_gb_per_s is None:
            raise ValueError(
                f"has {self.devices_per_node} devices per node and no device_link_gb_per_s: say how fast they are "
                "linked, such as 600 for the NVLink of an A100 or 32 for PCIe 3"
            )
        return self


class GroupLink(_Part):
    """The connection between two groups, if it is slower than the nodes' cards."""

    between: tuple[str, str]
    gbit_per_s: float = Field(gt=0, allow_inf_nan=False)
    rtt_ms: float = Field(default=0.2, gt=0)


class NodeRuntime(_Part):
    """How a node gets Python with torch and the runtime.

    `python` is the path of an interpreter on the nodes; `modules` are loaded first. `image` is a container image; on
    Slurm it is passed to `srun --container-image`, which needs Pyxis. There a container also sees `mounts`, folders of
    its node.
    """

    python: str = Field(default="python3", pattern=r"^[\w./+-]+$")
    modules: tuple[Annotated[str, Field(pattern=r"^[\w./+-]+$")], ...] = ()
    image: str | None = Field(default=None, pattern=r"^[\w./:@#+-]+$")
    mounts: tuple[Annotated[str, Field(pattern=r"^/[\w./+-]*$")], ...] = ()


class Inventory(_Part):
    """The content of `cluster.yaml`. The groups are the zones of one region, which has the cluster's name.

    `as_of` is the day of the description. `checkpoints` is a folder with the same path on every node, gs:// or s3://.
    `account`, `qos` are for Slurm; `namespace`, `queue` (Kueue's local queue), `service_account` and `claim` (a volume
    claim that is mounted at `checkpoints`) for Kubernetes.
    """

    name: Name
    scheduler: Annotated[Provider, BeforeValidator(_of_cluster)]
    as_of: date
    groups: dict[Name, NodeGroup] = Field(min_length=1)
    links: tuple[GroupLink, ...] = ()
    runtime: NodeRuntime = NodeRuntime()
    checkpoints: str = Field(pattern=r"^(/|gs://|s3://).+")
    account: str | None = Field(default=None, pattern=r"^[\w.-]+$")
    qos: str | None = Field(default=None, pattern=r"^[\w.-]+$")
    namespace: str = Field(default="default", pattern=r"^[a-z0-9-]+$")
    queue: str | None = Field(default=None, pattern=r"^[a-z0-9.-]+$")
    service_account: str | None = Field(default=None, pattern=r"^[a-z0-9.-]+$")
    claim: str | None = Field(default=None, pattern=r"^[a-z0-9.-]+$")

    @model_validator(mode="after")
    def _links_between_groups(self) -> Self:
        pairs = {frozenset(pair) for pair in combinations(self.groups, 2)}
        for link in self.links:
            if frozenset(link.between) not in pairs:
                known = ", ".join(self.groups)
                raise ValueError(f"links has a link between {' and '.join(link.between)}; the groups are {known}")
        seen = [frozenset(link.between) for link in self.links]
        if twice := next((pair for pair in seen if seen.count(pair) > 1), None):
            raise ValueError(f"links has two links between {' and '.join(sorted(twice))}")
        return self

    def instance_type(self, group: str) -> str:
        """Return the instance type name of a group's nodes."""
        return f"{self.name}-{group}"
