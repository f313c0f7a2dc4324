"""The instances of a run on AWS, their published host keys, and the tunnel to them.

The tunnel is a session of Systems Manager, to which the node's agent connects from inside
(docs.aws.amazon.com/systems-manager/latest/userguide, "Allow and control permissions for SSH connections through
Session Manager").
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator

from sailor_cloud.provision.access.instances import Instance
from sailor_cloud.provision.live_resources import NODE_LABEL, RUN_LABEL
from sailor_cloud.provision.providers.aws.sweep import AWS, boto_client, error_code, is_gone

TUNNEL_PROGRAMS = {
    "aws": "https://docs.aws.amazon.com/cli/latest/userguide/getting-started-install.html",
    "session-manager-plugin": "https://docs.aws.amazon.com/systems-manager/latest/userguide/"
    "session-manager-working-with-install-plugin.html",
}
_PRINTED = re.compile(r"-----BEGIN SSH HOST KEY KEYS-----(.*?)-----END SSH HOST KEY KEYS-----", re.S)


def instances(region: str, run_id: str) -> Iterator[Instance]:
    """Yield a run's instances in a region."""
    client = boto_client(region)
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
                    provider=AWS,
                    region=region,
                    zone=item.get("Placement", {}).get("AvailabilityZone", ""),
                    project="",
                    address=item.get("PublicIpAddress") or item.get("PrivateIpAddress", ""),
                    private_address=item.get("PrivateIpAddress", ""),
                    running=item["State"]["Name"] == "running",
                    efa=any(card.get("InterfaceType") == "efa" for card in item.get("NetworkInterfaces", [])),
                )


def host_keys(instance: Instance) -> dict[str, str]:
    """Return the keys that cloud-init printed on the console."""
    printed = _console(instance)
    text = printed if "SSH HOST KEY" in printed else base64.b64decode(printed).decode(errors="replace")
    found = _PRINTED.search(text)
    lines = [line.split() for line in found[1].splitlines()] if found else []
    return {words[0]: words[1] for words in lines if len(words) >= 2}


def _console(instance: Instance) -> str:
    """Return what an instance has printed until now, or at least until its state last changed.

    Only instances on Nitro show the former. The latter is often empty for minutes after a boot.
    """
    client = boto_client(instance.region)
    for options in ({"Latest": True}, {}):
        try:
            return str(client.get_console_output(InstanceId=instance.machine, **options).get("Output", ""))
        except Exception as error:
            if is_gone(error):
                break
            if not options or error_code(error) != "UnsupportedOperation":
                raise
    return ""


def tunnel(instance: Instance, port: int) -> tuple[str, ...]:
    target = ("--target", instance.machine, "--region", instance.region)
    document = ("--document-name", "AWS-StartSSHSession", "--parameters", f"portNumber={port}")
    return ("aws", "ssm", "start-session", *target, *document)
