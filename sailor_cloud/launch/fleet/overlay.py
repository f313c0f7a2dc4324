"""WireGuard between nodes of one run on several clouds, for traffic from one cloud to another alone.

Regions of a run never share private addresses, so each node sends what is for a private address of another cloud into
the tunnel, and ranks need not know. A node's private key is made there and never leaves it; the controller carries
public keys over SSH, whose host keys are pinned. The firewalls let the known peers alone reach the port.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from sailor_cloud.errors import LaunchError
from sailor_cloud.launch.fleet.agents import AgentLink
from sailor_cloud.launch.fleet.fleet import UnreachableError
from sailor_cloud.provision.access.nodes import ReachableNode

# As in the firewalls of terraform/modules.
PORT = 51820
_INSTALL_S, _HANDSHAKE_S = 300.0, 90.0

_KEY = """
set -eu
umask 077
if ! command -v wg >/dev/null; then
  apt() { sudo DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=240 "$@" >&2; }
  apt install wireguard-tools || { apt update && apt install wireguard-tools; }
fi
mkdir -p overlay
test -s overlay/key || wg genkey > overlay/key
wg pubkey < overlay/key
"""

# Takes the node's own private address, then public key, public address and private address of each peer. A kernel
# without the module may have wireguard-go. Packets are small enough for any way between clouds.
_PEERS = f"""
set -eu
own=$1; shift
if ! ip link show dev sailor0 >/dev/null 2>&1; then
  sudo ip link add dev sailor0 type wireguard 2>/dev/null || sudo wireguard-go sailor0 >&2
fi
sudo wg set sailor0 listen-port {PORT} private-key overlay/key
sudo ip link set dev sailor0 mtu 1420 up
known=
while [ $# -gt 0 ]; do
  sudo wg set sailor0 peer "$1" endpoint "$2:{PORT}" allowed-ips "$3/32" persistent-keepalive 25
  sudo ip route replace "$3/32" dev sailor0 src "$own"
  known="$known $1"; shift 3
done
for key in $(sudo wg show sailor0 peers); do
  case "$known " in *" $key "*) ;; *) sudo wg set sailor0 peer "$key" remove ;; esac
done
"""

# Prints the keys of peers that have not answered.
_ANSWERS = """
set -eu
left=30
while missing=$(sudo wg show sailor0 latest-handshakes | awk '$2 == 0 {print $1}'); [ -n "$missing" ]; do
  left=$((left - 1))
  [ "$left" -gt 0 ] || break
  sleep 1
done
echo "$missing"
"""


@dataclass(slots=True)
class Overlay:
    """The nodes of a run that were connected, and the public keys of those that have one."""

    _links: dict[str, AgentLink] = field(default_factory=dict)
    _keys: dict[str, str] = field(default_factory=dict)

    async def join(self, links: Sequence[AgentLink]) -> None:
        """Let nodes reach those on other clouds at their private addresses; with nodes on one cloud, do nothing.

        Raises LaunchError where nodes can't be joined, UnreachableError where a new one does not answer.
        """
        for link in links:
            self._links[link.node.id] = link
            self._keys.pop(link.node.id, None)
        if len({link.node.provider for link in self._links.values()}) < 2:
            return
        new = {link.node.id for link in links}
        await self._each([link for name, link in self._links.items() if name not in self._keys], self._make_key, new)
        await self._each(self._links.values(), self._tell_peers, new)
        await self._each(self._links.values(), self._await_peers, new)

    async def _each(
        self, links: Iterable[AgentLink], do: Callable[[AgentLink], Awaitable[None]], new: Collection[str]
    ) -> None:
        """Do something on all nodes at once; those of before that don't answer any more are forgotten."""
        links = list(links)
        done = await asyncio.gather(*(do(link) for link in links), return_exceptions=True)
        for link, failure in zip(links, done, strict=True):
            name = link.node.id
            if isinstance(failure, UnreachableError) and name not in new:
                del self._links[name]
                self._keys.pop(name, None)
            elif isinstance(failure, BaseException):
                raise failure

    async def _make_key(self, link: AgentLink) -> None:
        said = await link.connection.run(["sh", "-c", _KEY], timeout_s=_INSTALL_S)
        self._keys[link.node.id] = said.split()[-1]

    async def _tell_peers(self, link: AgentLink) -> None:
        told = [link.node.private_address]
        for peer in self._peers(link.node):
            told += [self._keys[peer.id], peer.address, peer.private_address]
        await link.connection.run(["sh", "-c", _PEERS, "peers", *told])

    async def _await_peers(self, link: AgentLink) -> None:
        silent = (await link.connection.run(["sh", "-c", _ANSWERS], timeout_s=_HANDSHAKE_S)).split()
        names = sorted(name for name, key in self._keys.items() if key in silent)
        if names:
            raise LaunchError(
                f"node {link.node.id} gets no answer through WireGuard from {', '.join(names)}; is UDP port {PORT} "
                "closed on the way?"
            )

    def _peers(self, node: ReachableNode) -> list[ReachableNode]:
        others = (self._links[name].node for name in sorted(self._links))
        return [other for other in others if other.provider != node.provider]
