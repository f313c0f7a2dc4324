"""A plan as a SkyPilot job group: one task for each node group, which SkyPilot (0.12 and newer) starts together."""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from sailor_cloud.errors import RequestError
from sailor_cloud.launch.fleet.job_artefact import exported
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.offer import Market, Offer
from sailor_cloud.provision import providers
from sailor_cloud.provision.jobs import RENDEZVOUS_PORT, JobGroup, agent_command
from sailor_cloud.provision.rendering.root import placed_nodes

_WHEEL = re.compile(r"(https:/)?/[\w.~%/:+@-]+\.whl(#sha256=[0-9a-f]{64})?")
# SkyPilot's names of accelerators with two memory sizes; other names lack the memory.
_NAMES = {"A100-80": "A100-80GB", "V100-32": "V100-32GB"}


def job_group(document: PlanDocument, *, wheel: str | None, base: Path | None = None) -> str:
    """Return the YAML of `sky jobs launch`; nodes install the wheel from an address.

    Raises RequestError for a plan that SkyPilot can't start together.
    """
    setup = _install(wheel)
    export = exported(document, None, token=secrets.token_hex(16), base=base)
    offers = {one.node.id: one.offer for one in placed_nodes(document)}
    here = sorted({(offer.provider, offer.region) for offer in offers.values()})
    if len(here) > 1:
        listed = ", ".join(f"{provider} {region}" for provider, region in here)
        raise RequestError(f"the plan is in {listed}, and SkyPilot starts a job group in one region of one cloud")
    if not providers.is_cloud(here[0][0]):
        raise RequestError(f"the plan's nodes are of {here[0][0]}; SkyPilot needs a plan on a cloud")
    if others := sorted({offer.market for offer in offers.values()} - {Market.SPOT, Market.ON_DEMAND}):
        raise RequestError(f"the plan buys {', '.join(others)}; this export has spot and on-demand nodes only")
    name, first = export.run_id, export.groups[0]
    header = {"name": name, "execution": "parallel"}
    tasks = [_task(group, offers[group.nodes[0]], export.artefact, first, setup) for group in export.groups]
    if export.variables:
        # SkyPilot refuses a job whose secrets are null until `--secret NAME` takes them from its caller.
        tasks = [{**task, "secrets": dict.fromkeys(export.variables)} for task in tasks]
    text = yaml.dump_all([header, *tasks], Dumper=_Dumper, sort_keys=False, width=110)
    ids = sorted({offer.zone for offer in offers.values() if not _has_zone_name(offer)})
    return "".join(map(_zone_note, ids)) + text


def _infra(offer: Offer) -> str:
    """Return CLOUD/REGION/ZONE, without a zone where the offer has only its id, as on AWS.

    Source: SkyPilot's YAML specification, `resources.infra` (2026-11).
    """
    place = f"{offer.provider}/{offer.region}"
    return f"{place}/{offer.zone}" if _has_zone_name(offer) else place


def _has_zone_name(offer: Offer) -> bool:
    return offer.zone.startswith(offer.region)


def _zone_note(zone: str) -> str:
    return (
        f"# The plan is for the zone with id {zone}. SkyPilot takes the zone's name, which differs between accounts:\n"
        f"# aws ec2 describe-availability-zones --filters Name=zone-id,Values={zone} shows it. Append it to infra.\n"
    )


def _install(wheel: str | None) -> str:
    """Return the command that installs the runtime; a bare name could be any package of a registry."""
    if wheel is None or not _WHEEL.fullmatch(wheel):
        got = "is missing" if wheel is None else f"is {wheel!r}"
        raise RequestError(
            f"the wheel of sailor-cloud that nodes install {got}; build one with 'pip wheel --no-deps .' and give its "
            "address (https://….whl, also with #sha256=…) or its absolute path in the nodes' image, with --wheel or as "
            "SAILOR_CLOUD_WHEEL"
        )
    url = f"file://{wheel}" if wheel.startswith("/") else wheel
    return f"pip install {shlex.quote(f'sailor-cloud[runtime,stores] @ {url}')}\n"


def _task(group: JobGroup, offer: Offer, artefact: str, first: JobGroup, setup: str) -> Mapping[str, Any]:
    """Return a task; SkyPilot names the nodes of a group TASK-INDEX.GROUP and gives each node its index."""
    meeting = f"{first.name}-0.${{SKYPILOT_JOBGROUP_NAME}}:{RENDEZVOUS_PORT}"
    index = "${SKYPILOT_NODE_RANK}"
    agent = agent_command(
        group, python="python3", index=index, meeting=meeting, plan="~/sailor-plan.json", home="~/sailor-cloud"
    )
    words = " ".join(word if word.startswith(("~", "$")) or "${" in word else shlex.quote(word) for word in agent)
    name = _NAMES.get(offer.accelerator, offer.accelerator.rpartition("-")[0])
    return {
        "name": group.name,
        "num_nodes": len(group.nodes),
        "resources": {
            "infra": _infra(offer),
            "instance_type": offer.instance_type,
            "accelerators": f"{name}:{group.devices}",
            "use_spot": offer.market is Market.SPOT,
        },
        "setup": setup,
        "run": f"cat > ~/sailor-plan.json <<'PLAN'\n{artefact.rstrip()}\nPLAN\nexec {words}\n",
    }


class _Dumper(yaml.SafeDumper):
    """Writes strings of several lines as literal blocks."""


def _block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _block)
