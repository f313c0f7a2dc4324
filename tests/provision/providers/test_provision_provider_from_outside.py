"""A provider that a package outside brings is bought from, swept and torn down like those that are built in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path

import pytest

from factories.cloud_runs import CLOCK, SSH_FROM, waited
from factories.local_runs import LocalRun, expiry, local_run
from factories.planning import AS_OF
from sailor_cloud import plan
from sailor_cloud.clock import FixedClock
from sailor_cloud.errors import StockoutError
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job_file import parse_job
from sailor_cloud.model.provider import registered
from sailor_cloud.provision.cleanup.reap import find_leftovers, remove_foreign
from sailor_cloud.provision.cleanup.teardown import TeardownResult, destroy
from sailor_cloud.provision.dry_run import terraform_plans
from sailor_cloud.provision.outcomes import Applied, Outcome, Stockout, applied_or_raise
from sailor_cloud.provision.provisioner import apply
from sailor_cloud.provision.rendering.preview import preview
from sailor_cloud.provision.rendering.root import roots
from sailor_cloud.provision.scopes import scopes_named
from sailor_cloud.run.journal import Event, Journal
from sailor_cloud.run.ledger import Ledger

JOB = """
name: toy
model: {preset: sailor-opt-350}
training: {global_batch_size: 256, sequence_length: 2048, steps: 200, precision: fp32}
constraints: {budget_usd: 500}
resources:
  - {provider: toy, zones: [toyland-1, toyland-2], markets: [on-demand], accelerators: {V100-16: 8}}
cloud: {owner: me@example.org}
checkpoint: {to: /data/checkpoints}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToyRun:
    run: LocalRun
    document: PlanDocument
    cloud: Path

    @property
    def names(self) -> set[str]:
        assert self.document.plan is not None
        return {node.id for node in self.document.plan.nodes}

    def machines(self) -> set[str]:
        """The nodes that the toy cloud has."""
        return {json.loads(file.read_text())["node"] for file in self.cloud.glob("*.json")}

    def apply(self) -> Outcome:
        settings = {"clock": CLOCK, "expires_at": expiry(), "ssh_from": SSH_FROM, "pause": waited()}
        return apply(self.run.folder, self.document, **settings)  # type: ignore[arg-type]

    def destroy(self) -> TeardownResult:
        return destroy(self.run.folder, clock=CLOCK, pause=waited())


@cache
def planned() -> PlanDocument:
    """Plan while the provider is registered; the plan is a value and needs no registration."""
    return plan(parse_job(JOB), clock=FixedClock(AS_OF))


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ToyRun]:
    cloud = tmp_path / "cloud"
    cloud.mkdir()
    monkeypatch.setenv("TOY_CLOUD", str(cloud))
    with registered("toy", "toy_provider"), local_run(tmp_path / "runs") as run:
        document = planned()
        run.folder.write_document(document)
        Journal.of(run.folder, CLOCK).append(Event.RUN_CREATED, job="toy")
        yield ToyRun(run=run, document=document, cloud=cloud)


def test_a_dry_run_shows_its_stack_with_its_prices_and_buys_nothing(toy: ToyRun) -> None:
    key, limit = "ssh-ed25519 AAAA", expiry()
    (root,) = preview(toy.document, toy.run.folder, public_key=key, expires_at=limit, ssh_from=SSH_FROM)
    assert (root.provider, root.stack, root.region) == ("toy", "toy", "toyland")
    parts = {part: usd for resource in root.resources for part, usd in resource.parts}
    assert parts["machine"] in (4.0, 4.5)
    assert parts["address"] == 0.004
    (told,) = terraform_plans(toy.document, toy.run.run_id, expires_at=limit, ssh_from=SSH_FROM)
    assert f"Plan: {len(toy.names)} to add, 0 to change, 0 to destroy." in told
    assert toy.machines() == set()


def test_its_nodes_are_bought_charged_for_and_removed_with_proof(toy: ToyRun) -> None:
    bought = applied_or_raise(toy.apply())
    assert {node.id for node in bought.nodes} == toy.machines() == toy.names
    charged = {line.price_source for line in Ledger.of(toy.run.folder, CLOCK).lines(CLOCK.now())}
    assert charged == {"toy-prices"}
    assert isinstance(toy.apply(), Applied), "repeated, it finds everything there"
    destroyed = toy.destroy()
    assert destroyed.clean, (destroyed.remaining, destroyed.problems)
    nodes = {row.name: (row.provider, row.region, row.confirmed_by) for row in destroyed.resources}
    assert nodes == dict.fromkeys(toy.names, ("toy", "toyland", "sweep by tag"))
    assert toy.machines() == set()


def test_resources_that_terraform_forgot_are_found_by_tag_and_removed(toy: ToyRun) -> None:
    applied_or_raise(toy.apply())
    for root in roots(toy.run.folder):
        root.state_file.unlink()
    assert toy.destroy().clean
    assert toy.machines() == set()


def test_what_a_run_of_another_machine_left_is_reaped_once_it_has_expired(toy: ToyRun) -> None:
    applied_or_raise(toy.apply())
    where = scopes_named("region", ["toyland"])
    assert find_leftovers([], clock=CLOCK, scopes=where).reapable == ()
    later = FixedClock(CLOCK.now() + timedelta(days=1))
    (leftover,) = find_leftovers([], clock=later, scopes=where).reapable
    assert (leftover.run_id, leftover.owner) == (toy.run.run_id, "me@example.org")
    assert remove_foreign(leftover, pause=waited()) == ()
    assert toy.machines() == set()


def test_its_own_words_for_missing_capacity_are_understood(toy: ToyRun) -> None:
    (toy.cloud / "sold-out").touch()
    outcome = toy.apply()
    assert isinstance(outcome, Stockout)
    with pytest.raises(StockoutError, match=r"no 2 x toy-4 \(on-demand\) in toyland-.*: .*toy has no capacity now"):
        applied_or_raise(outcome)
