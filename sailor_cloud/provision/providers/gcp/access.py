"""The instances of a run on Google Cloud, their published host keys, and the tunnel to them.

The tunnel is Identity-Aware Proxy's: it checks the caller's rights and connects from its own address range
(cloud.google.com/iap/docs/using-tcp-forwarding).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sailor_cloud.errors import ProvisionError
from sailor_cloud.provision.access.instances import Instance
from sailor_cloud.provision.live_resources import NODE_LABEL, RUN_LABEL
from sailor_cloud.provision.providers.gcp.sweep import GCP, aggregated_items, google_client, is_gone

TUNNEL_PROGRAMS = {"gcloud": "https://cloud.google.com/sdk/docs/install"}


def instances(project: str, run_id: str) -> Iterator[Instance]:
    """Yield a run's instances in a project. Raises ProvisionError for a zone that can't be asked."""
    for scope, scoped, why in aggregated_items(google_client("InstancesClient"), project):
        zone = scope.rpartition("/")[2]
        if why:
            raise ProvisionError(f"instances in {scope} can't be listed: {why}")
        for item in getattr(scoped, "instances", ()):
            if item.labels.get(RUN_LABEL) != run_id:
                continue
            face = item.network_interfaces[0] if item.network_interfaces else None
            public = face.access_configs[0].nat_i_p if face is not None and face.access_configs else ""
            private = face.network_i_p if face is not None else ""
            yield Instance(
                node=item.labels.get(NODE_LABEL, ""),
                id=str(item.id),
                machine=item.name,
                provider=GCP,
                region=zone.rpartition("-")[0],
                zone=zone,
                project=project,
                address=public or private,
                private_address=private,
                running=item.status == "RUNNING",
            )


def host_keys(instance: Instance) -> dict[str, str]:
    """Return the keys that the guest agent has written into the guest attributes."""
    request = {
        "project": instance.project,
        "zone": instance.zone,
        "instance": instance.machine,
        "query_path": "hostkeys/",
    }
    try:
        response: Any = google_client("InstancesClient").get_guest_attributes(request=request)
    except Exception as error:
        if is_gone(error):
            return {}
        raise
    return {item.key: item.value for item in response.query_value.items}


def tunnel(instance: Instance, port: int) -> tuple[str, ...]:
    place = (f"--project={instance.project}", f"--zone={instance.zone}")
    program = ("gcloud", "compute", "start-iap-tunnel", instance.machine, str(port), "--listen-on-stdin", *place)
    return (*program, "--verbosity=warning")
