"""The results of a search for the resources of runs without Terraform, and where it searches."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

# The region of resources that belong to the whole account, and the scope kind of an account.
WHOLE_ACCOUNT = "global"
ACCOUNT = "account"
# The detail of a bucket that is not empty.
HOLDS_OBJECTS = "holds objects"
# The leftovers of a node on this machine that no longer runs.
FOLDER = "folder"
RUN_LABEL = "sailor-cloud-run"
# Who confirms a deletion in journal and receipt.
BY_TAG = "sweep by tag"
OWNER_LABEL = "sailor-cloud-owner"
EXPIRES_LABEL = "sailor-cloud-expires"
EXPIRES_FORM = "%Y-%m-%dt%H-%M-%Sz"
NODE_LABEL = "sailor-cloud-node"
_PAIR = re.compile(r"([\w-]+)=(\S*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveResource:
    """An existing resource of a run. `node` is empty if it belongs to no single node.

    `project` is Google Cloud's; `title` is the resource's title if the cloud chose its name. `owner` and `expires` come
    from the run's tags. `network` is the network that contains it on AWS. `ending`: it still exists, but is unusable.
    `ends`: when it will end by itself, if the cloud says so. `silent`: why it is unknown whether it still runs, such as
    a machine that does not answer; then it can't be ended either.
    """

    provider: str
    region: str
    type: str
    name: str
    run_id: str
    zone: str = ""
    node: str = ""
    detail: str = ""
    project: str = ""
    title: str = ""
    owner: str = ""
    expires: str = ""
    network: str = ""
    ending: bool = False
    ends: str = ""
    silent: str = ""

    @property
    def unconfirmed_text(self) -> str:
        """A sentence about a resource that may still run."""
        what = f"{self.type} {self.name}{f' of node {self.node}' if self.node else ''}"
        return f"not confirmed as gone: {what}: {self.silent}"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Scope:
    """A searchable unit of a provider, such as a region; `kind` is the provider's word for it."""

    provider: str
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.provider} {self.kind} {self.name}".rstrip()


# Scopes in which a run has, or may have, resources.
Scopes = frozenset[Scope]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The result of one search. `failed` contains the kinds that could not be listed, each with the reason."""

    found: tuple[LiveResource, ...]
    failed: tuple[tuple[str, str], ...] = ()

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(why for _, why in self.failed)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceSearch:
    """A search for some kinds of resources in some places; `ask` may raise ProvisionError if it sees nothing."""

    scopes: tuple[Scope, ...]
    kinds: tuple[str, ...]
    run: Callable[[], Listing]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedPlace:
    """A place that was searched for one kind; `problem` says why there is no answer."""

    scope: Scope
    kind: str
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudSweep:
    """Found resources, and the searches: a resource is deleted only if a search answered without finding it.

    `kept` was found and is kept on purpose; `unconfirmed` may still run, which is unknown.
    """

    found: tuple[LiveResource, ...]
    searched: tuple[SearchedPlace, ...] = ()
    kept: tuple[LiveResource, ...] = ()
    unconfirmed: tuple[LiveResource, ...] = ()

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(asked.problem for asked in self.searched if asked.problem))

    def answered(self, scope: Scope, kind: str) -> bool:
        """Whether a place answered every search for one kind."""
        problems = [asked.problem for asked in self.searched if (asked.scope, asked.kind) == (scope, kind)]
        return bool(problems) and not any(problems)


def of_provider(scopes: Scopes, provider: str) -> Scopes:
    return Scopes(scope for scope in scopes if scope.provider == provider)


def scope_names(scopes: Scopes, kind: str) -> list[str]:
    """Return the names of the scopes of one kind."""
    return sorted(scope.name for scope in scopes if scope.kind == kind)


def labels_in(description: str) -> dict[str, str]:
    """Return the labels in a description, as NAME=VALUE: a run writes them there if a type has no labels."""
    return dict(_PAIR.findall(description))
