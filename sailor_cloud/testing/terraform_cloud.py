"""A cloud in memory for the stand-in providers: what exists, what was billed, and failures to order."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# What costs money while it exists; everything else in the HCL is free of charge.
BILLED = ("google_compute_instance", "aws_instance")
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
}


class CloudError(Exception):
    """What the provider reports to Terraform as a diagnostic."""


@dataclass(slots=True, kw_only=True)
class Failure:
    """Makes creations fail: those of a type whose attributes have the given values, `times` times (None: always)."""

    type: str
    message: str
    where: Mapping[str, Any] = field(default_factory=dict)
    times: int | None = None

    def hits(self, kind: str, wanted: Mapping[str, Any]) -> bool:
        if kind != self.type or self.times == 0 or any(wanted.get(name) != value for name, value in self.where.items()):
            return False
        if self.times is not None:
            self.times -= 1
        return True


class FakeCloud:
    """Holds resources by type and id. Safe to use from several threads."""

    def __init__(self) -> None:
        self.resources: dict[tuple[str, str], dict[str, Any]] = {}
        self.history: list[tuple[str, str, str]] = []
        self.failures: list[Failure] = []
        self._numbers = itertools.count(1)
        self._mutex = threading.Lock()

    def of_type(self, kind: str) -> dict[str, dict[str, Any]]:
        """Return the resources of a type by id."""
        return {name: state for (found, name), state in self.resources.items() if found == kind}

    def billed(self) -> tuple[str, ...]:
        """Return the ids of everything that costs money now."""
        return tuple(name for kind, name in self.resources if kind in BILLED)

    def create(self, kind: str, wanted: dict[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
        with self._mutex:
            for failure in self.failures:
                if failure.hits(kind, wanted):
                    raise CloudError(failure.message)
            number = next(self._numbers)
            provider = kind.partition("_")[0]
            state = (
                _google(kind, wanted, config, number) if provider == "google" else _aws(kind, wanted, config, number)
            )
            key = (kind, str(state["id"]))
            if key in self.resources:
                raise CloudError(f"Error creating {kind}: googleapi: Error 409: {key[1]} already exists, alreadyExists")
            self.resources[key] = state
            self.history.append(("created", *key))
            return state

    def read(self, kind: str, name: str) -> dict[str, Any] | None:
        return self.resources.get((kind, name))

    def update(self, kind: str, name: str, wanted: dict[str, Any]) -> dict[str, Any]:
        with self._mutex:
            changed = {key: value for key, value in wanted.items() if value is not None}
            self.resources[kind, name] = {**self.resources[kind, name], **changed}
            return self.resources[kind, name]

    def delete(self, kind: str, name: str) -> None:
        with self._mutex:
            if self.resources.pop((kind, name), None) is not None:
                self.history.append(("deleted", kind, name))


def _google(kind: str, wanted: dict[str, Any], config: Mapping[str, Any], number: int) -> dict[str, Any]:
    project = wanted.get("project") or config.get("project") or "no-project"
    place = wanted.get("zone") or wanted.get("region")
    scope = f"zones/{place}" if wanted.get("zone") else f"regions/{place}" if place else "global"
    name = f"projects/{project}/{scope}/{kind.removeprefix('google_compute_')}s/{wanted['name']}"
    link = f"https://www.googleapis.com/compute/v1/{name}"
    state = {**wanted, "id": name, "project": project, "self_link": link}
    if kind == "google_compute_instance":
        state["instance_id"] = str(number)
        state["current_status"] = "RUNNING"
        interfaces = enumerate(wanted.get("network_interface") or [])
        state["network_interface"] = [_google_interface(index, wished, number) for index, wished in interfaces]
    return state


def _google_interface(index: int, wished: dict[str, Any], number: int) -> dict[str, Any]:
    public = [{**access, "nat_ip": f"198.51.100.{number % 250 + 1}"} for access in wished.get("access_config") or []]
    private = f"10.64.{number // 250}.{number % 250 + 2}"
    return {**wished, "name": f"nic{index}", "network_ip": private, "access_config": public}


def _aws(kind: str, wanted: dict[str, Any], config: Mapping[str, Any], number: int) -> dict[str, Any]:
    named = wanted.get("key_name") if kind == "aws_key_pair" else wanted.get("name")
    name = f"{_AWS_PREFIXES[kind]}-{number:017x}" if kind in _AWS_PREFIXES else str(named)
    arn = f"arn:aws:ec2:{config.get('region')}:000000000000:{kind.removeprefix('aws_')}/{name}"
    state = {**wanted, "id": name, "arn": arn, "tags_all": wanted.get("tags"), "region": config.get("region")}
    if kind == "aws_instance":
        state["instance_state"] = "running"
        state["private_ip"] = f"10.64.{number // 250}.{number % 250 + 4}"
        state["public_ip"] = f"203.0.113.{number % 250 + 1}" if wanted.get("associate_public_ip_address") else ""
    return state
