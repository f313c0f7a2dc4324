"""A plan as a SkyPilot task. SkyPilot connects the nodes of one task, so the plan has one kind of node in one zone.

Tasks of a job group reach each other by name on Kubernetes only. Source: sky/optimizer.py, SkyPilot 0.14.1.
"""

from __future__ import annotations

import math
import re
import secrets
import shlex
from pathlib import Path

import yaml

from sailor_cloud import catalog
from sailor_cloud.errors import RequestError
from sailor_cloud.launch.fleet.job_artefact import Exported, exported
from sailor_cloud.launch.fleet.software import Software, software_for
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.offer import Market, Offer
from sailor_cloud.provision import providers
from sailor_cloud.provision.jobs import RENDEZVOUS_PORT, agent_command
from sailor_cloud.provision.rendering.root import placed_nodes

_WHEEL = re.compile(r"(https:/)?/[\w.~%/:+@-]+\.whl(#sha256=[0-9a-f]{64})?")
# SkyPilot's names of accelerators with two memory sizes; other names lack the memory.
_NAMES = {"A100-80": "A100-80GB", "V100-32": "V100-32GB"}
# Instance types whose accelerators have another name. Source: sky/catalog/gcp_catalog.py, SkyPilot 0.14.1.
_NAMES_OF_TYPES = {"a3-megagpu-8g": "H100-MEGA"}
# SkyPilot's images have uv in this place, and a python3 that may be too old: 3.10 on Ubuntu 22.04.
_UV, _VENV, _PYTHON = "~/.local/bin/uv", "~/sailor-venv", "3.12"
# Seconds to save after the time is over, as Slurm's KillWait.
_KILL_AFTER_S = 30


def skypilot_task(document: PlanDocument, *, wheel: str | None, base: Path | None = None) -> str:
    """Return the YAML of `sky jobs launch`; nodes install the wheel from an address.

    Raises RequestError for a plan that SkyPilot can't start together.
    """
    address = _address(wheel)
    export = exported(document, None, token=secrets.token_hex(16), base=base)
    offer = _only_offer(document)
    software = software_for([catalog.load().accelerator(offer.accelerator).compute_capability])
    name = _NAMES_OF_TYPES.get(offer.instance_type) or _NAMES.get(offer.accelerator)
    task = {
        "name": export.run_id,
        "num_nodes": len(export.groups[0].nodes),
        "resources": {
            "infra": _infra(offer),
            "instance_type": offer.instance_type,
            "accelerators": f"{name or offer.accelerator.rpartition('-')[0]}:{offer.accelerator_count}",
            "use_spot": offer.market is Market.SPOT,
        },
        "setup": _setup(address, software),
        "run": _run(export),
    }
    if export.variables:
        # SkyPilot refuses a task whose secrets are null until `--secret NAME` takes them from its caller.
        task["secrets"] = dict.fromkeys(export.variables)
    text = yaml.dump(task, Dumper=_Dumper, sort_keys=False, width=110)
    return text if _has_zone_name(offer) else _zone_note(offer.zone) + text


def _only_offer(document: PlanDocument) -> Offer:
    """Return the offer of all nodes. Raises RequestError if there are several, or SkyPilot can't buy it."""
    offers = {one.offer.id: one.offer for one in placed_nodes(document)}
    if others := sorted({offer.provider for offer in offers.values() if not providers.is_cloud(offer.provider)}):
        raise RequestError(f"the plan's nodes are of {', '.join(others)}; SkyPilot needs a plan on a cloud")
    if len(offers) > 1:
        listed = ", ".join(f"{one.instance_type} ({one.market}) in {one.zone}" for one in offers.values())
        raise RequestError(
            f"the plan has nodes of several kinds or zones ({listed}), and SkyPilot connects only the equal nodes of "
            "one task on a cloud; plan with --restrict one-accelerator --restrict one-zone, or start the plan with 'up'"
        )
    (offer,) = offers.values()
    if offer.market not in (Market.SPOT, Market.ON_DEMAND):
        raise RequestError(f"the plan buys {offer.market}; this export has spot and on-demand nodes only")
    return offer


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


def _address(wheel: str | None) -> str:
    """Return the wheel as an address for pip; a bare name could be any package of a registry."""
    if wheel is None or not _WHEEL.fullmatch(wheel):
        got = "is missing" if wheel is None else f"is {wheel!r}"
        raise RequestError(
            f"the wheel of sailor-cloud that nodes install {got}; build one with 'pip wheel --no-deps .' and give its "
            "address (https://….whl, also with #sha256=…) or its absolute path in the nodes' image, with --wheel or as "
            "SAILOR_CLOUD_WHEEL"
        )
    return f"file://{wheel}" if wheel.startswith("/") else wheel


def _setup(address: str, software: Software) -> str:
    """Return the commands that install the runtime, with the build of torch that the accelerator needs."""
    wanted = (f"sailor-cloud[runtime,stores] @ {address}", software.torch_requirement, *software.index_options)
    return (
        "set -e\n"
        f"[ -x {_VENV}/bin/pip ] || {_UV} venv --seed --python {_PYTHON} {_VENV}\n"
        f"{_VENV}/bin/pip install {shlex.join(wanted)}\n"
    )


def _run(export: Exported) -> str:
    """Return the command of every node. SkyPilot has no time limit, so the command ends itself.

    SKYPILOT_NODE_IPS has an address per line; the first is that of the node with rank 0.
    """
    agent = agent_command(
        export.groups[0],
        python=f"{_VENV}/bin/python",
        index="${SKYPILOT_NODE_RANK}",
        meeting=f"${{SKYPILOT_NODE_IPS%%$'\\n'*}}:{RENDEZVOUS_PORT}",
        plan="~/sailor-plan.json",
        home="~/sailor-cloud",
    )
    words = " ".join(word if word.startswith(("~", "$")) else shlex.quote(word) for word in agent)
    # In the foreground, `timeout` signals the agent alone, and once: a second SIGTERM ends it without saving.
    limit = f"timeout --foreground --kill-after={_KILL_AFTER_S} {math.ceil(export.seconds)}"
    return f"cat > ~/sailor-plan.json <<'PLAN'\n{export.artefact.rstrip()}\nPLAN\nexec {limit} {words}\n"


class _Dumper(yaml.SafeDumper):
    """Writes strings of several lines as literal blocks."""


def _block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _block)
