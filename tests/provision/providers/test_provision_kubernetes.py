"""Manifests against the official schemas, and a run through the official client against a stand-in API server."""

from __future__ import annotations

import asyncio
import copy
import json
import subprocess
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from factories import kubernetes_api as kubernetes_stand_in
from factories.clusters import INVENTORY, JOB
from factories.kubernetes_api import Cluster, Pod, jobset_faults, kubernetes_api
from factories.quick_runs import CLOCK, Notes
from sailor_cloud import api
from sailor_cloud.catalog.clusters import with_inventory
from sailor_cloud.clock import SystemClock
from sailor_cloud.errors import CredentialsError, ProvisionError, RequestError
from sailor_cloud.launch.down import take_down
from sailor_cloud.launch.fleet.job_artefact import exported_job
from sailor_cloud.launch.fleet.job_fleet import JobFleet
from sailor_cloud.launch.telemetry.generation_log import read_events
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.inventory import NodeGroup
from sailor_cloud.model.job_file import parse_job
from sailor_cloud.provision import providers
from sailor_cloud.provision.cleanup.reap import find_leftovers, remove_foreign
from sailor_cloud.provision.cleanup.teardown import destroy
from sailor_cloud.provision.jobs import ClusterJob, JobPhase, check_scheduler
from sailor_cloud.provision.live_resources import NODE_LABEL, RUN_LABEL
from sailor_cloud.provision.providers.kubernetes.jobset import as_yaml, manifests, names
from sailor_cloud.provision.providers.kubernetes.provider import JobSets
from sailor_cloud.provision.providers.kubernetes.scheduler import Kubernetes, jobsets
from sailor_cloud.provision.scopes import places_of, sweep_scopes
from sailor_cloud.provision.terraform.progress import Interrupt
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.journal import Event, Journal, read
from sailor_cloud.run.options import Ending
from sailor_cloud.run.progress import RunProgress

PODS = """namespace: ml
queue: gpus
service_account: trainer
claim: checkpoints
"""
LABEL = "cloud.google.com/gke-accelerator"


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAILOR_CLOUD_HOME", str(tmp_path / "home"))


def spread(tmp_path: Path, *, image: str = "registry.example.org/sailor:1") -> PlanDocument:
    """A plan with a pipeline on each device of three nodes, of three groups."""
    text = INVENTORY.replace("scheduler: slurm", "scheduler: kubernetes").replace("account: physics\n", PODS)
    text = text.replace(
        "/shared/venv/bin/python, modules: [cuda/12.6]", f"python3, image: {image}" if image else "python3"
    )
    for name in ("a100", "v100", "titan"):
        text = text.replace(f"  {name}: {{", f"  {name}: {{node_selector: {{{LABEL}: {name}}}, ")
    text = text.replace("/shared/checkpoints", str(tmp_path / "checkpoints"))
    inventory = tmp_path / "cluster.yaml"
    inventory.write_text(text)
    saved = tmp_path / "saved"
    saved.mkdir(exist_ok=True)
    text = JOB.replace("checkpoint: {", f"checkpoint: {{to: {saved}, ")
    job = with_inventory(parse_job(text), on="kubernetes", cluster=inventory)
    nodes = ["1 x lab-a100@a100", "1 x lab-v100@v100", "1 x lab-titan@titan"]
    return api.simulate_layout(job, layout="dp=4", nodes=nodes).document


def changed(document: PlanDocument, **values: object) -> PlanDocument:
    return replace(document, job=document.job.model_copy(update=values))


def test_manifests_keep_to_the_official_schemas(tmp_path: Path) -> None:
    job = exported_job(spread(tmp_path))
    config, jobset = manifests(job)
    assert len(json.loads(config["stringData"]["plan.json"])["token"]) == 32
    assert jobset_faults(jobset) == []
    assert list(yaml.safe_load_all(as_yaml(job))) == [config, jobset]
    kubernetes_validate.validate(config, "1.35", strict=True)
    for group in jobset["spec"]["replicatedJobs"]:
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": group["name"]}, **group["template"]}
        kubernetes_validate.validate(job, "1.35", strict=True)


def test_a_field_that_the_schema_lacks_is_found(tmp_path: Path) -> None:
    _, jobset = manifests(exported_job(spread(tmp_path)))
    wrong = copy.deepcopy(jobset)
    wrong["spec"]["ttlSecondsAfterFinish"] = wrong["spec"].pop("ttlSecondsAfterFinished")
    assert any("ttlSecondsAfterFinish" in fault for fault in jobset_faults(wrong))
    wrong = copy.deepcopy(jobset)
    wrong["spec"]["replicatedJobs"][0]["template"]["spec"]["parallelism"] = "two"
    assert any("parallelism" in fault for fault in jobset_faults(wrong))


def test_a_replicated_job_is_a_node_group_with_queue_selector_and_limits(tmp_path: Path) -> None:
    document = spread(tmp_path)
    _, jobset = manifests(exported_job(document))
    assert jobset["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
    assert jobset["metadata"]["namespace"] == "ml"
    assert jobset["spec"]["ttlSecondsAfterFinished"] > 0
    groups = {group["name"]: group["template"]["spec"] for group in jobset["spec"]["replicatedJobs"]}
    assert {name: spec["completions"] for name, spec in groups.items()} == {"a100": 1, "v100": 1, "titan": 1}
    assert {spec["activeDeadlineSeconds"] for spec in groups.values()} == {document.ttl_s or 1200}
    pods = {name: spec["template"]["spec"] for name, spec in groups.items()}
    assert {name: pod["nodeSelector"] for name, pod in pods.items()} == {name: {LABEL: name} for name in groups}
    limits = {name: pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] for name, pod in pods.items()}
    assert limits == {"a100": "2", "v100": "1", "titan": "1"}
    command = pods["v100"]["containers"][0]["command"]
    assert command[command.index("--group") + 1] == "v100"
    assert command[command.index("--index") + 1] == "$(JOB_COMPLETION_INDEX)"
    name = jobset["metadata"]["name"]
    assert command[command.index("--rendezvous") + 1] == f"{name}-a100-0-0.{name}:29400"


def changed_group(document: PlanDocument, **values: object) -> ClusterJob:
    """The plan's exported job, with other values of its first group."""
    job = exported_job(document)
    (first, *_) = job.groups
    group = NodeGroup.model_validate(job.inventory.groups[first.name].model_dump() | values)
    groups = job.inventory.groups | {first.name: group}
    return replace(job, inventory=job.inventory.model_copy(update={"groups": groups}))


def pod_of(job: ClusterJob) -> dict[str, Any]:
    jobset = manifests(job)[1]
    assert jobset_faults(jobset) == []
    (group, *_) = jobset["spec"]["replicatedJobs"]
    return dict(group["template"]["spec"]["template"]["spec"])


def test_a_pod_requests_what_the_inventory_names(tmp_path: Path) -> None:
    document = spread(tmp_path)
    (container,) = pod_of(exported_job(document))["containers"]
    assert "requests" not in container["resources"]
    (container,) = pod_of(changed_group(document, vcpus=94, memory_gib=600.5))["containers"]
    assert container["resources"]["requests"] == {"cpu": "94", "memory": "614912Mi"}


def test_lost_nodes_are_avoided_by_their_names(tmp_path: Path) -> None:
    job = replace(exported_job(spread(tmp_path)), avoid=frozenset({"b", "a"}))
    affinity = pod_of(job)["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    # One value per requirement: the API refuses more for fields.
    wanted = [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in ("a", "b")]
    assert affinity == {"nodeSelectorTerms": [{"matchFields": wanted}]}


def test_agents_wait_for_each_other_until_their_job_ends(tmp_path: Path) -> None:
    job = exported_job(spread(tmp_path))
    (container,) = pod_of(job)["containers"]
    command = container["command"]
    (group, *_) = manifests(job)[1]["spec"]["replicatedJobs"]
    deadline = group["template"]["spec"]["activeDeadlineSeconds"]
    assert command[command.index("--join-s") + 1] == str(deadline) == "1200"


def test_each_export_has_a_name_of_its_own_and_a_run_one_for_each_generation(tmp_path: Path) -> None:
    document = spread(tmp_path)
    first, second = exported_job(document), exported_job(document)
    assert names(first)[0] != names(second)[0]
    assert names(first) == names(first)
    run = replace(first, variant="")
    assert names(run) == names(replace(run, artefact=""))


def test_tainted_nodes_are_free_only_for_pods_that_tolerate_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = spread(tmp_path)
    team = {"key": "team", "value": "ml", "effect": "NoSchedule"}
    plain = exported_job(document)
    tolerant = changed_group(document, tolerations=[{"key": "team", "value": "ml"}])
    resource = {"key": "nvidia.com/gpu", "operator": "Exists"}
    assert pod_of(plain)["tolerations"] == [resource]
    assert pod_of(tolerant)["tolerations"] == [resource, {"key": "team", "operator": "Equal", "value": "ml"}]
    with kubernetes_api(tmp_path / "api", {name: {LABEL: "a100"} for name in "abcd"}) as cluster:
        monkeypatch.setenv("KUBECONFIG", str(cluster.folder / "kubeconfig"))
        cluster.taints = {
            "a": [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}],
            "b": [team],
            "c": [{**team, "value": "web"}],
            "d": [{**team, "value": "web", "effect": "PreferNoSchedule"}],
        }
        free = [Kubernetes().free("a100", job.inventory, frozenset()) for job in (plain, tolerant)]
    assert free == [("a", "d"), ("a", "b", "d")]


def test_requirements_that_pods_can_not_meet_are_refused_before_anything_begins(tmp_path: Path) -> None:
    model = spread(tmp_path).job.model
    assert model is not None
    own = model.model_copy(update={"module": "mine:Model"})
    for document, fault in (
        (spread(tmp_path, image=""), r"names no runtime\.image, and pods need one"),
        (changed(spread(tmp_path), run="python train.py", workdir="."), "the job has a workdir, and pods get no copy"),
        (changed(spread(tmp_path), model=own), r"model\.module names code, and pods get no copy"),
    ):
        for refuses in (exported_job, check_scheduler):
            with pytest.raises(RequestError, match=fault):
                refuses(document)


class Watcher(Notes):
    def __init__(self, reached: threading.Event) -> None:
        super().__init__()
        self._reached = reached

    def step(self, progress: RunProgress) -> None:
        if progress.step >= 5:
            self._reached.set()


def test_a_run_loses_a_pods_node_and_continues_with_a_new_jobset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = spread(tmp_path)
    reached = threading.Event()
    watcher = Watcher(reached)
    nodes = {f"{group}-{number}": {LABEL: group} for group in ("a100", "v100", "titan") for number in (1, 2)}
    del nodes["v100-2"]
    with kubernetes_api(tmp_path / "api", nodes) as cluster:
        monkeypatch.setenv("KUBECONFIG", str(cluster.folder / "kubeconfig"))

        def lose() -> None:
            reached.wait(60)
            cluster.lose("a100-1")

        losing = threading.Thread(target=lose)
        losing.start()
        outcome = api.up(document, watcher)
        losing.join()
        assert cluster.secrets == {}
        first, second = cluster.created
        assert cluster.deleted[:1] == [first["metadata"]["name"]]
        assert outcome.ending is Ending.COMPLETED, outcome.message
        # Nobody knows what the lost machine does.
        assert list(cluster.jobsets) == [first["metadata"]["name"]]
        [folder] = RunFolder.list()
        for receipt in (outcome.receipt, take_down(folder, clock=SystemClock())):
            assert [(row.name, row.found) for row in receipt.left] == [("n0", False)]
            (doubt,) = receipt.problems
            assert "of node n0: machine a100-1 does not answer" in doubt
        assert outcome.exit_code == 1
        where = places_of(folder).scopes
        (leftover,) = find_leftovers([], clock=SystemClock(), scopes=where, older_than=timedelta(0)).reapable
        assert [one.node for one in leftover.resources] == ["n0"]
        assert remove_foreign(leftover, pause=lambda seconds: None) == (doubt,)
        del cluster.nodes["a100-1"]
        assert take_down(folder, clock=SystemClock()).clean
        assert cluster.jobsets == {}
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "api").rglob("spec.json")} == {0o600}
    ended = [entry.data for entry in read(folder.journal_file) if entry.event is Event.GENERATION_ENDED]
    assert [one["end"] for one in ended] == ["nodes lost", "finished"]
    assert "a100-1" in str(second["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["affinity"])
    logs = folder.logs_dir / "n0"
    assert '"event": "step"' in (logs / "agent.log").read_text()
    assert '"event": "log"' not in (logs / "agent.log").read_text()
    # What the lost pod's ranks wrote may be lost with it.
    written = {path.stem: path.read_text() for path in folder.logs_dir.glob("n[12]/g1-rank*.log")}
    assert written
    for name, text in written.items():
        assert text.startswith(f"rank {name.removeprefix('g1-rank')} of generation 1 begins\n")
    assert {event["event"] for event in read_events(folder)} >= {"step", "stopped"}
    assert "log" not in {event["event"] for event in read_events(folder)}


def test_a_jobset_is_gone_when_its_last_pod_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = exported_job(spread(tmp_path))
    scheduler = Kubernetes()
    with kubernetes_api(tmp_path / "api", {"a": {}}) as cluster, subprocess.Popen(["sleep", "5"]) as process:
        monkeypatch.setenv("KUBECONFIG", str(cluster.folder / "kubeconfig"))
        monkeypatch.setattr(Cluster, "start", lambda cluster, jobset: None)
        name = scheduler.submit(job, tmp_path)
        labels = {RUN_LABEL: job.run_id, "jobset.sigs.k8s.io/jobset-name": name}
        labels["batch.kubernetes.io/job-completion-index"] = "0"
        # It takes its time to end.
        monkeypatch.setattr(process, "terminate", lambda: None)
        pod = Pod(name="p", labels=labels, node="a", process=process, log=tmp_path, limits={}, notes={NODE_LABEL: "n0"})
        cluster.pods[name] = [pod]
        scheduler.cancel(name, job.inventory)
        assert scheduler.state(name, job).phase is JobPhase.RUNNING
        assert {found.node for found in JobSets().jobs("lab", job.run_id)} == {"n0", "n1", "n2"}
        del cluster.jobsets[name]
        assert [(found.node, found.ending) for found in JobSets().jobs("lab", None)] == [("n0", True)]
        process.kill()
        process.wait()
        assert scheduler.state(name, job).missing
        assert not list(JobSets().jobs("lab", None))


def test_the_plan_goes_with_its_jobset_and_without_it_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A JobSet that has ended is deleted by Kubernetes after a while, and the plan may hold variables of a command."""
    job = exported_job(spread(tmp_path))
    with kubernetes_api(tmp_path / "api", {"a": {}}) as cluster:
        monkeypatch.setenv("KUBECONFIG", str(cluster.folder / "kubeconfig"))
        monkeypatch.setattr(Cluster, "start", lambda cluster, jobset: None)
        name = Kubernetes().submit(job, tmp_path)
        (owner,) = cluster.secrets[name]["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("JobSet", cluster.jobsets[name]["metadata"]["uid"])
        Kubernetes().cancel(name, job.inventory)
        cluster.secrets_refused = True
        with pytest.raises(ProvisionError, match="secrets is forbidden"):
            Kubernetes().submit(job, tmp_path)
        assert not cluster.jobsets


@pytest.mark.parametrize("journaled", [True, False])
def test_a_job_that_is_queued_when_its_controller_dies_is_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, journaled: bool
) -> None:
    document = spread(tmp_path)
    inventory = document.job.cloud.inventory
    assert inventory is not None
    folder = RunFolder.create("queued-20261121-051313-a1b2")
    folder.write_document(document)
    spec = json.dumps(json.loads(exported_job(document).artefact)["spec"])
    monkeypatch.setattr(Cluster, "start", lambda cluster, jobset: None)

    def fleet() -> JobFleet:
        return JobFleet(folder=folder, clock=CLOCK, scheduler=Kubernetes(), inventory=inventory, ask_s=0.01)

    async def dies(first: JobFleet) -> None:
        await first.create(document, expires_at=CLOCK.now(), interrupt=Interrupt(), on_progress=lambda progress: None)
        Journal.of(folder, CLOCK).append(Event.GENERATION_STARTED, generation=1)
        begun = asyncio.create_task(first.start("n0", spec, 1, ["n0"]))
        while not first.job_id:
            await asyncio.sleep(0.01)
        begun.cancel()

    with kubernetes_api(tmp_path / "api", {}) as cluster:
        monkeypatch.setenv("KUBECONFIG", str(cluster.folder / "kubeconfig"))
        asyncio.run(dies(fleet()))
        if not journaled:
            lines = folder.journal_file.read_text().splitlines(keepends=True)
            folder.journal_file.write_text("".join(line for line in lines if "job_submitted" not in line))
        after = fleet()
        assert asyncio.run(after.running(document)) == {"n0", "n1", "n2"}
        assert after.job_id == cluster.created[0]["metadata"]["name"]
        assert after._queued


def test_events_continue_where_the_kubelet_began_a_new_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, log = exported_job(spread(tmp_path)), tmp_path / "log"
    with kubernetes_api(tmp_path / "api", {"a": {}}) as cluster, subprocess.Popen(["sleep", "5"]) as process:
        monkeypatch.setenv("KUBECONFIG", str(cluster.folder / "kubeconfig"))
        labels = {"jobset.sigs.k8s.io/jobset-name": "s", "jobset.sigs.k8s.io/replicatedjob-name": "a100"}
        labels["batch.kubernetes.io/job-completion-index"] = "0"
        monkeypatch.setattr(Cluster, "settle", lambda cluster: None)
        cluster.pods["s"] = [Pod(name="p", labels=labels, node="a", process=process, log=log, limits={})]
        log.write_bytes(b"one\ntwo\n")
        assert Kubernetes().events("s", job, "n0", 4) == (b"two\n", 8)
        log.write_bytes(b"six\n")
        assert Kubernetes().events("s", job, "n0", 8) == (b"six\n", 4)
        process.kill()


def test_short_names_of_groups_never_collide(tmp_path: Path) -> None:
    job = exported_job(spread(tmp_path))
    groups = [replace(job.groups[0], name="x" * 21), replace(job.groups[1], name="group-0")]
    assert set(names(replace(job, groups=tuple(groups)))[1].values()) == {"group-0", "group-1"}


def test_down_confirms_nothing_where_another_cluster_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = spread(tmp_path)
    inventory = document.job.cloud.inventory
    assert inventory is not None
    folder = RunFolder.create("away-20261121-051313-a1b2")
    folder.write_document(document)
    fleet = JobFleet(folder=folder, clock=CLOCK, scheduler=Kubernetes(), inventory=inventory)
    with kubernetes_api(tmp_path / "api", {}) as cluster:
        monkeypatch.setenv("KUBECONFIG", str(cluster.folder / "kubeconfig"))
        create = fleet.create(
            document, expires_at=CLOCK.now(), interrupt=Interrupt(), on_progress=lambda progress: None
        )
        asyncio.run(create)
        cluster.uid = "another"
        swept = sweep_scopes(places_of(folder).scopes, run_id=folder.run_id)
        [problem] = swept.problems
        assert "this machine is connected to cluster another, but the run's jobs are on 0f1e; select that" in problem
        with pytest.raises(ProvisionError, match="connected to cluster another, but"):
            asyncio.run(fleet._cancel("sailor-1-g1"))
        elsewhere = destroy(folder, clock=CLOCK, pause=lambda pause_s: None)
        assert not elsewhere.clean
        assert all(row.gone_at is None for row in elsewhere.resources)
        cluster.uid = "0f1e"
        assert destroy(folder, clock=CLOCK, pause=lambda pause_s: None).clean


def test_without_a_cluster_there_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    document = spread(tmp_path)
    scheduler = providers.of(document.home.provider).scheduler
    inventory = document.job.cloud.inventory
    assert scheduler is not None
    assert inventory is not None
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(CredentialsError, match=r"no Kubernetes cluster is configured: .*set KUBECONFIG"):
        scheduler.check(inventory)
    # Without the variable it is the user's own file, and inside a pod what Kubernetes has put there.
    monkeypatch.delenv("KUBECONFIG")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(CredentialsError, match=r"is configured: Service host/port is not set; set KUBECONFIG"):
        scheduler.check(inventory)
    assert capsys.readouterr().out == ""
    with kubernetes_api(tmp_path / "api", {}) as cluster:
        monkeypatch.setenv("KUBECONFIG", str(cluster.folder / "kubeconfig"))
        scheduler.check(inventory)
        job = exported_job(document)
        broken = copy.deepcopy(manifests(job)[1])
        broken["spec"]["replicatedJobs"][0]["colour"] = "red"
        monkeypatch.setattr(
            "sailor_cloud.provision.providers.kubernetes.scheduler.manifests", lambda job: (manifests(job)[0], broken)
        )
        with pytest.raises(ProvisionError, match=r"the Kubernetes API refuses: JobSet is invalid.*colour"):
            scheduler.submit(job, tmp_path)
        assert cluster.secrets == {}


@pytest.mark.parametrize(
    ("status", "body", "fault"),
    [
        (404, b"404 page not found", r"the cluster has no jobsets\.jobset\.x-k8s\.io; install JobSet"),
        (404, 'namespaces "ml" not found', r'the Kubernetes API refuses: namespaces "ml" not found \(404\)'),
        (403, 'User "me" cannot create jobsets', "cannot create jobsets; docs/clusters.md lists the rights"),
        (403, 'webhook "vjobset.kb.io" denied the request: no queue', r"denied the request: no queue \(403\)"),
        (403, "exceeded quota: counts", r"exceeded quota: counts \(403\)"),
        (401, "Unauthorized", "refuses: Unauthorized; docs/clusters.md lists the rights"),
        (502, b"<html>Bad Gateway</html>", r"the Kubernetes API refuses: Bad Gateway \(502\)"),
        (200, b"<html>a portal</html>", "is not a Kubernetes API: .*; look at the address in the kubeconfig"),
        (200, b"{}", r"what answers at http://127\.0\.0\.1:\d+ is not a Kubernetes API"),
    ],
)
def test_each_refusal_of_the_api_is_one_clear_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, body: str | bytes, fault: str
) -> None:
    job, answered = exported_job(spread(tmp_path)), kubernetes_stand_in._answer

    def answer(cluster: Cluster, method: str, path: str, query: dict[str, str], given: object) -> tuple[int, object]:
        if method == "POST" and path.endswith("/jobsets"):
            return (status, body) if isinstance(body, bytes) else kubernetes_stand_in._status(status, body)
        return answered(cluster, method, path, query, given)

    monkeypatch.setattr(kubernetes_stand_in, "_answer", answer)
    with kubernetes_api(tmp_path / "api", {}) as cluster:
        monkeypatch.setenv("KUBECONFIG", str(cluster.folder / "kubeconfig"))
        Kubernetes().check(job.inventory)
        with pytest.raises(ProvisionError, match=fault):
            Kubernetes().submit(job, tmp_path)
        assert (cluster.jobsets, cluster.secrets) == ({}, {})


def test_a_page_in_place_of_the_api_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, scheduler = exported_job(spread(tmp_path)), Kubernetes()
    monkeypatch.setattr(kubernetes_stand_in, "_answer", lambda *asked: (200, b"<html>a portal</html>"))
    asks: tuple[Callable[[], object], ...] = (
        scheduler.identity,
        lambda: scheduler.check(job.inventory),
        lambda: scheduler.state("s", job),
        lambda: scheduler.unresponsive_machines(["a"]),
        lambda: jobsets(None),
    )
    with kubernetes_api(tmp_path / "api", {}) as cluster:
        monkeypatch.setenv("KUBECONFIG", str(cluster.folder / "kubeconfig"))
        for ask in asks:
            with pytest.raises(ProvisionError, match=r"is not a Kubernetes API: .*a portal"):
                ask()
