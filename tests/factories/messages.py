"""Makes commands end with the messages of the troubleshooting page."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

import yaml

from factories.called import Answer, called
from factories.cloud_plans import AWS_OFFERS, OUTLIER_OFFER, cloud_document
from factories.commands import ROOT
from factories.documents import document
from factories.honest import honest
from factories.priced_documents import gcp_document
from sailor_cloud.errors import SailorError
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import Cloud, Constraints, GcpAccount, Job, NetworkAccess
from sailor_cloud.run.folder import RunFolder

QUICKSTART = (ROOT / "examples" / "quickstart.yaml").read_text()
GCP = (ROOT / "examples" / "gcp-a100-v100.yaml").read_text()
DAY = ("--as-of", "2026-11-21")
RUN = "tiny-20261120-120000-abcd"
# Nobody is logged in, and no cloud's own machine is asked whether this is one.
NOBODY = {"NO_GCE_CHECK": "true", "GCE_METADATA_IP": "127.0.0.1:9", "AWS_EC2_METADATA_DISABLED": "true"}


@dataclass(frozen=True)
class Said:
    """What was said, and the error that said it."""

    text: str
    error: SailorError | None = None


OWNED = Cloud(gcp=GcpAccount(project="my-project"), owner="me@example.org")
FROM_HERE = ("--ssh-from", "203.0.113.7/32")
Producer = Callable[[Path], Said]


def _said(answer: Answer) -> Said:
    assert "Traceback" not in answer.stderr
    return Said(answer.stdout + answer.stderr, answer.error)


def command(*arguments: str, **settings: str) -> Producer:
    def produce(folder: Path) -> Said:
        environment = {"HOME": str(folder), "COLUMNS": "200", **NOBODY, **settings}
        return _said(called(*arguments, home=folder / "home", cwd=folder, environment=environment))

    return produce


def without_boto3(folder: Path) -> Said:
    with mock.patch.dict(sys.modules, {"boto3": None}):
        return command("quota", "--provider", "aws", "--region", "us-east-1")(folder)


def planning(text: str, *options: str, machine: str = "4 cores at 1.0") -> Producer:
    def produce(folder: Path) -> Said:
        (folder / "job.yaml").write_text(text)
        return command("plan", "job.yaml", *DAY, *options, SAILOR_CLOUD_MACHINE=machine)(folder)

    return produce


def replaced(text: str, old: str, new: str) -> Producer:
    changed = re.sub(old, new, text)
    assert changed != text
    return planning(changed)


def buying(planned: Callable[[], PlanDocument], *options: str, **settings: str) -> Producer:
    """Carry out a plan that was made before."""

    def produce(folder: Path) -> Said:
        document = planned()
        (folder / "plan.json").write_text(document.to_json())
        (folder / "job.yaml").write_text(_job_file(document.job))
        return command("up", "job.yaml", "--plan", "plan.json", *options, **settings)(folder)

    return produce


def _job_file(job: Job) -> str:
    return yaml.safe_dump(json.loads(job.model_dump_json(exclude_none=True, exclude_defaults=True)))


def _changed(planned: PlanDocument, **changes: object) -> PlanDocument:
    job = planned.job.model_copy(update=changes)
    return replace(planned, job=job, constraints=job.constraints)


def local_plan() -> PlanDocument:
    return honest(document())


def gcp_plan() -> PlanDocument:
    return honest(gcp_document())


def dearer() -> PlanDocument:
    planned = local_plan()
    offers = tuple(replace(offer, usd_per_hour=2 * offer.usd_per_hour) for offer in planned.inputs.offers)
    return replace(planned, inputs=replace(planned.inputs, offers=offers))


def elsewhere() -> PlanDocument:
    planned = local_plan()
    one_zone = planned.job.resources[:1]
    return _changed(planned, resources=one_zone)


def without_an_end() -> PlanDocument:
    return replace(_changed(honest(document()), constraints=Constraints()), ttl_s=None)


def on_a_private_network() -> PlanDocument:
    return _changed(honest(gcp_document()), cloud=OWNED.model_copy(update={"network": NetworkAccess.PRIVATE}))


def without_a_project() -> PlanDocument:
    return _changed(gcp_plan(), cloud=Cloud(owner="me@example.org"))


def owned_gcp_plan() -> PlanDocument:
    return _changed(gcp_plan(), cloud=OWNED)


def with_a_doubtful_price() -> PlanDocument:
    return _changed(honest(cloud_document(("n0", OUTLIER_OFFER), ("n1", AWS_OFFERS[1]))), cloud=OWNED)


def with_checkpoints_elsewhere() -> PlanDocument:
    kept = gcp_document().job.checkpoint.model_copy(update={"to": "s3://bucket/run"})
    return _changed(honest(_changed(gcp_document(), checkpoint=kept)), cloud=OWNED, checkpoint=kept)


def another_plan(folder: Path) -> Said:
    (folder / "plan.json").write_text(document().to_json())
    (folder / "job.yaml").write_text(QUICKSTART)
    return command("up", "job.yaml", "--plan", "plan.json", "--yes")(folder)


def plan_of_another_version(folder: Path) -> Said:
    (folder / "old.json").write_text(json.dumps({"schema_version": 0}))
    return command("diff", "old.json", "old.json")(folder)


def costlier(folder: Path) -> Said:
    base = json.loads(document().to_json())
    (folder / "base.json").write_text(json.dumps(base))
    base["cost"]["total_usd"] += 5
    (folder / "head.json").write_text(json.dumps(base))
    return command("diff", "base.json", "head.json", "--fail-above-usd", "1")(folder)


def init_twice(folder: Path) -> Said:
    assert command("init", "--preset", "local")(folder).error is None
    return command("init", "--preset", "local")(folder)


def prices_without_columns(folder: Path) -> Said:
    (folder / "mine" / "offers").mkdir(parents=True)
    (folder / "mine" / "offers" / "mine.csv").write_text("zone,price\n")
    return planning(QUICKSTART, "--pricing", "mine")(folder)


def _run(folder: Path) -> RunFolder:
    run = RunFolder.create(RUN, root=folder / "home" / "runs")
    run.write_document(document())
    return run


def run_without_nodes(folder: Path) -> Said:
    _run(folder)
    return command("ssh", RUN)(folder)


def run_that_is_held(folder: Path) -> Said:
    with _run(folder).lock():
        return command("down", RUN)(folder)


PRODUCERS: dict[str, Producer] = {
    "can't read job file nowhere.yaml: No such file or directory": command("plan", "nowhere.yaml"),
    "is not a field here (did you mean 'global_batch_size'?)": replaced(
        QUICKSTART, "global_batch_size", "global_batch"
    ),
    "is missing (add 'sequence_length')": replaced(QUICKSTART, r" *sequence_length: \d+\n", ""),
    "'us-central1-z' is not a known zone of gcp": replaced(GCP, "us-central1-b", "us-central1-z"),
    "'A100' is not a known accelerator offered by gcp": replaced(GCP, "A100-40", "A100"),
    "'gpt5' is not a preset": replaced(GCP, "preset: sailor-opt-350", "preset: gpt5"),
    "is not a duration; write for example 90s, 10m, 24h or 1h30m": replaced(
        QUICKSTART, "deadline: 10m", "deadline: soon"
    ),
    "infeasible: budget_usd": replaced(QUICKSTART, r"budget_usd: [\d.]+", "budget_usd: 0.0001"),
    "infeasible: does not fit in memory: equal stages need": replaced(
        QUICKSTART, r"hidden_size: \d+", "hidden_size: 768"
    ),
    "the file says": buying(dearer, "--yes"),
    "which the job does not allow or no price is known for": buying(elsewhere, "--yes"),
    "was made for another job than": another_plan,
    "this version reads 1": plan_of_another_version,
    "there is no terminal to ask on; give --yes": buying(local_plan),
    "the job has neither a budget nor a deadline": buying(without_an_end, "--yes"),
    "it takes cores and speed, as in '4 cores at 1.0'": planning(QUICKSTART, machine="4"),
    "no command 'paln'; did you mean 'plan'?": command("paln"),
    "there is no run 'nope'": command("down", "nope"),
    "is held by process": run_that_is_held,
    "runs now; its logs are in": run_without_nodes,
    "can't read plan missing.json": command("diff", "missing.json", "missing.json"),
    "job.yaml already exists; give --force": init_twice,
    "the change costs": costlier,
    "lacks the columns": prices_without_columns,
    "of the plan's 2 offers have stale prices": buying(owned_gcp_plan, "--yes", *FROM_HERE),
    "of the plan's 2 offers have doubtful prices": buying(with_a_doubtful_price, "--yes", "--allow-stale", *FROM_HERE),
    "cloud.gcp.project: is missing": buying(without_a_project, "--dry-run", *FROM_HERE),
    "--ssh-from: is missing": buying(gcp_plan, "--yes"),
    "would let anyone in; give your own address": buying(local_plan, "--ssh-from", "0.0.0.0/0"),
    "is s3://bucket/run, which nodes on gcp have no rights for": buying(
        with_checkpoints_elsewhere, "--dry-run", *FROM_HERE
    ),
    "is private, and nodes on gcp are then reached through gcloud, which is not on PATH": buying(
        on_a_private_network, "--yes", "--allow-stale", PATH="/nonexistent"
    ),
    "no Google Cloud credentials": command("quota", "--provider", "gcp", "--region", "us-central1"),
    "no AWS credentials": command("quota", "--provider", "aws", "--region", "us-east-1"),
    "the Python module boto3 is not installed": without_boto3,
}
