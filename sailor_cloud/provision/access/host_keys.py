"""The host keys of a run's nodes: fetched once from the cloud, kept in the run's folder, and pinned from then on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from sailor_cloud.errors import ProvisionError
from sailor_cloud.provision.access.instances import Instance, published_host_key
from sailor_cloud.provision.access.login import login
from sailor_cloud.provision.access.tunnel import tunnel_to
from sailor_cloud.provision.terraform.pace import map_concurrently
from sailor_cloud.run.appended import append_line
from sailor_cloud.run.folder import RunFolder

FILE = "host_keys"
# A booted instance publishes its key within a minute or two; consoles of older instance types lag by minutes.
LIMIT_S = 420.0
_RETRY_S = 2.0
_POLL_S = 5.0
_ALGORITHMS = ["ssh-ed25519", "ecdsa-sha2-nistp256", "rsa-sha2-512"]


def known_host_keys(folder: RunFolder) -> dict[str, str]:
    """Return host keys by the instance's cloud id."""
    path = _path(folder)
    if not path.is_file():
        return {}
    lines = (line.partition(" ") for line in path.read_text(errors="replace").splitlines())
    return {name: key for name, _, key in lines if key}


def learn_host_keys(
    folder: RunFolder,
    found: Iterable[Instance],
    *,
    pause: Callable[[float], None] = time.sleep,
    limit_s: float = 0.0,
) -> tuple[Instance, ...]:
    """Ask the cloud repeatedly for unknown keys, until the limit; return the instances that published none."""
    waited = 0.0
    while True:
        known = known_host_keys(folder)
        unknown = [instance for instance in found if instance.id not in known]
        published = list(zip(unknown, map_concurrently(published_host_key, unknown), strict=True))
        silent = [instance for instance, key in published if key is None]
        for instance, key in published:
            if key is not None:
                append_line(_path(folder), f"{instance.id} {key}")
        if not silent or waited >= limit_s:
            return tuple(silent)
        pause(_POLL_S)
        waited += _POLL_S


def first_contact(folder: RunFolder, instance: Instance, *, private: bool = False, limit_s: float = 120.0) -> str:
    """Pin, and return, the key that a node shows at the first contact, because its cloud published none.

    Unlike a published key, it could come from an attacker in between at that moment. `private`: the node has no public
    address. Raises ProvisionError if the node does not answer.
    """
    import asyncssh

    access = login(instance.machine)
    tunnel = tunnel_to(folder, instance, port=access.port) if private else None

    async def ask() -> str:
        until = time.monotonic() + limit_s
        while True:
            opened = tunnel.open() if tunnel is not None else None
            try:
                key = await asyncssh.get_server_host_key(
                    instance.address,
                    access.port,
                    sock=opened.socket if opened is not None else None,
                    server_host_key_algs=_ALGORITHMS,
                    config=None,
                )
                assert key is not None, "a server shows a key of a kind that it was asked for"
                return str(key.export_public_key().decode()).strip()
            except (OSError, asyncssh.Error) as error:
                if time.monotonic() > until:
                    raise ProvisionError(
                        f"node {instance.node} at {instance.address} has published no host key and does not "
                        f"answer on port {access.port}: {error}"
                    ) from error
                await asyncio.sleep(_RETRY_S)
            finally:
                if opened is not None:
                    opened.close()

    key = asyncio.run(ask())
    append_line(_path(folder), f"{instance.id} {key}")
    return key


def _path(folder: RunFolder) -> Path:
    return folder.path / FILE
