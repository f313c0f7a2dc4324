"""Existing machines: an inventory as offers, zones and links, in the form of a cloud's files."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import yaml
from pydantic import ValidationError

from sailor_cloud import resources
from sailor_cloud.catalog.files.tables import OFFER_COLUMNS
from sailor_cloud.catalog.providers import CatalogProvider
from sailor_cloud.errors import Problem, RequestError
from sailor_cloud.model.inventory import Inventory
from sailor_cloud.model.job import Job, Resource
from sailor_cloud.model.job_file import ALL, faults_of, read_yaml, text_of
from sailor_cloud.model.offer import Market
from sailor_cloud.model.untrusted import MOST_JOB_VALUES, check_values
from sailor_cloud.units import GB, GBIT_BYTES

_SOURCE = "cluster.yaml"
_known: dict[str, Inventory] = {}

_HEADERS = {
    "pricing/zones.csv": "provider,region,zone",
    "pricing/regions.csv": "provider,region,location,continent,egress_group,latitude,longitude,grid_gco2_per_kwh,"
    "carbon_free_fraction,carbon_as_of,source",
    "pricing/egress.csv": "provider,src_scope,src,dst_scope,dst,payer,usd_per_unit,unit,tier,as_of_from,as_of_to,"
    "source,confidence",
    "pricing/sources.csv": "id,citation,licence",
    "bandwidth_profiles/instances.csv": "provider,instance_type,accelerator,accelerator_count,baseline_gbit_per_s,"
    "max_gbit_per_s,device_link,device_link_gb_per_s,source",
    "bandwidth_profiles/curves.csv": "scope,src_zone,src_accelerator,dst_zone,dst_accelerator,pairs,a,b,c,min_bytes,"
    "max_bytes,max_bytes_per_s,rtt_ms,measured,source,as_of",
}


class ClusterOffers(CatalogProvider):
    """The newest inventory of one scheduler; nothing before the first.

    Nobody bills for disks, addresses or traffic; the wait of a job in a queue is unknown. A node needs 60 s: 20 s until
    its agent runs, 40 s to import, check and calibrate.
    """

    startup_s = 60.0
    teardown_s = 5.0
    creation_s = 0.0
    preemptions_per_hour = 0.0
    bills_services = False
    general_curves = False
    may_be_free = True

    def __init__(self, scheduler: str) -> None:
        self._scheduler = scheduler

    @property
    def data(self) -> Path | None:  # type: ignore[override]
        inventory = _known.get(self._scheduler)
        return None if inventory is None else _written(inventory)


def read_inventory(path: Path) -> Inventory:
    """Return the inventory in a file. Raises RequestError with every fault, each with its place."""
    raw = read_yaml(text_of(path, "inventory", written_by="import slurm"), origin=str(path))
    check_values(raw, origin=str(path), most=MOST_JOB_VALUES)
    if not isinstance(raw, dict):
        raise RequestError(f"inventory {path} must be a mapping with name, scheduler, groups and checkpoints")
    try:
        found = Inventory.model_validate(raw)
    except ValidationError as error:
        raise RequestError(faults_of(error, str(path), Inventory)) from error
    _check_accelerators(found, str(path))
    return found


def as_yaml(inventory: Inventory) -> str:
    """Return the text of an inventory's file."""
    values = json.loads(inventory.model_dump_json(exclude_defaults=True))
    return yaml.safe_dump(values, sort_keys=False, width=110)


def with_inventory(job: Job, base: Path | None = None, *, on: str | None = None, cluster: Path | None = None) -> Job:
    """Return a job with its inventory, or the one in `cluster`, read and registered with the catalog.

    `on` names the scheduler whose groups replace the job's resources. Resources of that scheduler stay, and a command
    keeps its numbers of accelerators. Raises RequestError for an inventory that is wrong or of another scheduler, and
    for resources that it lacks.
    """
    named = cluster or job.cloud.cluster
    if named is None:
        if on is not None:
            raise RequestError(
                f"--on {on} needs an inventory: name it with --cluster FILE, or as cloud.cluster in the job"
            )
        return job
    if isinstance(named, str):
        named = (base or Path()) / Path(named).expanduser()
    inventory = named if isinstance(named, Inventory) else read_inventory(named)
    job = job.model_copy(update={"cloud": job.cloud.model_copy(update={"cluster": inventory})})
    if on is None and cluster is not None and not any(each.provider == inventory.scheduler for each in job.resources):
        raise RequestError(f"nothing in the job uses the inventory {inventory.name}; add --on {inventory.scheduler}")
    if on is not None:
        if inventory.scheduler != on:
            raise RequestError(f"--on {on}, but the inventory {inventory.name} is for {inventory.scheduler}")
        job = job.model_copy(update={"resources": _on(job, inventory)})
    register_inventory(job)
    if problems := list(_excess_problems(job, inventory)):
        raise RequestError(problems)
    return job


def register_inventory(job: Job) -> None:
    """Register the job's inventory with the catalog and the network, replacing any other."""
    inventory = job.cloud.inventory
    if inventory is not None:
        # Groups of two clusters may share a name, and no plan uses both.
        _known.clear()
        _known[inventory.scheduler] = inventory


def _on(job: Job, inventory: Inventory) -> tuple[Resource, ...]:
    """Return a job's resources of an inventory: those it names, the devices that its command names, or all groups."""
    named = [entry for entry in job.resources if ALL not in entry.accelerators]
    if own := tuple(entry for entry in named if entry.provider == inventory.scheduler):
        return own
    if named and job.model is None:
        return tuple(_of_a_command(named, inventory))
    return tuple(
        Resource(
            provider=inventory.scheduler,
            zones=(name,),
            markets=(Market.ON_DEMAND,),
            accelerators={group.accelerator: group.nodes * group.devices_per_node},
        )
        for name, group in inventory.groups.items()
    )


def _of_a_command(named: Iterable[Resource], inventory: Inventory) -> Iterable[Resource]:
    """Yield exactly the devices that a command names, since it takes all of its resources. Raises RequestError."""
    counts: Counter[str] = Counter()
    for entry in named:
        counts.update(entry.accelerators)
    for accelerator, wanted in counts.items():
        has = {name: group.nodes * group.devices_per_node for name, group in inventory.groups.items()}
        enough = tuple(
            name
            for name, group in inventory.groups.items()
            if group.accelerator == accelerator and has[name] >= wanted and wanted % group.devices_per_node == 0
        )
        if not enough:
            listed = ", ".join(
                f"{name} {has[name]} {group.accelerator} in nodes of {group.devices_per_node}"
                for name, group in inventory.groups.items()
            )
            raise RequestError(
                f"the job's resources name {wanted} {accelerator}, which no group of {inventory.name} has in whole "
                f"nodes ({listed}); name groups: resources: [{{provider: {inventory.scheduler}, zones: [GROUP], …}}]"
            )
        yield Resource(provider=inventory.scheduler, zones=enough, accelerators={accelerator: wanted})


def _excess_problems(job: Job, inventory: Inventory) -> Iterable[Problem]:
    """Yield where a job's resources exceed the inventory."""
    for index, entry in enumerate(job.resources):
        if entry.provider != inventory.scheduler:
            continue
        for zone in entry.zones:
            if (group := inventory.groups.get(zone)) is None:
                known = ", ".join(inventory.groups)
                yield Problem(
                    path=f"resources[{index}].zones",
                    message=f"{zone!r} is no group of {inventory.name}",
                    hint=f"groups: {known}",
                )
                continue
            has = group.nodes * group.devices_per_node
            for accelerator, wanted in entry.accelerators.items():
                if accelerator == group.accelerator and wanted > has:
                    message = f"is {wanted}, and group {zone} of {inventory.name} has {has}"
                    yield Problem(path=f"resources[{index}].accelerators.{accelerator}", message=message)


def _check_accelerators(inventory: Inventory, origin: str) -> None:
    from sailor_cloud import catalog
    from sailor_cloud.catalog.catalog import did_you_mean

    known = set(catalog.load().accelerator_names())
    problems = [
        Problem(
            path=f"{origin}: groups.{name}.accelerator",
            message=f"{group.accelerator!r} is no accelerator that has a profile",
            hint=did_you_mean(group.accelerator, known),
        )
        for name, group in inventory.groups.items()
        if group.accelerator not in known
    ]
    if problems:
        raise RequestError(problems)


def _written(inventory: Inventory) -> Path:
    """Return the folder of an inventory's data files, which is written once per content."""
    files = {name: _text(header, rows) for name, header, rows in _files(inventory)}
    content = json.dumps(files, sort_keys=True)
    place = resources.home() / "inventories"
    folder = place / hashlib.sha256(content.encode()).hexdigest()[:16]
    if folder.is_dir():
        return folder
    try:
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=place, prefix=".unfinished-") as unfinished:
            staged = Path(unfinished) / "data"
            for name, text in files.items():
                (staged / name).parent.mkdir(parents=True, exist_ok=True)
                (staged / name).write_text(text, encoding="utf-8")
            try:
                os.rename(staged, folder)
            except OSError:
                # Another process was faster and has written the same content.
                if not folder.is_dir():
                    raise
    except OSError as error:
        raise RequestError(f"can't keep the inventory in {place}: {error.strerror}") from error
    return folder


def _text(header: str, rows: Iterable[Iterable[object]]) -> str:
    text = io.StringIO()
    text.write(f"{header}\n")
    csv.writer(text, lineterminator="\n").writerows(["" if cell is None else cell for cell in row] for row in rows)
    return text.getvalue()


def _files(cluster: Inventory) -> Iterable[tuple[str, str, list[tuple[object, ...]]]]:
    """Yield the name, the header and the rows of each file; the columns are those of the shipped ones."""
    provider, day, groups = cluster.scheduler, cluster.as_of.isoformat(), cluster.groups.items()
    rows: dict[str, list[tuple[object, ...]]] = {
        "pricing/zones.csv": [(provider, cluster.name, name) for name in cluster.groups],
        "pricing/regions.csv": [(provider, cluster.name, cluster.name, "", "", "", "", "", "", "", _SOURCE)],
        "pricing/egress.csv": [
            (provider, scope, "*", scope, "*", "sender", 0, "GB", "all", day, day, _SOURCE, "stated")
            for scope in ("same-zone", "other-zone")
        ],
        "pricing/sources.csv": [(_SOURCE, f"the inventory of {cluster.name}", "the user's own")],
        "bandwidth_profiles/instances.csv": [
            (
                provider,
                cluster.instance_type(name),
                group.accelerator,
                group.devices_per_node,
                group.gbit_per_s,
                group.gbit_per_s,
                group.device_link or ("stated" if group.device_link_gb_per_s else ""),
                group.device_link_gb_per_s,
                _SOURCE,
            )
            for name, group in groups
        ],
        "bandwidth_profiles/curves.csv": [
            row for link in cluster.links for row in _curves(cluster, link.between, link.gbit_per_s, link.rtt_ms)
        ]
        + [
            row
            for name, group in groups
            if group.rtt_ms is not None
            for row in _curves(cluster, (name, name), group.gbit_per_s, group.rtt_ms)
        ],
    }
    for name, header in _HEADERS.items():
        yield name, header, rows[name]
    offers: list[tuple[object, ...]] = [
        (
            provider,
            cluster.name,
            name,
            cluster.instance_type(name),
            group.accelerator,
            group.devices_per_node,
            group.vcpus or 1,
            group.memory_gib or 1.0,
            "on-demand",
            group.usd_per_hour,
            day,
            day,
            _SOURCE,
            "stated",
            "seen",
            "no",
        )
        for name, group in groups
    ]
    yield f"pricing/offers/{provider}.csv", ",".join(OFFER_COLUMNS), offers


def _curves(
    cluster: Inventory, between: tuple[str, str], gbit_per_s: float, rtt_ms: float
) -> Iterable[tuple[object, ...]]:
    """Yield the curve of a link in both directions, flat: all pairs together have the rate of one."""
    rate = gbit_per_s * GBIT_BYTES
    for src, dst in dict.fromkeys((between, between[::-1])):
        ends = (src, cluster.groups[src].accelerator, dst, cluster.groups[dst].accelerator)
        for pairs in (1, 2, 4, 8, 16):
            flat = (pairs, 0, 0, rate / GB, 65536, 2**30, rate)
            yield ("zones", *ends, *flat, rtt_ms, "no", _SOURCE, cluster.as_of.isoformat())
