"""The key-value store through which the ranks of a world meet."""

from __future__ import annotations

import datetime
import errno
import ipaddress
import socket

import torch.distributed as dist

_BACKLOG = 2048


def open_store(address: str, port: int, *, rank: int, size: int, timeout: datetime.timedelta) -> dist.TCPStore:
    """Return the store of a world of `size` ranks. Rank 0 holds it and listens only at `address`.

    torch itself listens on every network of a machine, and its store requires no authentication.
    """
    held = {} if rank else {"master_listen_fd": _listener(address, port)}
    return dist.TCPStore(address, port, size, is_master=rank == 0, timeout=timeout, **held)


def _listener(address: str, port: int) -> int | None:
    """Return a listening socket for torch to close; None if it must listen on all addresses.

    That is the case if the machine does not have the address itself. It is also the case if the name means only the
    machine, as 127.0.1.1 does in Debian's hosts files: other nodes use another address.
    """
    family, _, _, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    if place[0] != address and ipaddress.ip_address(str(place[0])).is_loopback:
        return None
    try:
        return socket.create_server(place, family=family, backlog=_BACKLOG).detach()
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            return None
        raise
