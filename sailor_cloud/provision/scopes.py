"""Where a run has, or may have, something: what is looked through when it is torn down."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial

from sailor_cloud.errors import ProvisionError
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision.live_resources import CloudSweep, LiveResource
from sailor_cloud.provision.providers.aws.account_sweep import AWS_ACCOUNT_KINDS, remove_aws_account, sweep_aws_account
from sailor_cloud.provision.providers.aws.sweep import remove_aws, sweep_aws
from sailor_cloud.provision.providers.gcp.data_sweep import GCP_DATA_KINDS, remove_gcp_data, sweep_gcp_data
from sailor_cloud.provision.providers.gcp.member_sweep import MEMBER, remove_gcp_members, sweep_gcp_members
from sailor_cloud.provision.providers.gcp.sweep import remove_gcp, sweep_gcp
from sailor_cloud.provision.rendering.data import named_bucket
from sailor_cloud.provision.rendering.root import placed_nodes
from sailor_cloud.run.journal import Entry, Event

Look = Callable[[], CloudSweep]
BESIDE_COMPUTE = frozenset({*AWS_ACCOUNT_KINDS, *GCP_DATA_KINDS, MEMBER})


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Clouds that a run touched: projects of Google Cloud, which are looked through whole, and regions of AWS.

    `gcp_buckets` are buckets of the user's on which it may have added rights.
    """

    gcp_projects: tuple[str, ...] = ()
    aws_regions: tuple[str, ...] = ()
    gcp_buckets: tuple[str, ...] = ()

    @property
    def any(self) -> bool:
        return bool(self.gcp_projects or self.aws_regions)

    def __or__(self, other: Places) -> Places:
        return Places(
            gcp_projects=tuple(sorted({*self.gcp_projects, *other.gcp_projects})),
            aws_regions=tuple(sorted({*self.aws_regions, *other.aws_regions})),
            gcp_buckets=tuple(sorted({*self.gcp_buckets, *other.gcp_buckets})),
        )


def places_of(document: PlanDocument) -> Places:
    """Return where the nodes of a plan stand."""
    offers = [placed.offer for placed in placed_nodes(document)] if document.plan is not None else []
    account = document.job.cloud.gcp
    on_gcp = account is not None and any(offer.provider is Provider.GCP for offer in offers)
    bucket = named_bucket(document.job, Provider.GCP) if on_gcp else None
    return Places(
        gcp_projects=(account.project,) if account is not None and on_gcp else (),
        aws_regions=tuple(sorted({offer.region for offer in offers if offer.provider is Provider.AWS})),
        gcp_buckets=() if bucket is None else (bucket,),
    )


def touched(entries: Iterable[Entry]) -> Places:
    """Return every place of a run: those that its journal names, which were written before anything was asked for."""
    found = Places()
    for entry in entries:
        if entry.event is Event.PROVISION_STARTED:
            found |= Places(
                gcp_projects=tuple(entry.data.get("gcp_projects", ())),
                aws_regions=tuple(entry.data.get("aws_regions", ())),
                gcp_buckets=tuple(entry.data.get("gcp_buckets", ())),
            )
    return found


def sweep_places(places: Places, *, run_id: str | None = None, beside: Collection[str] = BESIDE_COMPUTE) -> CloudSweep:
    """Look by tag for what one run, or any run, has in some places; errors become problems.

    `beside` are the kinds to look for that are no part of Compute Engine or EC2: whoever has no rights for those that
    a run can't have is not bothered with them.
    """
    looks: list[Look] = [partial(sweep_gcp, project, run_id=run_id) for project in places.gcp_projects]
    looks += [partial(sweep_gcp_data, p, run_id=run_id, kinds=beside) for p in places.gcp_projects if beside]
    if run_id is not None and MEMBER in beside:
        looks.append(partial(sweep_rights, places, run_id=run_id))
    if places.aws_regions:
        looks.append(partial(sweep_aws, places.aws_regions, run_id=run_id))
        looks.append(partial(sweep_aws_account, places.aws_regions, run_id=run_id, kinds=beside))
    return _together(looks)


def sweep_rights(places: Places, *, run_id: str) -> CloudSweep:
    """Look for the rights that a run has on buckets of the user's; errors become problems."""
    projects = places.gcp_projects if places.gcp_buckets else ()
    return _together([partial(sweep_gcp_members, p, places.gcp_buckets, run_id=run_id) for p in projects])


def _together(looks: Iterable[Look]) -> CloudSweep:
    found: list[LiveResource] = []
    problems: list[str] = []
    for look in looks:
        try:
            swept = look()
        except ProvisionError as error:
            problems.append(str(error))
            continue
        found += swept.found
        problems += swept.problems
    return CloudSweep(found=tuple(found), problems=tuple(problems))


def remove_from(places: Places, resources: Iterable[LiveResource], *, poll_s: float = 5.0) -> tuple[str, ...]:
    """Delete what a sweep found, compute first and buckets last; return what failed."""
    chosen = tuple(resources)
    problems: list[str] = []
    for project in places.gcp_projects:
        mine = [resource for resource in chosen if resource.project == project]
        problems += remove_gcp(project, mine, poll_s=poll_s)
        problems += remove_gcp_members(project, mine)
        problems += remove_gcp_data(project, mine)
    problems += remove_aws(chosen, poll_s=poll_s)
    problems += remove_aws_account(chosen)
    return tuple(problems)
