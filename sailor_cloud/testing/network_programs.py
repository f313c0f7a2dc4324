"""Stand-ins for `wg`, `ip` and `nft` on a fake cloud's machine, which must not change the network of this one.

They write their arguments to `overlay/log`, a line each, and rules to `overlay/rules`. Every peer counts as reached.
`sudo` runs them unchanged.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

LOG = "overlay/log"
_PROGRAMS = {
    "nft": """
case "$1" in -f) cat > overlay/rules ;; esac
""",
    "wg": f"""
case "$1" in
  genkey) head -c 32 /dev/urandom | base64 ;;
  pubkey) sha256sum | head -c 32 | base64 ;;
  show) for key in $(sed -n 's/^wg set .* peer \\([^ ]*\\) endpoint.*/\\1/p' {LOG} | sort -u); do
      grep -q "peer $key remove" {LOG} && continue
      [ "$3" = latest-handshakes ] && echo "$key 1" || echo "$key"
    done ;;
  *) echo "wg $*" >> {LOG} ;;
esac
""",
    "ip": f"""
case "$1 $2" in
  "link show") grep -q '^ip link add' {LOG} 2>/dev/null ;;
  "route show") for to in $(sed -n 's/^ip route replace \\([^ /]*\\).*/\\1/p' {LOG} | sort -u); do
      grep -q "route del $to " {LOG} || echo "$to scope link"
    done ;;
  *) echo "ip $*" >> {LOG} ;;
esac
""",
}


def write_network_programs(folder: Path) -> None:
    """Write the programs into a folder at the front of a machine's PATH."""
    elsewhere = shlex.quote(os.environ.get("PATH", os.defpath))
    sudo = f'\ncase "$1" in {"|".join(_PROGRAMS)}) exec "$@";; esac\nPATH={elsewhere} exec sudo "$@"\n'
    for name, text in {**_PROGRAMS, "sudo": sudo}.items():
        (folder / name).write_text(f"#!/bin/sh{text}")
        (folder / name).chmod(0o700)
