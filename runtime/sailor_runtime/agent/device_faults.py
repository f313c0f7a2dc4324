"""Signs that a GPU or its links are broken, so that another attempt on the same node would fail, too."""

from __future__ import annotations

import os
import re
from pathlib import Path

KERNEL_LOG = Path("/dev/kmsg")
# Messages of CUDA and NVML about hardware. Errors that a program can cause, too, are not among them.
_MESSAGES = (
    "uncorrectable ECC error encountered",
    "uncorrectable NVLink error detected",
    "GPU is lost",
)
# Memory (48, 64, 95, 140), controllers (62, 119, 120), NVLink (74), bus (79): "XID Errors", NVIDIA, 2026-11.
_BROKEN = frozenset({48, 62, 64, 74, 79, 95, 119, 120, 140})
_XID = re.compile(r"NVRM: Xid \(PCI:[0-9A-Fa-f:.]+\): (\d+)[^\n]*")
_READ_BYTES = 65_536


def fault_in(text: str) -> str | None:
    """Return the line of a log that shows a fault of a device, None without one."""
    xids = (found[0] for found in _XID.finditer(text) if int(found[1]) in _BROKEN)
    lines = (line.strip() for line in text.splitlines() if any(message in line for message in _MESSAGES))
    return next(xids, None) or next(lines, None)


def kernel_log(since_s: float, path: Path = KERNEL_LOG) -> str:
    """Return the kernel's messages since a time in seconds after boot; empty where the agent may not read them."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return ""
    found = b""
    try:
        while data := os.read(file, _READ_BYTES):
            found += data
    except OSError:
        # Nothing more, or older messages were overwritten meanwhile.
        pass
    finally:
        os.close(file)
    return "\n".join(_since(found.decode(errors="replace"), since_s))


def _since(records: str, since_s: float) -> list[str]:
    """Return the texts of records `priority,number,microseconds,flags;text` from a time on."""
    texts = []
    for record in records.splitlines():
        head, _, text = record.partition(";")
        fields = head.split(",")
        if len(fields) > 2 and fields[2].isdigit() and int(fields[2]) / 1e6 >= since_s:
            texts.append(text)
    return texts
