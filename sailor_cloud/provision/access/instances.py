"""The instances of a run as their cloud reports them, with addresses and published host keys."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sailor_cloud.errors import CredentialsError, ProvisionError
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision import providers
from sailor_cloud.provision.live_resources import Scopes, of_provider

_KEY = re.compile(r"[A-Za-z0-9+/]+={0,2}")
# Key types in a client's order of preference.
_KEY_KINDS = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ssh-rsa")


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A VM that the cloud lists for a node. `id` is never reused; `machine` is the cloud's name for it.

    `efa`: a network interface of it is an Elastic Fabric Adapter of AWS.
    """

    node: str
    id: str
    machine: str
    provider: Provider
    region: str
    zone: str
    project: str
    address: str
    private_address: str
    running: bool
    efa: bool = False


def instances(scopes: Scopes, run_id: str) -> tuple[Instance, ...]:
    """Return the instances of a run.

    Raises CredentialsError if a cloud rejects the caller, ProvisionError if it can't be asked.
    """
    found: list[Instance] = []
    for provider, machine_provider in providers.all_providers():
        try:
            found += machine_provider.instances(of_provider(scopes, provider), run_id)
        except ProvisionError:
            raise
        except Exception as error:
            kind = CredentialsError if machine_provider.is_refusal(error) else ProvisionError
            raise kind(f"can't ask which nodes of run {run_id} exist: {error}") from error
    return tuple(sorted(found, key=lambda instance: (instance.node, instance.id)))


def published_host_key(instance: Instance) -> str | None:
    """Return the host key that an instance published at its first boot; None if there is none yet.

    No third party between here and the instance can forge it.
    """
    try:
        keys = providers.of(instance.provider).host_keys(instance)
    except Exception as error:
        raise ProvisionError(f"can't ask for the host key of node {instance.node}: {error}") from error
    # The node itself wrote this text: more than one word could add lines to the files that keep keys.
    fit = (kind for kind in _KEY_KINDS if _KEY.fullmatch(keys.get(kind, "")))
    return next((f"{kind} {keys[kind]}" for kind in fit), None)
