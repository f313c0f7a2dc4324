"""The specification of a local node, and the information that it publishes once it runs."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from sailor_cloud.provision.access.login import UNPRIVILEGED_PORT

PORT = UNPRIVILEGED_PORT
USER = "sailor"
SPEC_VARIABLE = "SAILOR_CLOUD_VM"
NODE_FILE = "node.json"
MOST_NODES = 250
ADDRESS_ATTEMPTS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class VmSpec:
    """The requested node: `folder` is its disk, `expires_at` the time at which it shuts itself down."""

    run_id: str
    node: str
    index: int
    folder: str
    log: str
    public_key: str
    expires_at: str

    @classmethod
    def from_environment(cls) -> VmSpec:
        return cls.from_json(os.environ[SPEC_VARIABLE])

    @classmethod
    def from_json(cls, text: str) -> VmSpec:
        """Return the specification in a JSON text. Raises ValueError or TypeError."""
        return cls(**json.loads(text))

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @property
    def path(self) -> Path:
        return Path(self.folder)

    @property
    def node_file(self) -> Path:
        return self.path / NODE_FILE

    @property
    def expiry(self) -> datetime:
        return datetime.fromisoformat(self.expires_at)

    def address(self, attempt: int) -> str:
        """Return the loopback address of the node; further attempts give others, if one is taken."""
        digest = hashlib.sha256(f"{self.run_id}/{attempt}".encode()).digest()
        return f"127.{1 + digest[0] % 254}.{digest[1]}.{1 + self.index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class VmInfo:
    """Information that a running node publishes in its folder; `pid` supervises everything on the node."""

    run_id: str
    node: str
    address: str
    port: int
    user: str
    host_public_key: str
    pid: int
    started_at: str
    expires_at: str

    @classmethod
    def read(cls, folder: Path) -> VmInfo | None:
        """Return the information that the node in this folder published; None if there is none."""
        try:
            return cls(**json.loads((folder / NODE_FILE).read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"
