"""Finds leftovers of runs on Google Cloud by label, through Compute Engine's own API, and deletes them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sailor_cloud.catalog.providers.gcp.account import HOW, compute_endpoint
from sailor_cloud.errors import CredentialsError, MissingPackageError, ProvisionError
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision.live_resources import (
    EXPIRES_LABEL,
    NODE_LABEL,
    OWNER_LABEL,
    RUN_LABEL,
    Listing,
    LiveResource,
    labels_in,
)
from sailor_cloud.provision.terraform.pace import map_concurrently

GCP = Provider("gcp")
# The scope kind of a search.
PROJECT = "project"
# Answers after which a question is repeated, and for how long.
BUSY = (429, 500, 502, 503, 504)
_BUSY_LIMIT_S = 15.0
_DELETION_LIMIT_S = 900.0

# Returns a client of google-cloud-compute by the name of its class.
ClientOf = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of resource: its client, the attribute of its lists, and its key in requests.

    place: the scope in which a name is unique; `global` kinds have one list, all others one per place.
    """

    type: str
    client: str
    items: str
    key: str
    place: str


# In order of deletion: first what costs money, last what contains other resources.
_KINDS = (
    _Kind("google_compute_instance", "InstancesClient", "instances", "instance", "zone"),
    _Kind("google_compute_disk", "DisksClient", "disks", "disk", "zone"),
    _Kind("google_compute_resource_policy", "ResourcePoliciesClient", "resource_policies", "resource_policy", "region"),
    _Kind("google_compute_router", "RoutersClient", "routers", "router", "region"),
    _Kind("google_compute_firewall", "FirewallsClient", "", "firewall", "global"),
    _Kind("google_compute_subnetwork", "SubnetworksClient", "subnetworks", "subnetwork", "region"),
    _Kind("google_compute_network", "NetworksClient", "", "network", "global"),
)
GCP_KINDS = tuple(kind.type for kind in _KINDS)


def sweep_gcp(project: str, *, run_id: str | None = None, client_of: ClientOf | None = None) -> Listing:
    """Return the resources of one run, or of all runs, in a project, in every region.

    A stopped instance still exists. Raises CredentialsError, also without google-cloud-compute.
    """
    replies = map_concurrently(partial(_asked, client_of or google_client, project, run_id), _KINDS)
    refused = [why for _, why in replies if why is not None]
    if len(refused) == len(_KINDS):
        raise refused[0]
    # A caller who may not list one kind may list others.
    return Listing(
        found=tuple(one for listing, _ in replies for one in listing.found),
        failed=tuple(one for listing, _ in replies for one in listing.failed),
    )


def _asked(connect: ClientOf, project: str, run_id: str | None, kind: _Kind) -> tuple[Listing, CredentialsError | None]:
    """Return the resources of a kind, and why the caller may not list it."""
    found: list[LiveResource] = []
    failed: list[tuple[str, str]] = []
    refused = None
    try:
        found += _listed(connect(kind.client), kind, project, run_id, failed)
    except ProvisionError:
        raise
    except Exception as error:
        refused = refusal(f"list resources of {project}", error) if is_refusal(error) else None
        failed.append((kind.type, str(refused or f"{kind.type} in {project} can't be listed: {error}")))
    return Listing(found=tuple(found), failed=tuple(failed)), refused


def remove_gcp(
    project: str,
    resources: Sequence[LiveResource],
    *,
    client_of: ClientOf | None = None,
    poll_s: float = 5.0,
) -> tuple[str, ...]:
    """Delete found resources, compute first, each kind fully before the next; return the failures.

    Continues past every error, and deletes nothing without a run's label.
    """
    connect = client_of or google_client
    ours = [resource for resource in resources if resource.run_id and resource.provider == GCP]
    problems: list[str] = []
    for kind in _KINDS:
        mine = [resource for resource in ours if resource.type == kind.type]
        replies = map_concurrently(partial(_request_deletion, connect, kind, project), mine)
        problems += [problem for problem in replies if problem]
        asked = [resource for resource, problem in zip(mine, replies, strict=True) if problem == ""]
        problems += _wait_until_gone(connect, kind, project, asked, poll_s)
    return tuple(problems)


def _request_deletion(connect: ClientOf, kind: _Kind, project: str, resource: LiveResource) -> str | None:
    """Request a deletion, and return the error: empty, or None if the resource is deleted already."""
    try:
        connect(kind.client).delete_unary(project=project, **_address(kind, resource))
    except Exception as error:
        return None if is_gone(error) else f"{kind.type} {resource.name} can't be deleted: {error}"
    return ""


def _address(kind: _Kind, resource: LiveResource) -> dict[str, str]:
    place = {"zone": resource.zone, "region": resource.region}
    return {kind.key: resource.name} | ({kind.place: place[kind.place]} if kind.place in place else {})


def _listed(
    client: Any, kind: _Kind, project: str, run_id: str | None, failed: list[tuple[str, str]]
) -> Iterator[LiveResource]:
    for place, item in _items(client, kind, project, failed):
        labels = dict(item.labels) if kind.place == "zone" else labels_in(item.description)
        owner = labels.get(RUN_LABEL, "")
        if not owner or (run_id is not None and owner != run_id):
            continue
        zone = place if kind.place == "zone" else ""
        yield LiveResource(
            provider=GCP,
            region=zone.rpartition("-")[0] or place,
            zone=zone,
            type=kind.type,
            name=item.name,
            run_id=owner,
            node=labels.get(NODE_LABEL, ""),
            detail=item.machine_type.rpartition("/")[2] if kind.key == "instance" else "",
            project=project,
            title=item.name,
            owner=labels.get(OWNER_LABEL, ""),
            expires=labels.get(EXPIRES_LABEL, ""),
        )


def _items(client: Any, kind: _Kind, project: str, failed: list[tuple[str, str]]) -> Iterator[tuple[str, Any]]:
    """Yield place and item from all places; those that can't be asked are added to `failed`."""
    listed = aggregated_items(client, project) if kind.place != "global" else _pages(client.list, project)
    for scope, part, why in listed:
        if why:
            failed.append((kind.type, f"{kind.type} in {scope} can't be listed: {why}"))
        found = getattr(part, kind.items or "items", ())
        yield from ((scope.rpartition("/")[2] if kind.items else "global", item) for item in found)


def aggregated_items(client: Any, project: str) -> Iterator[tuple[str, Any, str]]:
    """Yield every place of a project, its items, and why the list may be incomplete: empty if it is complete."""
    for scope, page, why in _pages(client.aggregated_list, project):
        yield from ((name, part, _doubt(part.warning)) for name, part in page.items.items())
        yield from ((name, None, "Google Cloud does not reach it") for name in page.unreachables)
        yield scope, None, why


def _pages(ask: Callable[..., Any], project: str) -> Iterator[tuple[str, Any, str]]:
    from google.api_core.retry import Retry

    token, again = "", Retry(predicate=is_busy, initial=1.0, multiplier=2.0, maximum=10.0, timeout=_BUSY_LIMIT_S)
    for page in ask(project=project, retry=again).pages:
        yield project, page, _doubt(page.warning)
        if page.next_page_token and page.next_page_token == token:
            raise ValueError(f"the list of what is in {project} does not end")
        token = page.next_page_token


def _doubt(warning: Any) -> str:
    """Return the warning of a possibly incomplete list; an empty list is no reason for one."""
    return f"{warning.code}: {warning.message}" if warning.code not in ("", "NO_RESULTS_ON_PAGE") else ""


def _wait_until_gone(
    connect: ClientOf, kind: _Kind, project: str, asked: list[LiveResource], poll_s: float
) -> list[str]:
    until = time.monotonic() + _DELETION_LIMIT_S
    left = asked
    while left:
        exist = map_concurrently(lambda resource: _exists(connect(kind.client), kind, project, resource), left)
        left = [resource for resource, exists in zip(left, exist, strict=True) if exists]
        if left and time.monotonic() >= until:
            names = ", ".join(resource.name for resource in left)
            return [f"{kind.type} not gone after {_DELETION_LIMIT_S:.0f} s: {names}"]
        if left:
            time.sleep(poll_s)
    return []


def _exists(client: Any, kind: _Kind, project: str, resource: LiveResource) -> bool:
    try:
        client.get(project=project, **_address(kind, resource))
    except Exception as error:
        # Any other error does not prove that the resource is deleted.
        return not is_gone(error)
    return True


def is_gone(error: Exception) -> bool:
    """Whether Google Cloud says that a resource does not exist."""
    return getattr(error, "code", None) == 404


def is_refusal(error: Exception) -> bool:
    """Whether Google Cloud rejects the caller, or there are no credentials: a retry would not help."""
    if type(error).__name__ in ("DefaultCredentialsError", "RefreshError"):
        return True
    return getattr(error, "code", None) in (401, 403) and not is_busy(error)


def is_busy(error: Exception) -> bool:
    """Whether Google Cloud is overloaded, or throttles the caller: a retry helps."""
    reasons = [detail.get("reason") for detail in getattr(error, "errors", ()) if isinstance(detail, dict)]
    return getattr(error, "code", None) in BUSY or "rateLimitExceeded" in reasons


def refusal(what: str, error: Exception) -> CredentialsError:
    """Return the error for a rejected caller, who may lack rights or a login."""
    return CredentialsError(f"Google Cloud refused to {what}: {error}; if your credentials have ended, {HOW}")


def google_client(name: str) -> Any:
    try:
        from google.api_core.client_options import ClientOptions
        from google.auth.credentials import AnonymousCredentials
        from google.cloud import compute_v1
    except ImportError as error:
        raise MissingPackageError("google.cloud.compute_v1", "gcp") from error
    endpoint = compute_endpoint()
    if endpoint is None:
        return getattr(compute_v1, name)()
    options: dict[str, Any] = {"client_options": ClientOptions(api_endpoint=endpoint)}
    if endpoint.startswith("http://"):
        # A token must never be sent unencrypted.
        anonymous: Any = AnonymousCredentials
        options["credentials"] = anonymous()
    return getattr(compute_v1, name)(**options)
