"""What a look for the resources of runs finds, without asking Terraform, and where it looks."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

# The region of what belongs to an account as a whole, and the kind of place that an account is.
WHOLE_ACCOUNT = "global"
ACCOUNT = "account"
# The detail of a bucket that is not empty.
HOLDS_OBJECTS = "holds objects"
# What is left of a node on this machine that does not run any more.
FOLDER = "folder"
RUN_LABEL = "sailor-cloud-run"
# Who confirms in journal and receipt that something is gone.
BY_TAG = "sweep by tag"
OWNER_LABEL = "sailor-cloud-owner"
EXPIRES_LABEL = "sailor-cloud-expires"
EXPIRES_FORM = "%Y-%m-%dt%H-%M-%Sz"
NODE_LABEL = "sailor-cloud-node"
_PAIR = re.compile(r"([\w-]+)=(\S*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveResource:
    """Something of a run that exists. `node` is empty where it belongs to no single node.

    `project` is Google Cloud's; `title` is what the resource is called where its name is the cloud's own choice.
    `owner` and `expires` are what its tags say of the run. `network` is what contains it on AWS; `ending`: it still
    exists, and nothing can be done with it any more. `ends`: when it will end by itself, where the cloud says that.
    `silent`: why it is unknown whether it still runs, such as a machine that does not answer; nobody can end it either.
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
    def doubt(self) -> str:
        """What is said of something that may still run."""
        what = f"{self.type} {self.name}{f' of node {self.node}' if self.node else ''}"
        return f"not confirmed as gone: {what}: {self.silent}"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Scope:
    """Something of a provider's that can be looked through, such as a region; `kind` is the provider's word for it."""

    provider: str
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.provider} {self.kind} {self.name}".rstrip()


# Where a run has, or may have, something.
Scopes = frozenset[Scope]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What one look found. `failed` holds the kinds of resources that could not be listed, each with the reason."""

    found: tuple[LiveResource, ...]
    failed: tuple[tuple[str, str], ...] = ()

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(why for _, why in self.failed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A look for some kinds of resources in some places; `ask` may raise ProvisionError where nothing can be seen."""

    scopes: tuple[Scope, ...]
    kinds: tuple[str, ...]
    ask: Callable[[], Listing]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Whether a place has resources of one kind was asked; `problem` says why there is no answer."""

    scope: Scope
    kind: str
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudSweep:
    """What was found, and what was asked: only what was asked and answered, and not found, is gone.

    `stays` was found, too, and is left on purpose; `silent` may still run, and nobody can tell.
    """

    found: tuple[LiveResource, ...]
    asked: tuple[Asked, ...] = ()
    stays: tuple[LiveResource, ...] = ()
    silent: tuple[LiveResource, ...] = ()

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(asked.problem for asked in self.asked if asked.problem))

    def answered(self, scope: Scope, kind: str) -> bool:
        """Tell whether a place was asked for one kind and has answered, each time."""
        told = [asked.problem for asked in self.asked if (asked.scope, asked.kind) == (scope, kind)]
        return bool(told) and not any(told)


def of_provider(scopes: Scopes, provider: str) -> Scopes:
    return Scopes(scope for scope in scopes if scope.provider == provider)


def named(scopes: Scopes, kind: str) -> list[str]:
    """Return the names of the scopes of one kind."""
    return sorted(scope.name for scope in scopes if scope.kind == kind)


def labels_in(description: str) -> dict[str, str]:
    """Return the labels of what can have none, which a run writes into its description as NAME=VALUE."""
    return dict(_PAIR.findall(description))
