"""What a look for the resources of runs finds, without asking Terraform, and where it looks."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

# The region of what belongs to an account as a whole.
WHOLE_ACCOUNT = "global"
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
    `owner` and `expires` are what its tags say of the run. `network` is what it stands in on AWS; `ending`: it still
    exists, and nothing can be done with it any more.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudSweep:
    """What was found, and where could not be looked: with problems, an empty result proves nothing."""

    found: tuple[LiveResource, ...]
    problems: tuple[str, ...]


Look = Callable[[], CloudSweep]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Scope:
    """Something of a provider's that can be looked through, such as a region; `kind` is the provider's word for it."""

    provider: str
    kind: str
    name: str


# Where a run has, or may have, something.
Scopes = frozenset[Scope]


def of_provider(scopes: Scopes, provider: str) -> Scopes:
    return Scopes(scope for scope in scopes if scope.provider == provider)


def named(scopes: Scopes, kind: str) -> list[str]:
    """Return the names of the scopes of one kind."""
    return sorted(scope.name for scope in scopes if scope.kind == kind)


def labels_in(description: str) -> dict[str, str]:
    """Return the labels of what can have none, which a run writes into its description as NAME=VALUE."""
    return dict(_PAIR.findall(description))
