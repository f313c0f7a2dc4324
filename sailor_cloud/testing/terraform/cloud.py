"""A cloud in memory for the stand-in providers: resources, billing history, and failures on request."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sailor_cloud.testing.machines import Machines, PaperMachines, machine_of, with_machine
from sailor_cloud.testing.terraform.dependencies import PARENTS, PARTS, missing_parent
from sailor_cloud.testing.terraform.naming import (
    AWS_NAMES,
    GOOGLE_COLLECTIONS,
    GOOGLE_NAMES,
    REPEATABLE,
    computed,
    duplicate,
    looked_up,
)

# These cost money while they exist; all other resources in the HCL are free.
BILLED = ("google_compute_instance", "aws_instance")
# Whether an instance can be stopped or not, no run wants it.
_STOPPED = "api error UnsupportedOperation: You can't stop the Spot Instance because it is one-time."
_AWS_PREFIXES = {
    "aws_vpc": "vpc",
    "aws_internet_gateway": "igw",
    "aws_route_table": "rtb",
    "aws_route": "r",
    "aws_subnet": "subnet",
    "aws_route_table_association": "rtbassoc",
    "aws_security_group": "sg",
    "aws_vpc_security_group_ingress_rule": "sgr",
    "aws_vpc_security_group_egress_rule": "sgr",
    "aws_instance": "i",
    "aws_launch_template": "lt",
    "aws_eip": "eipalloc",
    "aws_ec2_capacity_reservation": "cr",
    "aws_nat_gateway": "nat",
    "aws_vpc_endpoint": "vpce",
    "aws_vpc_peering_connection": "pcx",
}
# Local SSDs of one of the VMs that bring some, by the beginning of their type; real ones have up to 32.
_LOCAL_SSDS = {"a2-ultragpu-": 1, "a3-": 2, "a4-": 2}
# Changes of these replace a resource, and updates of these stop an instance of AWS first, as far as tests need it.
FORCES_NEW = {"google_compute_instance": ("machine_type", "scratch_disk", "zone")}
_STOPS = ("instance_type", "user_data")
# AWS's error for a name that is taken, by type; IAM has one for all of its types.
_TAKEN = {
    "aws_key_pair": "InvalidKeyPair.Duplicate",
    "aws_placement_group": "InvalidPlacementGroup.Duplicate",
    "aws_s3_bucket": "BucketAlreadyOwnedByYou",
    "aws_scheduler_schedule_group": "ConflictException",
    "aws_scheduler_schedule": "ConflictException",
}


class CloudError(Exception):
    """An error that the provider reports to Terraform as a diagnostic; `state` is what exists anyway."""

    def __init__(self, message: str, state: dict[str, Any] | None = None) -> None:
        self.state = state
        super().__init__(message)


@dataclass(slots=True, kw_only=True)
class Failure:
    """Makes calls fail: those for a type with these attributes, `times` times (None: always).

    `operation` is create, read or delete. The first `after` matching calls succeed. `late`: the resource exists
    although its creation was reported as failed. An AWS instance also has a `zone`, that of its subnet.
    """

    type: str
    message: str
    where: Mapping[str, Any] = field(default_factory=dict)
    times: int | None = None
    operation: str = "create"
    after: int = 0
    late: bool = False

    def hits(self, kind: str, wanted: Mapping[str, Any], operation: str = "create") -> bool:
        if (kind, operation) != (self.type, self.operation) or self.times == 0:
            return False
        if any(wanted.get(name) != value for name, value in self.where.items()):
            return False
        if self.after:
            self.after -= 1
            return False
        if self.times is not None:
            self.times -= 1
        return True


class FakeCloud:
    """Holds resources by type and id; thread-safe.

    `machines` starts and stops the emulated VMs; `latency_s` is the duration of creating an instance. After its
    deletion through the cloud's API, an instance is shown in `deletion_looks` more reads.
    """

    def __init__(self, machines: Machines | None = None, *, latency_s: float = 0.0) -> None:
        self.resources: dict[tuple[str, str], dict[str, Any]] = {}
        self.history: list[tuple[str, str, str]] = []
        self.failures: list[Failure] = []
        self.latency_s = latency_s
        self.deletion_looks = 0
        # Limits of quotas by AWS's code or Google's metric, and vCPUs by AWS's instance type.
        self.quotas: dict[str, float] = {}
        # Policies of the organization by constraint, as Google's Resource Manager returns them.
        self.policies: dict[str, dict[str, Any]] = {}
        self.vcpus = {"g4dn.xlarge": 4, "g6.xlarge": 4, "p3.2xlarge": 8, "p4d.24xlarge": 96, "t3.micro": 2}
        # Permissions that the caller lacks, by the cloud's names.
        self.denied: set[str] = set()
        self.on_create: Callable[[str, str], None] = lambda kind, name: None
        self._ending: dict[tuple[str, str], int] = {}
        self._machines = machines or PaperMachines()
        self._numbers = itertools.count(1)
        self._mutex = threading.RLock()
        self._idle = threading.Condition()
        self._in_flight = 0

    def of_type(self, kind: str) -> dict[str, dict[str, Any]]:
        """Return the resources of a type by id."""
        with self._mutex:
            self._forget_ended()
            return {name: state for (found, name), state in self.resources.items() if found == kind}

    def billed(self) -> tuple[str, ...]:
        """Return the ids of everything that costs money now."""
        with self._mutex:
            self._forget_ended()
            return tuple(name for kind, name in self.resources if kind in BILLED)

    def owned_by(self, run_id: str) -> tuple[tuple[str, str], ...]:
        """Return type and id of everything with a run's tag, or inside something with it."""
        with self._mutex:
            self._forget_ended()
            return tuple(key for key, state in self.resources.items() if run_id in str(state))

    def create(self, kind: str, wanted: dict[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
        """Create a resource. Raises CloudError, whose `state` is what exists anyway."""
        with self._idle:
            self._in_flight += 1
        try:
            return self._create(kind, wanted, config)
        finally:
            with self._idle:
                self._in_flight -= 1
                self._idle.notify_all()

    def settle(self, limit_s: float = 60.0) -> None:
        """Wait until no creation is in progress, even for a caller that has died since."""
        with self._idle:
            self._idle.wait_for(lambda: self._in_flight == 0, timeout=limit_s)

    def _create(self, kind: str, wanted: dict[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
        if kind in BILLED and self.latency_s:
            time.sleep(self.latency_s)
        with self._mutex:
            failure = self._failure(kind, wanted, "create")
            if failure is not None and not failure.late:
                raise CloudError(failure.message)
            state = self._new_state(kind, wanted, config)
            key = (kind, str(state["id"]))
            if key in self.resources and kind not in REPEATABLE:
                raise CloudError(_taken(*key))
            if (second := duplicate(kind, wanted, self.of_type(kind))) is not None:
                raise CloudError(second)
        if kind in BILLED:
            machine = self._machines.start(machine_of(kind, state))
            state = with_machine(kind, state, machine)
        with self._mutex:
            missing = missing_parent(kind, wanted, self.resources)
            if missing is None:
                self.resources[key] = state
        if missing is not None:
            if kind in BILLED:
                self._machines.stop(key[1])
            raise CloudError(missing)
        with self._mutex:
            self.history.append(("created", *key))
        self.on_create(*key)
        if failure is not None:
            raise CloudError(failure.message, state)
        return state

    def read(self, kind: str, name: str) -> dict[str, Any] | None:
        with self._mutex:
            self._forget_ended()
            state = self.resources.get((kind, name))
            failure = self._failure(kind, state or {}, "read")
            if failure is not None:
                raise CloudError(failure.message)
            return state

    def look_up(self, kind: str, wanted: dict[str, Any]) -> dict[str, Any]:
        """Return the result of a data source. Raises CloudError unless there is exactly one."""
        found = looked_up(kind, wanted, self.of_type(kind))
        if found is None:
            raise CloudError(f"reading {kind}: not exactly one matches {wanted.get('tags')}")
        return found

    def update(self, kind: str, name: str, wanted: dict[str, Any]) -> dict[str, Any]:
        with self._mutex:
            before = self.resources[kind, name]
            if kind == "aws_instance" and any(wanted.get(key) != before.get(key) for key in _STOPS):
                raise CloudError(f"updating EC2 Instance ({name}): stopping EC2 Instance: {_STOPPED}")
            changed = {key: value for key, value in wanted.items() if value is not None}
            self.resources[kind, name] = {**before, **changed}
            return self.resources[kind, name]

    def delete(self, kind: str, name: str, *, why: str = "deleted") -> None:
        with self._mutex:
            failure = self._failure(kind, self.resources.get((kind, name), {}), "delete")
            if failure is not None:
                raise CloudError(failure.message)
            gone = self.resources.pop((kind, name), None)
            if gone is not None:
                self.history.append((why, kind, name))
                self._delete_parts(kind, name, why)
        if gone is not None and kind in BILLED:
            self._machines.stop(name)

    def begin_deletion(self, kind: str, name: str) -> None:
        """Start to delete an instance, as the clouds' APIs do, which answer long before the end."""
        with self._mutex:
            if kind in BILLED and self.deletion_looks and (kind, name) in self.resources:
                self._ending.setdefault((kind, name), self.deletion_looks)
                return
        self.delete(kind, name)

    def shown(self, kind: str, name: str) -> bool:
        """Whether a read still shows an instance in deletion; the last such read deletes it."""
        with self._mutex:
            looks = self._ending.get((kind, name))
            if looks is None:
                return False
            if looks > 1:
                self._ending[kind, name] = looks - 1
                return True
            del self._ending[kind, name]
        self.delete(kind, name)
        return True

    def _delete_parts(self, kind: str, name: str, why: str) -> None:
        """Delete the parts of a resource with it, as the cloud does."""
        for part in PARTS.get(kind, ()):
            for below in [
                known for (sort, known), state in self.resources.items() if sort == part and name in str(state)
            ]:
                del self.resources[part, below]
                self.history.append((why, part, below))

    def _new_state(self, kind: str, wanted: dict[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
        number = next(self._numbers)
        if kind.startswith("google_"):
            return _google(kind, wanted, config, number)
        return _aws(kind, wanted, {**config, **self._place(wanted)}, number)

    def _place(self, wanted: Mapping[str, Any]) -> dict[str, str]:
        """Return the region of a new resource; a root may use two regions, and one is configured last."""
        for name, parent in PARENTS.items():
            state = self.resources.get((parent, str(wanted.get(name))))
            if state is not None:
                return {"region": state["region"]}
        return {}

    def _failure(self, kind: str, wanted: Mapping[str, Any], operation: str) -> Failure | None:
        subnet = self.resources.get(("aws_subnet", str(wanted.get("subnet_id"))))
        placed = {**wanted, "zone": subnet["availability_zone_id"]} if subnet else wanted
        return next((failure for failure in self.failures if failure.hits(kind, placed, operation)), None)

    def _forget_ended(self) -> None:
        """Remove machines that ended themselves, as the cloud's host would notice."""
        for kind, name in list(self.resources):
            if kind in BILLED and not self._machines.runs(name):
                del self.resources[kind, name]
                self.history.append(("ended", kind, name))


def _taken(kind: str, name: str) -> str:
    if kind.startswith("google_"):
        return f"Error creating {kind}: googleapi: Error 409: The resource '{name}' already exists, alreadyExists"
    code = _TAKEN.get(kind, "EntityAlreadyExists")
    return f"creating {kind}: api error {code}: The {kind} '{name}' already exists."


def _google(kind: str, wanted: dict[str, Any], config: Mapping[str, Any], number: int) -> dict[str, Any]:
    project = wanted.get("project") or config.get("project") or "no-project"
    if kind in GOOGLE_NAMES:
        return {**wanted, "project": project, **GOOGLE_NAMES[kind](wanted, project)}
    place = wanted.get("zone") or wanted.get("region")
    scope = f"zones/{place}" if wanted.get("zone") else f"regions/{place}" if place else "global"
    collection = GOOGLE_COLLECTIONS.get(kind, f"{kind.removeprefix('google_compute_')}s")
    name = f"projects/{project}/{scope}/{collection}/{wanted['name']}"
    link = f"https://www.googleapis.com/compute/v1/{name}"
    state = {**wanted, "id": name, "project": project, "self_link": link}
    if kind == "google_compute_instance":
        state["instance_id"] = str(number)
        state["current_status"] = "RUNNING"
        state["scratch_disk"] = _local_ssds(wanted)
        interfaces = enumerate(wanted.get("network_interface") or [])
        state["network_interface"] = [_google_interface(index, attributes, number) for index, attributes in interfaces]
    return state


def _local_ssds(wanted: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the local SSDs that a VM has, which some types bring without being asked."""
    own = wanted.get("scratch_disk") or []
    count = next(
        (count for prefix, count in _LOCAL_SSDS.items() if str(wanted.get("machine_type")).startswith(prefix)), 0
    )
    found = [{"device_name": f"local-ssd-{number}", "interface": "NVME", "size": 375} for number in range(count)]
    return own or found


def _google_interface(index: int, attributes: dict[str, Any], number: int) -> dict[str, Any]:
    public = [
        {**access, "nat_ip": f"198.51.100.{number % 250 + 1}"} for access in attributes.get("access_config") or []
    ]
    private = f"10.64.{number // 250}.{number % 250 + 2}"
    return {**attributes, "name": f"nic{index}", "network_ip": private, "access_config": public}


def _aws(kind: str, wanted: dict[str, Any], config: Mapping[str, Any], number: int) -> dict[str, Any]:
    named = AWS_NAMES[kind](wanted) if kind in AWS_NAMES else wanted.get("name")
    name = f"{_AWS_PREFIXES[kind]}-{number:017x}" if kind in _AWS_PREFIXES else str(named)
    arn = f"arn:aws:ec2:{config.get('region')}:000000000000:{kind.removeprefix('aws_')}/{name}"
    common = {"id": name, "arn": arn, "tags_all": wanted.get("tags"), "region": config.get("region")}
    state = {**wanted, **common, **computed(kind, number)}
    if kind == "aws_instance":
        state["instance_state"] = "running"
        state["private_ip"] = f"10.64.{number // 250}.{number % 250 + 4}"
        state["public_ip"] = f"203.0.113.{number % 250 + 1}" if wanted.get("associate_public_ip_address") else ""
    return state
