"""Plans applied to the cloud in memory: Terraform's core is real, the providers are stand-ins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from factories.local_runs import LocalRun, local_run, terraform_of_kind
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.provision.access.nodes import ensure_ssh_key
from sailor_cloud.provision.rendering.preview import PlannedRoot, preview
from sailor_cloud.provision.rendering.root import environment, write_cli_config, write_root
from sailor_cloud.provision.terraform.driver import TerraformDriver
from sailor_cloud.provision.terraform.progress import Interrupt
from sailor_cloud.testing.terraform.cloud import FakeCloud
from sailor_cloud.testing.terraform.provider import serve

EXPIRES_AT = datetime(2026, 11, 21, 6, 0, 30, tzinfo=UTC)
CALLER = "203.0.113.7/32"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stacks:
    """A run's roots in the order in which they are applied, each with its driver and, once applied, its outputs."""

    run: LocalRun
    cloud: FakeCloud
    attached: dict[str, str]
    roots: tuple[PlannedRoot, ...]
    drivers: tuple[TerraformDriver, ...]
    outputs: list[dict[str, Any]] = field(default_factory=list)

    @property
    def nodes(self) -> dict[str, Any]:
        return {name: node for outputs in self.outputs for name, node in outputs.get("nodes", {}).items()}

    def apply(self) -> None:
        for driver in self.drivers:
            driver.plan()
            driver.apply()
            self.outputs.append(driver.output())

    def destroy(self) -> None:
        for driver in reversed(self.drivers):
            driver.destroy()

    def one(self, kind: str) -> dict[str, Any]:
        """Return the only resource of a type."""
        (found,) = self.cloud.of_type(kind).values()
        return found

    def one_named(self, kind: str, name: str) -> dict[str, Any]:
        """Return the only resource of a type with a name."""
        (found,) = (state for state in self.cloud.of_type(kind).values() if state["name"] == name)
        return found

    def instances(self, kind: str) -> dict[str, dict[str, Any]]:
        """Return instances by node id."""
        labels = "labels" if kind.startswith("google") else "tags"
        return {state[labels]["sailor-cloud-node"]: state for state in self.cloud.of_type(kind).values()}


def drivers_of(
    run: LocalRun,
    roots: tuple[PlannedRoot, ...],
    attached: dict[str, str],
    *,
    kind: str = "path",
    changes: dict[str, Any] | None = None,
    before_init: Callable[[Path], None] = lambda root: None,
) -> tuple[TerraformDriver, ...]:
    """Write roots and return their drivers, initialised. `changes` replace variables of the roots that have them."""
    write_cli_config(run.folder)
    logs = run.folder.logs_dir / "terraform"
    logs.mkdir(exist_ok=True)
    made = []
    for root in roots:
        own = {name: value for name, value in (changes or {}).items() if name in root.variables}
        written = write_root(
            run.folder, root.provider, root.region, {**root.variables, **own}, stack=root.stack, backend=root.backend
        )
        driver = TerraformDriver(
            written.path,
            binary=terraform_of_kind(kind),
            environment={**environment(run.folder), **attached},
            log_dir=logs,
            interrupt=Interrupt(),
        )
        before_init(written.path)
        driver.init()
        made.append(driver)
    return tuple(made)


def previewed(run: LocalRun, document: PlanDocument, *, ssh_from: str | None = CALLER) -> tuple[PlannedRoot, ...]:
    key = ensure_ssh_key(run.folder)
    return preview(document, run.folder, public_key=key, expires_at=EXPIRES_AT, ssh_from=ssh_from)


@contextmanager
def stacks(
    folder: Path, document: PlanDocument, *, kind: str = "path", ssh_from: str | None = CALLER
) -> Iterator[Stacks]:
    """The roots of a plan, initialised and not yet applied."""
    cloud = FakeCloud()
    with local_run(folder) as run, serve(cloud) as attached:
        roots = previewed(run, document, ssh_from=ssh_from)
        drivers = drivers_of(run, roots, attached, kind=kind)
        yield Stacks(run=run, cloud=cloud, attached=attached, roots=roots, drivers=drivers)
