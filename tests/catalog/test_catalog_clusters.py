from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from factories.called import called
from factories.clusters import INVENTORY, JOB
from sailor_cloud import api, catalog
from sailor_cloud.catalog import clusters
from sailor_cloud.catalog.clusters import as_yaml, read_inventory, with_inventory
from sailor_cloud.cli.main import cli
from sailor_cloud.cli.terminal.options import read_job
from sailor_cloud.errors import RequestError
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import Job
from sailor_cloud.model.job_file import parse_job
from sailor_cloud.model.offer import Confidence
from sailor_cloud.network import Place
from sailor_cloud.network import load as load_network
from sailor_cloud.units import GBIT_BYTES

# Planned in a fraction of the time.
SMALL_BATCH = JOB.replace("global_batch_size: 8", "global_batch_size: 2").replace("layers: 2", "layers: 1")


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAILOR_CLOUD_HOME", str(tmp_path / "home"))


def written(tmp_path: Path, text: str = INVENTORY) -> Path:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    return path


def job_with(text: str, tmp_path: Path, cluster: Path) -> Job:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    return read_job(path, on="slurm", cluster=cluster)


def test_groups_are_offers_at_the_stated_price_which_may_be_nothing(tmp_path: Path) -> None:
    job = with_inventory(parse_job(JOB), on="slurm", cluster=written(tmp_path))
    offers = {offer.zone: offer for offer in catalog.load().offers(provider=job.resources[0].provider)}
    assert {zone: offer.usd_per_hour for zone, offer in offers.items()} == {"a100": 1.0, "v100": 0.5, "titan": 0.0}
    assert {offer.confidence for offer in offers.values()} == {Confidence.STATED}
    assert [(entry.zones, dict(entry.accelerators)) for entry in job.resources] == [
        (("a100",), {"A100-40": 4}),
        (("v100",), {"V100-16": 1}),
        (("titan",), {"Titan-RTX-24": 1}),
    ]


def test_links_are_as_fast_as_the_inventory_says(tmp_path: Path) -> None:
    with_inventory(parse_job(JOB), on="slurm", cluster=written(tmp_path))
    links = load_network()
    a100 = Place(zone="a100", node=None, accelerator="A100-40", instance_type="lab-a100")
    titan = Place(zone="titan", node=None, accelerator="Titan-RTX-24", instance_type="lab-titan")
    v100 = Place(zone="v100", node=None, accelerator="V100-16", instance_type="lab-v100")
    assert links.link(a100, titan).bandwidth_bytes_per_s == pytest.approx(1 * GBIT_BYTES)
    assert links.link(titan, a100, pairs=2).bandwidth_bytes_per_s == pytest.approx(1 * GBIT_BYTES)
    assert 5 * GBIT_BYTES < links.link(a100, v100).bandwidth_bytes_per_s <= 25 * GBIT_BYTES
    assert links.egress("a100", "titan")[0].usd_per_gb == 0.0


def test_a_job_for_a_cluster_needs_no_resources_of_its_own(tmp_path: Path) -> None:
    job = job_with(JOB[: JOB.index("resources:")], tmp_path, written(tmp_path))
    assert [zone for entry in job.resources for zone in entry.zones] == list(read_inventory(written(tmp_path)).groups)
    with pytest.raises(RequestError, match="resources: is missing"):
        read_job(tmp_path / "job.yaml")


def test_a_command_on_a_cluster_takes_so_many_devices_as_its_job_names_from_any_groups(tmp_path: Path) -> None:
    cluster = written(tmp_path)
    of_gcp = "{provider: gcp, zones: [us-central1-a], markets: [spot], accelerators: {A100-40: 2, V100-16: 1}}"
    of_slurm = "{provider: slurm, zones: [a100], accelerators: {A100-40: 2}}"

    def on(resources: str) -> Job:
        text = f"{{name: ours, run: torchrun train.py, resources: [{resources}]}}"
        return with_inventory(parse_job(text), on="slurm", cluster=cluster)

    for job, nodes in ((on(of_gcp), ["a100", "v100"]), (on(of_slurm), ["a100"])):
        document = api.plan(job)
        assert document.plan is not None, document.infeasibility
        offers = document.inputs.offers_by_id()
        assert [offers[node.offer].zone for node in document.plan.nodes] == nodes
    assert on(f"{of_gcp}, {of_slurm}").resources == on(of_slurm).resources
    for count in (3, 6):
        with pytest.raises(
            RequestError, match=rf"{count} A100-40, which no group of lab has .*a100 4 A100-40 in nodes of 2"
        ):
            on(of_gcp.replace("A100-40: 2", f"A100-40: {count}"))
    whole = api.plan(job_with(JOB[: JOB.index("model:")] + "run: torchrun train.py\n", tmp_path, cluster))
    assert whole.plan is not None, whole.infeasibility
    assert len(whole.plan.nodes) == 4


def test_a_plan_on_a_cluster_that_costs_nothing_holds_the_inventory_and_ends_by_its_deadline(tmp_path: Path) -> None:
    free = INVENTORY.replace("usd_per_hour: 1.0", "usd_per_hour: 0").replace("usd_per_hour: 0.5", "usd_per_hour: 0")
    path = written(tmp_path, free)
    job = with_inventory(parse_job(SMALL_BATCH), on="slurm", cluster=path)
    path.unlink()
    document = api.plan(job)
    assert document.plan is not None
    assert document.cost is not None
    assert {offer.provider for offer in document.inputs.offers} == {"slurm"}
    assert document.cost.total_usd == 0.0
    assert document.ttl_s == 600.0 + 600.0
    assert PlanDocument.from_json(document.to_json()) == document


def test_an_inventory_is_the_same_after_it_was_written(tmp_path: Path) -> None:
    inventory = read_inventory(written(tmp_path))
    assert read_inventory(written(tmp_path, as_yaml(inventory))) == inventory


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("scheduler: slurm", "scheduler: pbs", "must be slurm or kubernetes"),
        ("scheduler: slurm", "scheduler: gcp", "must be slurm or kubernetes"),
        ("A100-40", "A100-41", "groups.a100.accelerator: 'A100-41' is no accelerator"),
        ("nodes: 2", "nodes: 0", "groups.a100.nodes"),
        ("nodes: 2", "nodes: 100000000", "must be less than or equal to 100000, got 100000000"),
        (", device_link_gb_per_s: 600", "", "say how fast they are linked"),
        ('gres: "gpu:a100"', 'gres: "gpu:a100:2; rm"', "groups.a100.gres: is 'gpu:a100:2; rm' (a resource without its"),
        ("between: [a100, titan]", "between: [a100, h100]", "the groups are a100, v100, titan"),
        ("checkpoints: /shared", "checkpoints: shared", "that begins with /, gs:// or s3://"),
        ("as_of: 2026-11-24", "colour: red", "is not a field here"),
        ("  a100: {", "  A 100: {", "groups.A 100: is 'A 100' (lower-case letters, digits and hyphens"),
        ("[cuda/12.6]", "[], mounts: [data]", "runtime.mounts[0]: is 'data' (an absolute path without spaces)"),
        ("[cuda/12.6]", "[cuda 12]", "runtime.modules[0]: is 'cuda 12' (names of modules without spaces"),
        ("account: physics", "namespace: A_b", "namespace: is 'A_b' (lower-case letters, digits and hyphens)"),
        ("account: physics", "queue: A b", "queue: is 'A b' (lower-case letters, digits, dots and hyphens)"),
        ("account: physics", "service_account: A", "service_account: is 'A' (lower-case letters, digits, dots"),
    ],
)
def test_a_wrong_inventory_is_one_clear_error(tmp_path: Path, old: str, new: str, fault: str) -> None:
    assert old in INVENTORY
    with pytest.raises(RequestError) as error:
        read_inventory(written(tmp_path, INVENTORY.replace(old, new, 1)))
    assert fault in str(error.value)
    assert error.value.exit_code == 2


def test_plan_takes_the_nodes_of_an_inventory_and_refuses_a_wrong_one(tmp_path: Path) -> None:
    job, path = tmp_path / "job.yaml", tmp_path / "plan.json"
    job.write_text(SMALL_BATCH)
    inventory = written(tmp_path)
    command = ("plan", str(job), "--on", "slurm", "--cluster")
    home = tmp_path / "home"
    done = called(*command, str(inventory), "-o", str(path), home=home)
    assert (done.returncode, "lab-" in path.read_text()) == (0, True), done.stderr
    inventory.write_text(INVENTORY.replace("nodes: 2", "nodes: 0"))
    done = called(*command, str(inventory), home=home)
    assert done.returncode == 2
    assert "cluster.yaml: groups.a100.nodes: must be greater than 0, got 0" in done.stderr
    assert "Traceback" not in done.stderr
    done = called(*command, str(tmp_path / "none.yaml"), home=home)
    assert done.returncode == 2
    assert "'sailor-cloud import slurm -o" in done.stderr


class ReachedError(Exception):
    """A command has read its job and calls the library."""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("explain", ("explain", "JOB")),
        ("compare", ("compare", "JOB")),
        ("simulate_layout", ("simulate", "JOB", "--layout", "dp=2", "--nodes", "1 x lab-a100@a100")),
        ("replay", ("replay", "TRACE", "JOB")),
    ],
)
def test_commands_that_take_a_job_take_a_cluster_in_the_place_of_its_resources(
    name: str, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, cluster, trace = tmp_path / "job.yaml", written(tmp_path), tmp_path / "trace.csv"
    path.write_text(JOB[: JOB.index("resources:")])
    trace.write_text("at_s,A100-40_a100\n0,4\n")

    def reached(job: Job, *rest: object, **options: object) -> None:
        assert [entry.provider for entry in job.resources] == ["slurm"] * 3
        raise ReachedError

    monkeypatch.setattr(api, name, reached)
    given = {"JOB": str(path), "TRACE": str(trace)}
    arguments = [given.get(word, word) for word in words]
    with pytest.raises(RequestError, match="resources: is missing"):
        cli(arguments, standalone_mode=False)
    with pytest.raises(ReachedError):
        cli([*arguments, "--on", "slurm", "--cluster", str(cluster)], standalone_mode=False)
    monkeypatch.setattr(clusters, "_known", {})
    cli(["quota", str(path), "--on", "slurm", "--cluster", str(cluster), "--json"], standalone_mode=False)


def test_a_plan_on_a_cluster_is_simulated_and_explained_where_nobody_has_read_its_inventory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = yaml.safe_load(JOB[: JOB.index("resources:")])
    cluster, path = written(tmp_path), tmp_path / "plan.json"
    made = api.simulate_layout(values, layout="dp=4", nodes=["2 x lab-a100@a100"], on="slurm", cluster=cluster)
    path.write_text(made.document.to_json())
    for use in (api.simulate, lambda document: api.explain(document, planned=stop)):
        monkeypatch.setattr(clusters, "_known", {})
        with suppress(ReachedError):
            use(PlanDocument.from_json(path.read_text()))
        assert clusters._known
    monkeypatch.setattr(clusters, "_known", {})
    assert api.simulate(path).prediction == made.evaluation.prediction
    with pytest.raises(RequestError, match="a plan has its nodes already"):
        api.explain(made.document, on="slurm")
    for name in ("simulate", "explain"):
        with pytest.raises(RequestError, match="belong to a job file"):
            cli([name, str(path), "--on", "slurm"], standalone_mode=False)
    command = {"name": "ours", "run": "python train.py"}
    assert api.plan(command, on="slurm", cluster=cluster).plan is not None


def test_an_inventory_that_nothing_uses_is_no_silent_no_op(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="nothing in the job uses the inventory lab; add --on slurm"):
        with_inventory(parse_job(JOB), cluster=written(tmp_path))


def stop(*so_far: object) -> None:
    raise ReachedError


def test_a_cluster_must_have_what_a_job_requests(tmp_path: Path) -> None:
    entry = "{provider: slurm, zones: [ZONE], markets: [on-demand], accelerators: {A100-40: NUMBER}}"
    text = JOB[: JOB.index("resources:")] + f"resources: [{entry}]\n"
    text = text.replace("cloud: {owner", "cloud: {cluster: cluster.yaml, owner")
    written(tmp_path)
    with pytest.raises(RequestError, match="is 5, and group a100 of lab has 4"):
        with_inventory(parse_job(text.replace("ZONE", "a100").replace("NUMBER", "5")), tmp_path)
    with pytest.raises(RequestError, match="'h100' is no group of lab"):
        with_inventory(parse_job(text.replace("ZONE", "h100").replace("NUMBER", "4")), tmp_path)
    fits = with_inventory(parse_job(text.replace("ZONE", "a100").replace("NUMBER", "4")), tmp_path)
    assert fits.cloud.inventory is not None
    with pytest.raises(RequestError, match="--on kubernetes, but the inventory lab is for slurm"):
        with_inventory(fits, on="kubernetes")
    with pytest.raises(RequestError, match="--on slurm needs an inventory"):
        with_inventory(parse_job(JOB), on="slurm")
