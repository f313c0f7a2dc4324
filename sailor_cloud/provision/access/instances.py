"""The instances of a run as their cloud reports them, with their addresses and the host keys that they published."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sailor_cloud.errors import CredentialsError, ProvisionError
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision.live_resources import NODE_LABEL, RUN_LABEL, Scopes, named
from sailor_cloud.provision.providers.aws import sweep as aws
from sailor_cloud.provision.providers.gcp import sweep as gcp

_RUNNING = ("RUNNING", "running")
# Kinds that a client prefers, best first.
_KEY_KINDS = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ssh-rsa")
_PRINTED = re.compile(r"-----BEGIN SSH HOST KEY KEYS-----(.*?)-----END SSH HOST KEY KEYS-----", re.S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A VM that the cloud lists for a node. `id` is never used twice; `machine` is what the cloud calls it."""

    node: str
    id: str
    machine: str
    provider: Provider
    region: str
    zone: str
    project: str
    address: str
    private_address: str
    running: bool


def instances(scopes: Scopes, run_id: str) -> tuple[Instance, ...]:
    """Return the instances of a run.

    Raises CredentialsError where a cloud turns the caller away, ProvisionError where it can't be asked.
    """
    found: list[Instance] = []
    try:
        for project in named(scopes, gcp.PROJECT):
            found += _gcp(project, run_id)
        for region in named(scopes, aws.REGION):
            found += _aws(region, run_id)
    except ProvisionError:
        raise
    except Exception as error:
        if gcp.is_refusal(error) or aws.is_refusal(error):
            raise CredentialsError(f"can't ask which nodes of run {run_id} exist: {error}") from error
        raise ProvisionError(f"can't ask which nodes of run {run_id} exist: {error}") from error
    return tuple(sorted(found, key=lambda instance: (instance.node, instance.id)))


def published_host_key(instance: Instance) -> str | None:
    """Return the host key that an instance has told its cloud at its first boot; None while there is none.

    On Google Cloud the guest agent writes it into the guest attributes, on AWS cloud-init prints it on the console; no
    third party on the way to the instance can forge either.
    """
    try:
        keys = _gcp_keys(instance) if instance.provider is Provider.GCP else _aws_keys(instance)
    except Exception as error:
        if _not_there_yet(error):
            return None
        raise ProvisionError(f"can't ask for the host key of node {instance.node}: {error}") from error
    return next((f"{kind} {keys[kind]}" for kind in _KEY_KINDS if kind in keys), None)


def _gcp(project: str, run_id: str) -> Iterator[Instance]:
    client = gcp.google_client("InstancesClient")
    for scope, scoped in client.aggregated_list(project=project):
        zone = scope.rpartition("/")[2]
        for item in scoped.instances:
            if item.labels.get(RUN_LABEL) != run_id:
                continue
            face = item.network_interfaces[0] if item.network_interfaces else None
            public = face.access_configs[0].nat_i_p if face is not None and face.access_configs else ""
            private = face.network_i_p if face is not None else ""
            yield Instance(
                node=item.labels.get(NODE_LABEL, ""),
                id=str(item.id),
                machine=item.name,
                provider=Provider.GCP,
                region=zone.rpartition("-")[0],
                zone=zone,
                project=project,
                address=public or private,
                private_address=private,
                running=item.status in _RUNNING,
            )


def _aws(region: str, run_id: str) -> Iterator[Instance]:
    client = aws.boto_client(region)
    wanted = [{"Name": f"tag:{RUN_LABEL}", "Values": [run_id]}]
    for page in client.get_paginator("describe_instances").paginate(Filters=wanted):
        for reservation in page["Reservations"]:
            for item in reservation["Instances"]:
                if item["State"]["Name"] == "terminated":
                    continue
                tags = {tag["Key"]: tag["Value"] for tag in item.get("Tags", [])}
                yield Instance(
                    node=tags.get(NODE_LABEL, ""),
                    id=item["InstanceId"],
                    machine=item["InstanceId"],
                    provider=Provider.AWS,
                    region=region,
                    zone=item.get("Placement", {}).get("AvailabilityZone", ""),
                    project="",
                    address=item.get("PublicIpAddress") or item.get("PrivateIpAddress", ""),
                    private_address=item.get("PrivateIpAddress", ""),
                    running=item["State"]["Name"] in _RUNNING,
                )


def _gcp_keys(instance: Instance) -> dict[str, str]:
    client = gcp.google_client("InstancesClient")
    request = {
        "project": instance.project,
        "zone": instance.zone,
        "instance": instance.machine,
        "query_path": "hostkeys/",
    }
    told: Any = client.get_guest_attributes(request=request)
    return {item.key: item.value for item in told.query_value.items}


def _aws_keys(instance: Instance) -> dict[str, str]:
    client = aws.boto_client(instance.region)
    printed = client.get_console_output(InstanceId=instance.machine).get("Output", "")
    text = printed if "SSH HOST KEY" in printed else base64.b64decode(printed).decode(errors="replace")
    found = _PRINTED.search(text)
    lines = [line.split() for line in found[1].splitlines()] if found else []
    return {words[0]: words[1] for words in lines if len(words) >= 2}


def _not_there_yet(error: Exception) -> bool:
    """The guest has published nothing yet, or what was listed a moment ago is gone by now."""
    response = getattr(error, "response", None)
    code = response.get("Error", {}).get("Code", "") if isinstance(response, dict) else ""
    return getattr(error, "code", None) == 404 or "NotFound" in str(code)
