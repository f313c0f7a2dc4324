"""What is copied out of a run's own bucket, and when the bucket is kept instead."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from factories.cloud_plans import AWS_OFFERS, GCP_OFFERS, cloud_document
from factories.quick_runs import CLOCK
from sailor_cloud.launch.results import Fetch
from sailor_cloud.launch.spend.prices import UsagePrices
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision.cleanup.leftovers import kept_bucket
from sailor_cloud.run.folder import RunFolder, resource_name
from sailor_cloud.run.journal import Event, Journal, read
from sailor_cloud.run.ledger import Ledger
from sailor_cloud.testing.mock_cloud import in_environment
from sailor_cloud.testing.object_store import ObjectStore, serve_objects, store_environment
from sailor_runtime.manifest import FileSum, encode

SCHEMES = {Provider("gcp"): "gs", Provider("aws"): "s3"}
WEIGHTS = b"weights" * 1000


@dataclass(slots=True)
class Finished:
    """A run whose training is over, with its newest checkpoint in its own bucket."""

    folder: RunFolder
    document: PlanDocument
    store: ObjectStore
    notes: list[str] = field(default_factory=list)

    @property
    def bucket(self) -> str:
        return resource_name(self.folder.run_id, "data")

    def fetch(self, document: PlanDocument | None = None) -> None:
        Fetch(
            folder=self.folder,
            document=document or self.document,
            clock=CLOCK,
            prices=UsagePrices(),
            say=self.notes.append,
        )()

    @property
    def kept(self) -> bool:
        return kept_bucket(self.folder.run_id, read(self.folder.journal_file)) is not None


@pytest.fixture(params=[Provider("gcp"), Provider("aws")], ids=str)
def finished(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Finished]:
    provider = request.param
    offers = GCP_OFFERS[:2] if provider is Provider("gcp") else AWS_OFFERS
    run = Finished(
        RunFolder.create("tiny", root=tmp_path / "runs"),
        cloud_document(("n0", offers[0]), ("n1", offers[1])),
        ObjectStore(),
    )
    files = {".metadata": b"", "__0_0": WEIGHTS}
    sums = [
        FileSum(name=name, size=len(content), sha256=hashlib.sha256(content).hexdigest())
        for name, content in files.items()
    ]
    files["sailor.json"] = encode({"step": 7}, sums).encode()
    objects = {"latest": b"step-7", **{f"step-7/{name}": content for name, content in files.items()}}
    run.store.objects.update({(run.bucket, f"checkpoints/{key}"): content for key, content in objects.items()})
    path = f"{SCHEMES[provider]}://{run.bucket}/checkpoints/step-7"
    Journal.of(run.folder, CLOCK).append(Event.CHECKPOINT_SAVED, step=7, path=path)
    with serve_objects(run.store) as url, in_environment(store_environment(provider, url, tmp_path)):
        yield run


def test_the_newest_checkpoint_comes_whole_is_paid_for_and_lets_the_bucket_go(finished: Finished) -> None:
    assert finished.kept
    finished.fetch()
    assert (finished.folder.checkpoints_dir / "step-7" / "__0_0").read_bytes() == WEIGHTS
    assert (finished.folder.checkpoints_dir / "latest").read_text() == "step-7"
    assert not finished.kept
    (line,) = Ledger.of(finished.folder, CLOCK).lines()
    assert line.quantity == pytest.approx(len(WEIGHTS) / 1e9)
    assert 0.01 < line.usd_per_unit < 0.3
    finished.fetch()
    assert len(Ledger.of(finished.folder, CLOCK).lines()) == 1, "what was fetched is not fetched again"


def damage(run: Finished) -> None:
    run.store.objects[run.bucket, "checkpoints/step-7/__0_0"] = b"w" * len(WEIGHTS)


def lose(run: Finished) -> None:
    del run.store.objects[run.bucket, "checkpoints/step-7/sailor.json"]


@pytest.mark.parametrize(
    ("harm", "why"), [(damage, "is not what was written"), (lose, "there is no complete checkpoint in")]
)
def test_a_copy_other_than_the_saved_model_keeps_the_bucket(
    harm: Callable[[Finished], None], why: str, finished: Finished
) -> None:
    harm(finished)
    finished.fetch()
    assert finished.kept
    assert f"the results stay in {SCHEMES[finished.document.inputs.offers[0].provider]}://" in finished.notes[-1]
    assert why in finished.notes[-1]
    assert not (finished.folder.checkpoints_dir / "latest").exists()


def test_a_model_is_copied_without_a_latest(finished: Finished) -> None:
    finished.store.objects[finished.bucket, "checkpoints/step-1000/model.pt"] = b"another tool's"
    del finished.store.objects[finished.bucket, "checkpoints/latest"]
    finished.fetch()
    assert (finished.folder.checkpoints_dir / "step-7" / "__0_0").read_bytes() == WEIGHTS
    assert not finished.kept


def test_a_copy_that_the_budget_can_not_pay_for_is_not_made(finished: Finished) -> None:
    limits = finished.document.constraints.model_copy(update={"budget_usd": 1e-9})
    finished.fetch(replace(finished.document, constraints=limits))
    assert finished.kept
    assert "USD are left" in finished.notes[-1]
    assert Ledger.of(finished.folder, CLOCK).lines() == ()


@pytest.mark.parametrize("run", [None, "python3 train.py"], ids=["model", "command"])
def test_an_interpreter_that_aborts_as_it_winds_down_does_not_keep_what_was_copied(
    run: str | None, finished: Finished, tmp_path: Path
) -> None:
    """As some do in which obstore's threads still run; nothing is left to do by then."""
    (tmp_path / "sitecustomize.py").write_text("import atexit, os\natexit.register(os.abort)\n")
    mark = {"at": 1.0, "files": {"": [len(WEIGHTS), 0]}}
    saved = {".sailor/count-7.0.json": json.dumps(mark).encode(), "count-7": WEIGHTS}
    finished.store.objects.update({(finished.bucket, f"checkpoints/{key}"): content for key, content in saved.items()})
    job = finished.document.job.model_copy(update={"run": run})
    with in_environment({"PYTHONPATH": str(tmp_path)}):
        finished.fetch(replace(finished.document, job=job))
    assert not finished.kept, finished.notes
    name = "step-7/__0_0" if run is None else "count-7"
    assert (finished.folder.checkpoints_dir / name).read_bytes() == WEIGHTS
