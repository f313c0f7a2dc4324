"""A plan file is input, not truth: whatever is forged in one, nothing is bought by it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from factories.called import Answer, called
from factories.cloud_plans import (
    AWS_OFFERS,
    GCP_OFFERS,
    apart_document,
    aws_document,
    cloud_document,
    gcp_document,
)
from factories.documents import document
from factories.honest import honest
from factories.reserved import entry
from sailor_cloud import api, catalog
from sailor_cloud.clock import SystemClock
from sailor_cloud.errors import RequestError
from sailor_cloud.model.document import Decision, Pick, PlanDocument, Status
from sailor_cloud.model.offer import Market
from sailor_cloud.planner.space.candidates import collect

Raw = dict[str, Any]
Forgery = Callable[[Raw], None]
ESCAPE = "\x1b[2J\x1b]0;owned\x07"


@cache
def plans() -> dict[str, PlanDocument]:
    made = {"local": document(), "gcp": gcp_document(), "aws": aws_document(), "two": two_clouds()}
    return {name: honest(planned) for name, planned in made.items()} | {
        "turns": honest(in_turns()),
        "block": in_block(),
    }


def two_clouds() -> PlanDocument:
    """A pipeline on each of two clouds."""
    planned = apart_document(("n0", GCP_OFFERS[1]), ("n1", AWS_OFFERS[1]), image=None)
    assert planned.plan is not None
    pipelines = tuple(
        replace(pipeline, stages=(replace(pipeline.stages[0], end_layer=6),)) for pipeline in planned.plan.pipelines
    )
    training = planned.job.training.model_copy(update={"global_batch_size": 2})
    job = planned.job.model_copy(update={"training": training})
    return replace(planned, job=job, plan=replace(planned.plan, pipelines=pipelines))


def in_turns() -> PlanDocument:
    """Two stages that take turns with two ranges of layers each."""
    planned = gcp_document()
    assert planned.plan is not None
    plan = planned.plan.interleaved(2)
    assert plan is not None
    training = planned.job.training.model_copy(update={"interleaved": True})
    return replace(planned, plan=plan, job=planned.job.model_copy(update={"training": training}))


def in_block() -> PlanDocument:
    """Nodes in a capacity block that ended a day ago."""
    planned = honest(cloud_document(("n0", AWS_OFFERS[0]), ("n1", AWS_OFFERS[0])))
    assert planned.plan is not None
    (old,) = planned.inputs.offers
    now = SystemClock().now()
    times = {"starts_at": (now - timedelta(days=2)).isoformat(), "ends_at": (now - timedelta(days=1)).isoformat()}
    place = {"zone": old.zone, "instance_type": old.instance_type, "as_of": now.date().isoformat()}
    (resource,) = planned.job.resources
    markets = (Market.CAPACITY_BLOCK,)
    job = planned.job.model_copy(
        update={
            "resources": (resource.model_copy(update={"markets": markets}),),
            "cloud": planned.job.cloud.model_copy(update={"capacity": (entry(**place, **times),)}),
        }
    )
    (offer,) = (pool.offer for pool in collect(job, catalog.load()).pools)
    nodes = tuple(replace(node, offer=offer.id) for node in planned.plan.nodes)
    return replace(
        planned,
        job=job,
        plan=replace(planned.plan, nodes=nodes),
        inputs=replace(planned.inputs, offers=(offer,)),
    )


def dry_run(folder: Path, text: str | bytes, job: str) -> Answer:
    """Show what a plan would buy, without asking any cloud; a refusal comes before that, as it would before buying."""
    (folder / "job.yaml").write_text(job)
    (folder / "plan.json").write_bytes(text.encode() if isinstance(text, str) else text)
    options = ("--dry-run", "--ssh-from", "203.0.113.7/32")
    return called("up", "job.yaml", "--plan", "plan.json", *options, home=folder / "home", cwd=folder)


def put(path: str, value: object) -> Forgery:
    """Return what sets a field; `path` has dots between names and numbers."""

    def forge(raw: Raw) -> None:
        *way, last = [int(part) if part.isdigit() else part for part in path.split(".")]
        inner: Any = raw
        for part in way:
            inner = inner[part]
        assert inner[last] != value
        inner[last] = value

    return forge


def rename_node(name: str) -> Forgery:
    def forge(raw: Raw) -> None:
        old = raw["plan"]["nodes"][0]["id"]
        raw["plan"]["nodes"][0]["id"] = name
        for pipeline in raw["plan"]["pipelines"]:
            for stage in pipeline["stages"]:
                stage["node"] = name if stage["node"] == old else stage["node"]

    return forge


def rename_offer(name: str) -> Forgery:
    """Give the first node's offer another name everywhere, as if there were such a thing to buy."""

    def forge(raw: Raw) -> None:
        old = raw["plan"]["nodes"][0]["offer"]
        for node in raw["plan"]["nodes"]:
            node["offer"] = name if node["offer"] == old else node["offer"]
        for offer in raw["inputs"]["offers"]:
            offer["id"] = name if offer["id"] == old else offer["id"]

    return forge


def more_nodes(raw: Raw) -> None:
    """Ask for ten times as many nodes; none of the new ones is used."""
    first = raw["plan"]["nodes"][0]
    raw["plan"]["nodes"] += [{**first, "id": f"more-{number}"} for number in range(10)]


def same_node_twice(raw: Raw) -> None:
    raw["plan"]["nodes"].append(dict(raw["plan"]["nodes"][0]))


def same_pipeline_twice(raw: Raw) -> None:
    raw["plan"]["pipelines"].append(dict(raw["plan"]["pipelines"][0]))


def still_machine(raw: Raw) -> None:
    raw["inputs"]["machine"] = {"cores": 1, "speed": 0.0}


def larger_budget(raw: Raw) -> None:
    raw["constraints"]["budget_usd"] = 1e6


def twice_the_layers(raw: Raw) -> None:
    raw["plan"]["pipelines"][0]["stages"][-1]["end_layer"] *= 2


def swap_providers(raw: Raw) -> None:
    for offer in raw["inputs"]["offers"]:
        offer["provider"] = {"gcp": "aws", "aws": "gcp"}[offer["provider"]]


def half_the_worst_case(raw: Raw) -> None:
    raw["cost"]["worst_case_usd"] /= 2


def without_a_cloud(raw: Raw) -> None:
    raw["plan"]["nodes"].pop()
    raw["plan"]["pipelines"].pop()
    raw["plan"]["pipelines"][0]["microbatches"] = 2


_RANGES = "plan.pipelines.0.stages.0.later_ranges"
# What is forged in an honest plan, and what is said of it.
FORGED: dict[str, tuple[str, Forgery, str]] = {
    "price of a cent": ("aws", put("inputs.offers.0.usd_per_hour", 0.01), "usd_per_hour: the file says 0.01 USD/h"),
    "price below nothing": ("aws", put("inputs.offers.0.usd_per_hour", -5), "the file says -5 USD/h"),
    "price of nothing": ("gcp", put("inputs.offers.0.usd_per_hour", 0), "the file says 0 USD/h"),
    "price that is no number": ("gcp", put("inputs.offers.0.usd_per_hour", float("nan")), "must be a finite number"),
    "endless price": ("gcp", put("inputs.offers.0.usd_per_hour", float("inf")), "must be a finite number"),
    "price as text": ("gcp", put("inputs.offers.0.usd_per_hour", "cheap"), "usd_per_hour"),
    "rate of the whole run": ("aws", put("cost.usd_per_hour", 0.5), "cost.usd_per_hour: the file says 0.5 USD/h"),
    "worst rate": ("aws", put("cost.worst_case_usd_per_hour", 0.5), "cost.worst_case_usd_per_hour"),
    "money of the whole run": ("gcp", put("cost.total_usd", 0.001), "cost.total_usd: the file says 0.001 USD"),
    "time of an iteration": ("gcp", put("prediction.iteration_s_replay", 1e-9), "prediction.iteration_s_replay"),
    "lifetime of 115 days": ("gcp", put("ttl_s", 1e7), "ttl_s: the file says 1e+07 s"),
    "lifetime below nothing": ("gcp", put("ttl_s", -1), "ttl_s: the file says -1 s"),
    "no lifetime": ("gcp", put("ttl_s", None), "ttl_s: the file says nothing"),
    "another zone": ("gcp", put("inputs.offers.0.zone", "us-east1-b"), "zone: the file says 'us-east1-b'"),
    "another region": ("aws", put("inputs.offers.0.region", "eu-north-1"), "region: the file says 'eu-north-1'"),
    "another machine": ("aws", put("inputs.offers.0.instance_type", "p5.48xlarge"), "the file says 'p5.48xlarge'"),
    "another market": ("aws", put("inputs.offers.0.market", "reserved"), "inputs.offers.0.market"),
    "another provider": ("gcp", put("inputs.offers.0.provider", "aws"), "provider: the file says"),
    "more devices in an offer": ("gcp", put("inputs.offers.0.accelerator_count", 16), "accelerator_count: the file"),
    "another accelerator": ("gcp", put("inputs.offers.0.accelerator", "H100-80"), "accelerator: the file says"),
    "an offer that nobody has": ("gcp", rename_offer("free-lunch"), "which the job does not allow"),
    "a machine that stands still": ("local", still_machine, "inputs.machine.speed: Input should be greater than 0"),
    "an offer with a path": ("gcp", rename_offer("../../etc/passwd"), "which the job does not allow"),
    "more devices in a node": ("gcp", put("plan.nodes.0.devices", 16), "has 16 devices"),
    "a node that is a path": ("local", rename_node("../../../../x"), "plan.nodes.0.id"),
    "a node with an escape": ("local", rename_node(ESCAPE), "holds control characters"),
    "a node with a blank": ("local", rename_node("n0; rm -rf /"), "plan.nodes.0.id"),
    "a node without a name": ("local", rename_node(""), "plan.nodes.0.id"),
    "a node with a long name": ("local", rename_node("n" * 500), "plan.nodes.0.id"),
    "one node twice": ("local", same_node_twice, "more than once"),
    "more nodes than allowed": ("local", more_nodes, "at most 2 may be bought"),
    "another budget": ("gcp", larger_budget, "constraints: are not those of the job"),
    "another precision": ("gcp", put("plan.precision", "tf32"), "plan.precision: is tf32, the job trains in fp32"),
    "a stage of ZeRO that is not there": ("gcp", put("plan.zero_stage", 4), "has zero 4"),
    "layers that are not there": ("local", twice_the_layers, "the model has"),
    "no microbatches": ("local", put("plan.pipelines.0.microbatches", 0), "must be positive"),
    "a device that is not there": ("local", put("plan.pipelines.0.stages.0.devices", [7]), "uses device 7"),
    "a pipeline below nothing": ("gcp", put("plan.pipelines.0.id", -1), "plan.pipelines.0.id"),
    "one pipeline twice": ("local", same_pipeline_twice, "have the id 0 more than once"),
    "an escape in a reason": ("local", put("rejected", [{"what": ESCAPE, "why": "x"}]), "holds control characters"),
    "a mark that turns text": ("local", put("cost.lines.0.what", "gpj.\u200fexe"), "holds control characters"),
    "more digits than a float has": ("gcp", put("inputs.offers.0.usd_per_hour", 10**400), "usd_per_hour"),
    "more samples than there are": ("gcp", put("plan.pipelines.0.microbatch_size", 2**63), "pipelines train"),
    "a device far away": ("gcp", put("plan.pipelines.0.stages.0.devices", [10**30]), "uses device 1000000"),
    "a node on the other cloud": ("two", put("plan.pipelines.0.stages.0.node", "n1"), "a second time"),
    "providers that have changed places": ("two", swap_providers, "provider: the file says"),
    "half of what two clouds may cost": ("two", half_the_worst_case, "cost.worst_case_usd: the file says"),
    "one of two clouds left out": ("two", without_a_cloud, "prediction.iteration_s_replay: the file says"),
    "ranges of layers that overlap": ("turns", put(f"{_RANGES}.0.0", 0), "expected to start at 3"),
    "a range of layers without any": ("turns", put(f"{_RANGES}.0.1", 3), "hold at least one"),
    "a range of layers that is missing": ("turns", put(_RANGES, []), "expected to start at 3"),
    "too many ranges of layers": ("turns", put(_RANGES, [[3, 5]] * 10_000), "problems more"),
    "a schedule without turns": ("turns", put("plan.pipeline_schedule", "1f1b"), "has stages with 2 ranges"),
    "a block that has ended": ("block", lambda raw: None, "the nodes would shut themselves down before they start"),
    "text that turns around": ("local", put("cost.lines.0.what", "gpj.\u202eexe"), "holds control characters"),
}


@pytest.mark.parametrize("kind", FORGED)
def test_a_forged_plan_is_refused_with_the_reason(kind: str, tmp_path: Path) -> None:
    name, forge, fault = FORGED[kind]
    honest_plan = plans()[name]
    raw = json.loads(honest_plan.to_json())
    forge(raw)
    answer = dry_run(tmp_path, json.dumps(raw), honest_plan.job.model_dump_json())
    assert answer.returncode == 2, answer.stdout
    assert fault in answer.stderr
    assert "Traceback" not in answer.stderr
    assert not any(character in answer.stderr for character in "\x1b\x07\u200f\u202e")
    assert len(answer.stderr.splitlines()) <= 51
    assert answer.stdout == ""


def test_a_field_that_stands_twice_is_refused(tmp_path: Path) -> None:
    honest_plan = plans()["gcp"]
    text = honest_plan.to_json().replace('"ttl_s":', '"ttl_s": 60.0, "ttl_s":', 1)
    answer = dry_run(tmp_path, text, honest_plan.job.model_dump_json())
    assert answer.returncode == 2
    assert "plan.json: has 'ttl_s' more than once in one object" in answer.stderr


@pytest.mark.parametrize("name", ["local", "gcp", "aws", "two", "turns"])
def test_an_unmodified_plan_is_carried_out(name: str, tmp_path: Path) -> None:
    planned = plans()[name]
    answer = dry_run(tmp_path, planned.to_json(), planned.job.model_dump_json())
    assert answer.returncode == 0, answer.stderr
    assert "nothing was created" in answer.stderr
    assert "the file says" not in answer.stderr


def test_a_small_difference_is_reported_and_what_is_found_here_counts(tmp_path: Path) -> None:
    planned = plans()["aws"]
    assert planned.ttl_s is not None
    older = replace(planned, ttl_s=planned.ttl_s * 1.02)
    answer = dry_run(tmp_path, older.to_json(), planned.job.model_dump_json())
    assert answer.returncode == 0, answer.stderr
    found = f"ttl_s: the file says {older.ttl_s:.6g} s, here it is {planned.ttl_s:.6g} s"
    assert found in answer.stderr


def test_claims_of_a_file_about_other_plans_and_its_proof_are_not_trusted(tmp_path: Path) -> None:
    planned = plans()["gcp"]
    raw = json.loads(planned.to_json())
    raw |= {"status": "optimal", "optimality_gap": 0.0, "bound": 1e-9, "search": {"seconds": 1e9}}
    raw["objective"] = {"goal": planned.job.goal.value, "value": 1e9, "unit": "owned"}
    raw["gap_parts"] = [{"what": "owned", "amount": 1e9, "unit": "s"}]
    raw["rejected"] = [{"what": "owned", "why": "owned"}]
    raw["frontier"] = [
        {
            "iteration_s": 1.0,
            "throughput_iterations_per_s": 1.0,
            "usd_per_hour": 0.01,
            "usd_per_iteration": 0.01,
            "total_usd": 0.01,
            "devices": {"owned": 1},
            "zones": ["owned"],
        }
    ]
    left_out = {"subject": "zone", "name": "owned", "why": "owned"}
    raw["decision"] = {"chosen": "cheapest", "asked": "cheapest", "choices": [], "left_out": [left_out]}
    answer = dry_run(tmp_path, json.dumps(raw), planned.job.model_dump_json())
    assert answer.returncode == 0, answer.stderr
    assert "plan as given, not searched" in answer.stdout
    assert not any(word in answer.stdout for word in ("owned", "optimal", "proven", "frontier"))
    found = api.verify(PlanDocument.from_json(json.dumps(raw))).document
    assert (found.status, found.objective, found.bound, found.optimality_gap) == (Status.GIVEN, None, None, None)
    assert found.decision == Decision(chosen=Pick.CHEAPEST, asked=Pick.CHEAPEST, choices=(), left_out=())


@pytest.mark.parametrize(
    "command",
    [("diff", "plan.json"), ("explain",), ("explain", "--why-not", "local-a"), ("export", "--format", "slurm")],
)
def test_a_node_of_an_offer_that_the_file_does_not_describe_is_one_clear_error(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    raw = json.loads(plans()["local"].to_json())
    raw["plan"]["nodes"][0]["offer"] = "nowhere"
    (tmp_path / "plan.json").write_text(json.dumps(raw))
    name, *rest = command
    answer = called(name, "plan.json", *rest, cwd=tmp_path)
    assert answer.returncode == 2
    assert answer.stderr.splitlines() == ["error: plan.nodes[0]: is of 'nowhere', which inputs don't describe"]


@pytest.mark.parametrize(
    ("forge", "fault"),
    [
        (put("plan.pipelines.0.stages.0.node", "nobody"), "plan.pipelines[0].stages[0]: names unknown node 'nobody'"),
        (put("plan.pipelines", []), "plan.pipelines: are none"),
    ],
)
@pytest.mark.parametrize("form", ["sailor-artifact", "torchtitan", "skypilot", "slurm"])
def test_a_plan_whose_stages_are_on_no_node_is_not_exported(
    form: str, forge: Forgery, fault: str, tmp_path: Path
) -> None:
    raw = json.loads(plans()["gcp"].to_json())
    forge(raw)
    (tmp_path / "plan.json").write_text(json.dumps(raw))
    answer = called("export", "plan.json", "--format", form, cwd=tmp_path)
    assert answer.returncode == 2
    assert answer.stderr.splitlines() == [f"error: {fault}"]


def test_a_choice_that_a_file_does_not_hold_is_one_clear_error() -> None:
    planned = plans()["gcp"]
    empty = Decision(chosen=Pick.CHEAPEST, asked=None, choices=(), left_out=())
    with pytest.raises(RequestError, match="the plan document holds no fastest plan to choose; write it again with"):
        api.choose(replace(planned, decision=empty), Pick.FASTEST)


def test_a_plan_that_breaks_a_limit_of_its_job_is_refused(tmp_path: Path) -> None:
    planned = plans()["gcp"]
    limits = planned.job.constraints.model_copy(update={"max_usd_per_hour": 0.5})
    job = planned.job.model_copy(update={"constraints": limits})
    answer = dry_run(tmp_path, replace(planned, job=job, constraints=limits).to_json(), job.model_dump_json())
    assert answer.returncode == 2
    assert "USD/h, the job allows 0.5" in answer.stderr


def deep(opening: str) -> bytes:
    return b'{"schema_version": 1, "x": ' + opening.encode() * 200_000


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "is not JSON"),
        (b"\x00" * 4096, "is not JSON"),
        (b"\xff\xfe\x00", "is not JSON"),
        (b'{"schema_version": 1', "is not JSON"),
        (deep("["), "is not JSON"),
        (deep('{"a": '), "is not JSON"),
        (b'{"schema_version": 1, "x": ' + b"[" * 400 + b"]" * 400 + b"}", "is nested more than 50 deep"),
        (b"[1]", "schema_version: is None"),
        (b'{"schema_version": 1}', "Field required"),
        (b'{"schema_version": 1, "x": 1e999}', "must be a finite number"),
        (b" " * (17 * 2**20), "is larger than 16,384 KiB"),
    ],
    ids=["empty", "zeros", "no text", "cut", "deep", "deep names", "nested", "a list", "bare", "endless", "large"],
)
def test_a_file_that_is_no_plan_is_one_clear_error(content: bytes, fault: str, tmp_path: Path) -> None:
    answer = dry_run(tmp_path, content, plans()["local"].job.model_dump_json())
    assert answer.returncode == 2
    assert fault in answer.stderr
    assert "Traceback" not in answer.stderr


LAUGHS = "a0: &a0 [x, x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n" for level in range(1, 12)
)
MERGES = "a0: &a0 {x: 1}\n" + "".join(
    f"a{level}: &a{level} {{<<: [{', '.join([f'*a{level - 1}'] * 10)}]}}\n" for level in range(1, 12)
)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (LAUGHS, "holds more than 10,000 values"),
        (MERGES, "merges more than 10,000 values"),
        ("&a [*a]", "has the alias *a within &a, a loop, at line 1, column 5"),
        ("[" * 60_000, "is nested more than 50 deep"),
        ("x: [" + "1, " * 20_000 + "1]", "holds more than 10,000 values"),
        ("#" * 100_000, "is larger than 64 KiB"),
        ('name: "\\e[2J"', "name: holds control characters: '\\x1b[2J'"),
        ("constraints: {budget_usd: .nan}", "constraints.budget_usd: is nan"),
        ("name: 2026-13-01", "is not YAML: month must be in 1..12"),
    ],
    ids=["aliases", "merges", "itself", "deep", "long", "large", "escape", "no number", "no date"],
)
def test_a_job_file_that_explodes_is_one_clear_error(text: str, fault: str, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(text)
    answer = called("plan", "job.yaml", cwd=tmp_path)
    assert answer.returncode == 2
    (line,) = answer.stderr.splitlines()
    assert fault in line
