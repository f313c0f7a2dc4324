"""WireGuard between the nodes of a run on several clouds, only for traffic between clouds.

Regions of a run never share private addresses. Each node therefore routes the private addresses of other clouds into
the tunnel, and ranks need no configuration. Each node makes its own private key, which never leaves it. The controller
exchanges public keys over SSH with pinned host keys. The firewalls open the port only for known peers. Rules on each
node restrict traffic from the tunnel to the ports of training.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from sailor_cloud.errors import LaunchError
from sailor_cloud.launch.fleet.agents import FIRST_PORT, LAST_PORT, AgentLink
from sailor_cloud.launch.fleet.fleet import UnreachableError
from sailor_cloud.provision.access.nodes import ReachableNode

# As in the firewalls of terraform/modules.
PORT = 51820
_COLLECTIVES = "32768-60999"
_INSTALL_S, _HANDSHAKE_S = 1200.0, 90.0

# A fresh machine's own updates hold dpkg's lock and that of the package lists for minutes. Apt waits only for the first
# lock.
_KEY = """
set -eu
umask 077
if ! command -v wg >/dev/null || ! sudo nft --version >/dev/null 2>&1; then
  apt() { sudo DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=600 "$@" >&2; }
  tries=0
  until apt install wireguard-tools nftables || { apt update && apt install wireguard-tools nftables; }; do
    tries=$((tries + 1))
    [ $tries -lt 30 ] || exit 1
    sleep 10
  done
fi
mkdir -p overlay
test -s overlay/key || wg genkey > overlay/key
wg pubkey < overlay/key
"""

# Arguments: the node's own private address, then public key, public address and private address of each peer. A kernel
# without the module can use wireguard-go. The MTU fits every path between clouds. Routes to deleted nodes are removed,
# because a later network may reuse their addresses. A cloud's firewall can't see ports inside the tunnel, so the node
# applies the rules that the firewall has for its own cloud.
_PEERS = f"""
set -eu
own=$1; shift
sudo nft -f - <<'RULES'
table inet sailor0
delete table inet sailor0
table inet sailor0 {{
  chain input {{
    type filter hook input priority 0;
    iifname "sailor0" ct state established,related accept
    iifname "sailor0" tcp dport {{ {FIRST_PORT}-{LAST_PORT}, {_COLLECTIVES} }} accept
    iifname "sailor0" icmp type echo-request accept
    iifname "sailor0" reject
  }}
  chain forward {{
    type filter hook forward priority 0;
    iifname "sailor0" reject
  }}
}}
RULES
if ! ip link show dev sailor0 >/dev/null 2>&1; then
  sudo ip link add dev sailor0 type wireguard || sudo wireguard-go sailor0 >&2
fi
sudo wg set sailor0 listen-port {PORT} private-key overlay/key
sudo ip link set dev sailor0 mtu 1420 up
known= routes=
while [ $# -gt 0 ]; do
  sudo wg set sailor0 peer "$1" endpoint "$2:{PORT}" allowed-ips "$3/32" persistent-keepalive 25
  sudo ip route replace "$3/32" dev sailor0 src "$own"
  known="$known $1" routes="$routes $3"; shift 3
done
there=$(sudo wg show sailor0 peers)
for key in $there; do
  case "$known " in *" $key "*) ;; *) sudo wg set sailor0 peer "$key" remove ;; esac
done
there=$(ip route show dev sailor0 | cut -d " " -f 1)
for address in $there; do
  case "$routes " in *" $address "*) ;; *) sudo ip route del "$address" dev sailor0 ;; esac
done
"""

# Prints the keys of peers that have not answered.
_ANSWERS = """
set -eu
left=30
while :; do
  handshakes=$(sudo wg show sailor0 latest-handshakes)
  missing=$(echo "$handshakes" | awk 'NF && $2 == 0 {print $1}')
  left=$((left - 1))
  [ -n "$missing" ] && [ "$left" -gt 0 ] || break
  sleep 1
done
echo "$missing"
"""


@dataclass(slots=True)
class Overlay:
    """The connected nodes of a run, and the public keys of those that have one."""

    _links: dict[str, AgentLink] = field(default_factory=dict)
    _keys: dict[str, str] = field(default_factory=dict)

    async def join(self, links: Sequence[AgentLink]) -> None:
        """Connect nodes to those on other clouds at their private addresses; with nodes on one cloud, do nothing.

        Raises LaunchError if nodes can't be joined, UnreachableError if a new one does not answer.
        """
        # The address of a dropped node may belong to a stranger by now.
        self._links = {name: link for name, link in self._links.items() if not link.closed}
        self._links.update((link.node.id, link) for link in links)
        new = {link.node.id for link in links}
        self._keys = {name: key for name, key in self._keys.items() if name in self._links and name not in new}
        if len({link.node.provider for link in self._links.values()}) < 2:
            return
        await self._each([link for name, link in self._links.items() if name not in self._keys], self._make_key, new)
        await self._each(self._links.values(), self._configure_peers, new)
        silent: dict[str, list[str]] = {}

        async def await_peers(link: AgentLink) -> None:
            silent[link.node.id] = await self._silent_peers(link)

        await self._each(self._links.values(), await_peers, new)
        for name, peers in sorted(silent.items()):
            if there := [peer for peer in peers if peer in self._links]:
                raise LaunchError(
                    f"node {name} gets no answer through WireGuard from {', '.join(there)}; is UDP port {PORT} closed "
                    "on the way?"
                )

    async def _each(
        self, links: Iterable[AgentLink], do: Callable[[AgentLink], Awaitable[None]], new: Collection[str]
    ) -> None:
        """Run something on all nodes in parallel; forget earlier nodes that no longer answer.

        An UnreachableError of a new node is raised before errors of other nodes, which its end may have caused.
        """
        links = list(links)
        done = await asyncio.gather(*(do(link) for link in links), return_exceptions=True)
        failures = []
        for link, failure in zip(links, done, strict=True):
            name = link.node.id
            if isinstance(failure, UnreachableError) and name not in new:
                del self._links[name]
                self._keys.pop(name, None)
            elif isinstance(failure, BaseException):
                failures.append(failure)
        if failures:
            raise min(failures, key=lambda failure: not isinstance(failure, UnreachableError))

    async def _make_key(self, link: AgentLink) -> None:
        output = await link.connection.run(["sh", "-c", _KEY], timeout_s=_INSTALL_S)
        self._keys[link.node.id] = output.split()[-1]

    async def _configure_peers(self, link: AgentLink) -> None:
        arguments = [link.node.private_address]
        for peer in self._peers(link.node):
            arguments += [self._keys[peer.id], peer.address, peer.private_address]
        await link.connection.run(["sh", "-c", _PEERS, "peers", *arguments])

    async def _silent_peers(self, link: AgentLink) -> list[str]:
        silent = (await link.connection.run(["sh", "-c", _ANSWERS], timeout_s=_HANDSHAKE_S)).split()
        return sorted(name for name, key in self._keys.items() if key in silent)

    def _peers(self, node: ReachableNode) -> list[ReachableNode]:
        others = (self._links[name].node for name in sorted(self._links))
        return [other for other in others if other.provider != node.provider]
