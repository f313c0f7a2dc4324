"""What is left of a run, on this machine and on every cloud that it touched: found by tag, deleted, and proved gone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sailor_cloud.model.offer import Provider
from sailor_cloud.provision.bookkeeping import NODE
from sailor_cloud.provision.cleanup.kept import BUCKETS, kept_bucket
from sailor_cloud.provision.live_resources import BY_TAG, CloudSweep, LiveResource, sweep_local
from sailor_cloud.provision.providers.aws.sweep import AWS_KINDS
from sailor_cloud.provision.providers.gcp.member_sweep import MEMBER
from sailor_cloud.provision.providers.gcp.sweep import GCP_KINDS
from sailor_cloud.provision.providers.local import vm
from sailor_cloud.provision.scopes import BESIDE_COMPUTE, Places, remove_from, sweep_places, touched
from sailor_cloud.run.folder import RunFolder, resource_name
from sailor_cloud.run.journal import Entry, read
from sailor_cloud.run.state import ResourceState, fold

TERRAFORM = "Terraform"
SWEPT = frozenset({*AWS_KINDS, *GCP_KINDS, *BESIDE_COMPUTE})
# What the clouds delete together with what it belongs to, which is looked for.
PARTS = frozenset(
    {
        "aws_route",
        "aws_route_table_association",
        "aws_vpc_security_group_ingress_rule",
        "aws_vpc_security_group_egress_rule",
        "aws_vpc_peering_connection_accepter",
        "aws_scheduler_schedule",
        "aws_iam_role_policy",
        "aws_s3_bucket_public_access_block",
        "aws_s3_bucket_lifecycle_configuration",
        "google_compute_router_nat",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftovers:
    """Looks at a run without asking Terraform.

    `beside` are the kinds besides compute that the run may have. A bucket that stays on purpose is never found.
    """

    folder: RunFolder
    places: Places
    beside: frozenset[str] = frozenset()

    @classmethod
    def of(cls, folder: RunFolder, entries: Iterable[Entry]) -> Leftovers:
        known = tuple(entries)
        return cls(
            folder=folder,
            places=touched(known),
            beside=BESIDE_COMPUTE & {row.resource for row in fold(known).resources},
        )

    def sweep(self) -> CloudSweep:
        """Return everything that exists of the run; with problems, what is missing may exist all the same."""
        local = sweep_local(self.folder.run_id, nodes_dir=self.folder.nodes_dir)
        cloud = sweep_places(self.places, run_id=self.folder.run_id, beside=self.beside)
        kept = kept_bucket(self.folder.run_id, read(self.folder.journal_file))
        name = kept.name if kept is not None else ""
        found = (resource for resource in cloud.found if resource.type not in BUCKETS or resource.name != name)
        return CloudSweep(found=(*local, *found), problems=cloud.problems)

    def remove(self, found: Iterable[LiveResource]) -> tuple[str, ...]:
        """Delete what a sweep found, compute first; return what failed."""
        everything = tuple(found)
        problems = []
        for node in sorted({resource.node for resource in everything if resource.provider == Provider.LOCAL}):
            problem = vm.remove(self.folder.run_id, node, self.folder.node_dir(node))
            if problem:
                problems.append(problem)
        on_clouds = [resource for resource in everything if resource.provider != Provider.LOCAL]
        if on_clouds:
            problems += remove_from(self.places, on_clouds)
        return tuple(problems)

    def confirmed_by(self, row: ResourceState, swept: CloudSweep, cleared: frozenset[tuple[str, str]]) -> str | None:
        """Return who has confirmed that something in the journal is gone; None where nobody has.

        What carries no tag that can be looked for is gone when Terraform has destroyed its root without an error.
        `cleared` are such roots by stack and region.
        """
        if row.resource == NODE and any(found.node == row.key for found in swept.found):
            return None
        if row.data.get("provider", Provider.LOCAL.value) == Provider.LOCAL:
            return BY_TAG
        if swept.problems:
            return None
        if row.resource == NODE:
            return BY_TAG
        if row.resource not in SWEPT or not self._looked_at(row):
            by_terraform = (row.data.get("stack"), row.data.get("region")) in cleared
            # What is nothing without something that is looked for, such as a route, is gone with it.
            return TERRAFORM if by_terraform else BY_TAG if row.resource in PARTS else None
        return None if any(_is(row, found) for found in swept.found) else BY_TAG

    def _looked_at(self, row: ResourceState) -> bool:
        """Whether the sweep knew where to look: rights on the run's own bucket go with it, others are in known ones."""
        buckets = (resource_name(self.folder.run_id, "data"), *self.places.gcp_buckets)
        return row.resource != MEMBER or any(row.key.endswith(f'["{bucket}"]') for bucket in buckets)


def _is(row: ResourceState, found: LiveResource) -> bool:
    if (found.type, found.provider) != (row.resource, row.data.get("provider")):
        return False
    name = str(row.data.get("cloud_id", "")).rpartition("/")[2]
    # Without an id of the cloud's it may be any of its kind.
    return found.name == name if name else True
