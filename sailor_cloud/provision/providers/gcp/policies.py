"""Checks what an organization's policies forbid, before any purchase.

Policies come from the Resource Manager's `getEffectiveOrgPolicy`, which needs the right orgpolicy.policy.get.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sailor_cloud.errors import Problem
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import NetworkAccess
from sailor_cloud.provision.providers.gcp.data_sweep import GoogleApi, api_errors, google_api
from sailor_cloud.provision.providers.gcp.errors import ERRORS
from sailor_cloud.provision.providers.gcp.machines import images_for
from sailor_cloud.provision.rendering.root import PlacedNode

_LOG = logging.getLogger(__name__)
_API = ("CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDRESOURCEMANAGER", "https://cloudresourcemanager.googleapis.com")
ADDRESSES = "constraints/compute.vmExternalIpAccess"
SHIELDED = "constraints/compute.requireShieldedVm"
IMAGES = "constraints/compute.trustedImageProjects"
LOCATIONS = "constraints/gcp.resourceLocations"


def refusals(document: PlanDocument, nodes: Sequence[PlacedNode]) -> list[Problem]:
    """Return the policies of the project's organization that would refuse some nodes, each with a way out."""
    account = document.job.cloud.gcp
    compute = os.environ.get("CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE", "")
    if account is None or (compute.startswith("http://") and _API[0] not in os.environ):
        # Compute Engine is a stand-in here, without policies.
        return []
    used = images_for(document.job.cloud.image, {placed.offer.accelerator for placed in nodes})
    images = sorted(set(used.values()))
    regions = sorted({placed.offer.region for placed in nodes})
    forbidden = []
    try:
        api = google_api(*_API)
        public = document.job.cloud.network is not NetworkAccess.PRIVATE
        if public and _closed(_policy(api, account.project, ADDRESSES)):
            forbidden.append((ADDRESSES, "nodes with a public address"))
        if _policy(api, account.project, SHIELDED).get("booleanPolicy", {}).get("enforced"):
            forbidden.append((SHIELDED, "nodes without Secure Boot"))
        trusted = _policy(api, account.project, IMAGES)
        forbidden += [(IMAGES, f"the image {image}") for image in images if not _trusts(trusted, image)]
        where = _policy(api, account.project, LOCATIONS)
        outside = [region for region in regions if not _allows(where, region)]
        if outside:
            forbidden.append((LOCATIONS, f"nodes in {' and '.join(outside)}"))
    except api_errors() as error:
        _LOG.debug("the policies of %s can't be asked: %s", account.project, error)
    return [
        Problem(
            path="plan.nodes",
            message=f"a policy of your organization, {name}, forbids {what}",
            hint=ERRORS.allowed_by[name],
        )
        for name, what in forbidden
    ]


def _policy(api: GoogleApi, project: str, constraint: str) -> Mapping[str, Any]:
    return api.post(f"/v1/projects/{project}:getEffectiveOrgPolicy", {"constraint": constraint})


def _values(policy: Mapping[str, Any], key: str) -> Collection[str]:
    return [value.removeprefix("is:") for value in policy.get("listPolicy", {}).get(key, ())]


def _closed(policy: Mapping[str, Any]) -> bool:
    """Whether everything is forbidden except listed names, which never include a new instance."""
    return policy.get("listPolicy", {}).get("allValues") == "DENY" or bool(_values(policy, "allowedValues"))


def _trusts(policy: Mapping[str, Any], image: str) -> bool:
    """Whether images of an image's project are allowed; folders' settings are invisible from here."""
    parts = image.split("/")
    if "projects" not in parts[:-1]:
        return True
    project = "/".join(parts[parts.index("projects") :][:2])
    allowed = _values(policy, "allowedValues")
    if policy.get("listPolicy", {}).get("allValues") == "DENY" or project in _values(policy, "deniedValues"):
        return False
    return not allowed or project in allowed or any(value.startswith("under:") for value in allowed)


def _allows(policy: Mapping[str, Any], region: str) -> bool:
    """Whether a region, or a zone of it, is allowed; groups such as in:us-locations match by prefix."""
    allowed = _values(policy, "allowedValues")
    if policy.get("listPolicy", {}).get("allValues") == "DENY":
        return False
    groups = [value.removeprefix("in:").removesuffix("-locations") for value in allowed if value.startswith("in:")]
    return not allowed or any(value.startswith(region) for value in allowed) or any(map(region.startswith, groups))
