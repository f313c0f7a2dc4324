"""`simulate` of a layout on stated nodes, under any engine."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from factories.called import Answer, called
from sailor_cloud import simulator
from sailor_cloud.model.document import PlanDocument, Status
from sailor_cloud.report.plan.plan_markdown import plan_as_markdown

JOB = """
name: llama
model: {preset: llama-3-8b}
training: {global_batch_size: 128, sequence_length: 4096, steps: 100, precision: bf16}
resources:
  - {provider: gcp, zones: [us-central1-a], accelerators: {L4: 1}}
"""
LAYOUT = "tp=4 pp=2 dp=4 microbatch=1 zero=1"
NODES = "4 x a2-highgpu-8g@us-central1-a"
OWN_NODES = "4 x a2-highgpu-8g:8xA100-80@us-central1-a"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "job.yaml").write_text(JOB)
    return tmp_path


def simulated(folder: Path, *options: str, layout: str = LAYOUT, nodes: str = NODES, width: int = 110) -> Answer:
    command = ("simulate", "job.yaml", "--layout", layout, "--nodes", nodes, "--as-of", "2026-11-21", *options)
    return called(*command, cwd=folder, environment={"COLUMNS": str(width), "LANG": "C.UTF-8"})


def figures(answer: Answer) -> dict[str, Any]:
    assert answer.returncode == 0, answer.stderr
    read: dict[str, Any] = json.loads(answer.stdout)
    return read


def test_a_layout_is_predicted_on_nodes_outside_the_job_s_resources(folder: Path) -> None:
    answer = simulated(folder)
    assert answer.returncode == 0, answer.stderr
    title, *rest = answer.stdout.splitlines()
    assert title == "llama  plan as given, not searched"
    assert any(line.startswith("iteration   ") for line in rest)
    assert any("0-3: 32 x 1" in line and "16 A100-40" in line for line in rest)
    assert answer.stderr == ""


@pytest.mark.parametrize("width", [80, 110])
def test_the_report_keeps_to_the_width(folder: Path, width: int) -> None:
    shown = simulated(folder, width=width).stdout.splitlines()
    assert max(len(line) for line in shown) <= width


@pytest.mark.parametrize(
    ("engine", "layout", "told"),
    [
        ("sailor", f"{LAYOUT} recompute=selective", "(h) half of the activations are recomputed in the backward pass"),
        ("deepspeed", LAYOUT, "engine       deepspeed, which 'up' does not run"),
        ("megatron", f"{LAYOUT} recompute=selective", "(a) attention is recomputed in the backward pass"),
        ("fsdp", "tp=1 dp=32 zero=3 recompute=full", "ZeRO-3: every pipeline keeps a share of the state"),
        ("nanotron", LAYOUT, "engine       nanotron, which 'up' does not run"),
    ],
)
def test_every_engine_is_reported_with_its_sharding(folder: Path, engine: str, layout: str, told: str | None) -> None:
    answer = simulated(folder, "--engine", engine, layout=layout)
    assert answer.returncode == 0, answer.stderr
    assert (told in answer.stdout) if told else ("engine  " not in answer.stdout)


def test_a_plan_written_with_o_gives_the_same_numbers_again(folder: Path) -> None:
    first = figures(simulated(folder, "--engine", "megatron", "-o", "plan.json", "--json"))
    again = figures(called("simulate", "plan.json", "--json", cwd=folder))
    assert again == first
    assert again["engine"] == "megatron"
    document = PlanDocument.from_json((folder / "plan.json").read_text())
    assert (document.status, document.optimality_gap, document.objective) == (Status.GIVEN, None, None)


def test_uneven_pipelines_come_from_a_plan_document(folder: Path) -> None:
    even = figures(simulated(folder, "-o", "plan.json", "--json"))
    written = json.loads((folder / "plan.json").read_text())
    for pipeline in written["plan"]["pipelines"]:
        first, second = pipeline["stages"]
        first["end_layer"] = second["first_layer"] = 7
    (folder / "plan.json").write_text(json.dumps(written))
    uneven = figures(called("simulate", "plan.json", "--json", cwd=folder))
    assert uneven["prediction"]["iteration_s_replay"] > even["prediction"]["iteration_s_replay"]


def test_a_plan_may_be_simulated_under_another_engine(folder: Path) -> None:
    simulated(folder, "-o", "plan.json")
    other = figures(called("simulate", "plan.json", "--engine", "deepspeed", "--json", cwd=folder))
    assert other["engine"] == "deepspeed"


def test_a_machine_without_a_price_is_simulated_without_money(folder: Path) -> None:
    answer = simulated(folder, "-o", "plan.json", nodes=OWN_NODES)
    assert "USD" not in answer.stdout
    assert "no price is known of a2-highgpu-8g in us-central1-a; the report leaves money out" in answer.stdout
    read = figures(called("simulate", "plan.json", "--json", cwd=folder))
    assert read["cost"] is None
    assert read["prediction"]["iteration_s_replay"] > 0
    (machine,) = json.loads((folder / "plan.json").read_text())["inputs"]["unpriced"]
    assert (machine["accelerator"], "usd_per_hour" in machine) == ("A100-80", False)


@pytest.mark.parametrize(("nodes", "money"), [(NODES, True), (OWN_NODES, False)])
def test_the_page_shows_money_only_where_prices_are_known(folder: Path, nodes: str, money: bool) -> None:
    assert simulated(folder, "--html", "page.html", nodes=nodes).returncode == 0
    page = (folder / "page.html").read_text()
    assert "plan as given, not searched" in page
    assert ("USD" in page, 'id="cost"' in page, 'id="prices"' in page) == (money, money, money)


def test_a_report_in_markdown_has_no_money_without_prices(folder: Path) -> None:
    simulated(folder, "-o", "plan.json", nodes=OWN_NODES)
    shown = plan_as_markdown(PlanDocument.from_json((folder / "plan.json").read_text()))
    assert "USD" not in shown
    assert "| pipelines | stage | layers | devices | zone | nodes |\n" in shown


def test_two_engines_are_distinguished_by_diff(folder: Path) -> None:
    for engine in ("sailor", "megatron"):
        simulated(folder, "--engine", engine, "-o", f"{engine}.json", nodes=OWN_NODES)
    answer = called("diff", "sailor.json", "megatron.json", cwd=folder)
    assert answer.returncode == 0, answer.stderr
    assert re.search(r"engine\W+sailor\W+megatron", answer.stdout)


def test_several_kinds_of_nodes_make_one_plan(folder: Path) -> None:
    more = ("--nodes", "4 x a2-ultragpu-8g@us-central1-a")
    answer = simulated(folder, *more, layout="tp=8 pp=2 dp=4 recompute=full")
    assert answer.returncode == 0, answer.stderr
    assert "A100-40" in answer.stdout
    assert "A100-80" in answer.stdout


def test_a_plan_that_needs_too_much_memory_says_so_first_and_ends_as_infeasible(folder: Path) -> None:
    answer = simulated(folder, layout="tp=1 dp=32")
    assert answer.returncode == 3
    assert answer.stdout.startswith("does not fit: ")
    assert "does not fit: 32 of 32 stages need too much memory, up to " in answer.stdout


def test_all_faults_are_reported_at_once(folder: Path) -> None:
    answer = simulated(folder, layout="tp=3 pp=40 dp=7 zero=5 microbatch=3")
    assert answer.returncode == 2
    assert answer.stdout == ""
    assert answer.stderr.splitlines() == [
        "error: layout: tp 3 does not divide the 32 attention heads of llama-3-8b",
        "layout: pp 40 is more than the 32 blocks of llama-3-8b (every stage holds one block at least)",
        "layout: tp 3 does not divide the 8 devices of a2-highgpu-8g (the devices of a stage are on one node)",
        "layout: tp 3 x pp 40 x dp 7 = 840 devices, the nodes have 32",
        "layout: dp 7 x microbatch 3 does not divide the global batch of 128 "
        "(uneven pipelines are stated in a plan document)",
        "layout: sailor has no zero 5 with more than one stage (it has 0, 1, 2, 3)",
    ]


def test_meaningless_words_and_nodes_are_reported_together(folder: Path) -> None:
    answer = simulated(
        folder,
        *("--nodes", "2 x a2-highgpu-9g@us-central1-a"),
        *("--nodes", "2 x a2-highgpu-8g@us-central9-a"),
        *("--nodes", "2 x n1-standard-32@us-central1-a"),
        *("--nodes", "2 x a2-highgpu-8g@us-central1-a/cheap"),
        *("--nodes", "2 x a2-highgpu-8g:many@us-central1-a"),
        *("--nodes", "2 x 8xA100-41@us-central1-a"),
        *("--nodes", "0 x a2-highgpu-8g@us-central1-a"),
        *("--nodes", "1 x a2-highgpu-8g@europe-west2-a"),
        *("--nodes", "1 x a3-highgpu-1g@us-central1-a/on-demand"),
        layout="tp=x foo=1 tp=2 recompute=some",
        nodes="4 a2@us-central1-a",
    )
    assert answer.returncode == 2
    told = answer.stderr.splitlines()
    for place, message in enumerate(
        (
            "error: layout: 'tp=x' needs a whole number of at most six digits, as tp=2",
            "layout: 'foo=1' is not a degree; known: tp, pp, dp, microbatch, zero, chunks, recompute",
            "layout: tp is given twice",
            "layout: 'recompute=some' is not one of recompute=none, recompute=selective, recompute=full",
            "nodes[0]: '4 a2@us-central1-a' is not a group of nodes; write COUNT x TYPE@ZONE",
            "nodes[1]: no instance type 'a2-highgpu-9g' of gcp; did you mean",
            "nodes[2]: no zone 'us-central9-a'; did you mean",
            "nodes[3]: n1-standard-32 in us-central1-a carries ",
            "nodes[4]: no market 'cheap'; known: on-demand, spot",
            "nodes[5]: 'many' names no devices; write NxACCELERATOR",
            "nodes[6]: no instance type '8xA100-41' of gcp; of accelerators did you mean 'A100-40'",
            "nodes[7]: '0 x a2-highgpu-8g@us-central1-a' is no node",
            "nodes[8]: no price of a2-highgpu-8g in europe-west2-a; the nearest zone with one is europe-west4-a, and",
            "nodes[9]: no on-demand price of a3-highgpu-1g in us-central1-a; known: spot",
        )
    ):
        assert told[place].startswith(message), told[place]


def test_nodes_that_mean_nothing_do_not_hide_what_is_wrong_with_the_layout(folder: Path) -> None:
    answer = simulated(folder, layout="tp=3 dp=5 foo=1", nodes="4 x a2-highgpu-9g@us-central1-a")
    assert "'foo=1' is not a degree" in answer.stderr
    assert "no instance type 'a2-highgpu-9g'" in answer.stderr
    assert "tp 3 does not divide the 32 attention heads" in answer.stderr
    assert "dp 5 x microbatch 1 does not divide the global batch of 128" in answer.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--layout", "tp=1"), "--layout and --nodes belong together"),
        (("--nodes", NODES), "--layout and --nodes belong together"),
        ((), "job.yaml is a job file; give --layout and --nodes"),
        (("--engine", "jax"), "'jax' is not one of 'sailor', 'deepspeed', 'megatron', 'fsdp', 'nanotron'"),
    ],
)
def test_a_job_needs_a_layout_and_nodes(folder: Path, options: tuple[str, ...], message: str) -> None:
    answer = called("simulate", "job.yaml", *options, cwd=folder)
    assert answer.returncode == 2
    assert message in answer.stderr


def test_the_names_of_the_command_are_those_of_the_engines() -> None:
    from sailor_cloud.cli.terminal.options import ENGINES
    from sailor_cloud.simulator.engines.named import NAMES

    assert NAMES == ENGINES


def test_a_plan_is_not_written_into_a_file_of_another_format(folder: Path) -> None:
    answer = simulated(folder, "-o", "plan.md")
    assert answer.returncode == 2
    assert answer.stderr == (
        "error: can't write plan.md: -o writes a plan, so name a .json file; --html FILE writes a report\n"
    )


def test_ctrl_c_writes_nothing(folder: Path) -> None:
    with mock.patch.object(simulator, "evaluate", side_effect=KeyboardInterrupt):
        answer = simulated(folder, "-o", "plan.json")
    assert answer.returncode == 130
    assert answer.stdout == ""
    assert not (folder / "plan.json").exists()


def refused(folder: Path) -> list[str]:
    answer = called("up", "job.yaml", "--plan", "plan.json", "--dry-run", cwd=folder)
    assert answer.returncode == 2
    assert answer.stdout == ""
    return answer.stderr.splitlines()


def test_up_refuses_a_layout_of_another_engine_on_nodes_that_the_job_does_not_name(folder: Path) -> None:
    simulated(folder, "--engine", "fsdp", "-o", "plan.json", layout="dp=32")
    assert refused(folder) == [
        "error: plan: is for fsdp; 'up' runs sailor's own engine, so plan with --engine sailor, or give the job under "
        "'run' the command that starts fsdp",
    ]


def test_up_refuses_what_has_no_price_or_not_enough_memory(folder: Path) -> None:
    simulated(folder, "-o", "plan.json", layout="dp=32", nodes=OWN_NODES)
    assert refused(folder) == [
        "error: plan: has nodes without a price, a2-highgpu-8g in us-central1-a; only offers can be bought",
    ]
    (folder / "job.yaml").write_text(JOB.replace("{L4: 1}", "{A100-40: 32}"))
    simulated(folder, "-o", "plan.json", layout="dp=32")
    assert refused(folder) == ["error: plan: does not fit into the memory of its devices"]


def test_up_refuses_nodes_that_the_job_does_not_name(folder: Path) -> None:
    (folder / "job.yaml").write_text(JOB.replace("{L4: 1}", "{L4-24: 1}"))
    simulated(folder, "-o", "plan.json")
    assert all("which the job does not allow or no price is known for" in line for line in refused(folder))


def test_up_refuses_a_layout_that_breaks_the_job_s_limits(folder: Path) -> None:
    limits = "constraints: {budget_usd: 1.0, deadline: 1m, max_nodes: 3, min_throughput: 99}\n"
    (folder / "job.yaml").write_text(JOB.replace("{L4: 1}", "{A100-40: 16}") + limits)
    simulated(folder, "-o", "plan.json")
    told = refused(folder)
    for line, begin, end in zip(
        told,
        (
            "error: plan.nodes: has 32 A100-40 in us-central1-a",
            "plan: costs ",
            "plan: takes ",
            "plan: has 4 nodes",
            "plan: reaches ",
            "plan: the nodes would shut themselves down ",
        ),
        (
            "at most 16 may be bought",
            " USD, the job allows 1",
            " s, the job allows 60",
            "the job allows 3",
            "iterations/s, the job asks for 99",
            "give the --pricing, --network and --profiles it had)",
        ),
        strict=True,
    ):
        assert line.startswith(begin)
        assert line.endswith(end)


def test_up_carries_out_a_layout_that_the_job_allows(folder: Path) -> None:
    job = "{name: tiny, model: {model_type: gpt2, vocab_size: 256, hidden_size: 64, num_hidden_layers: 2,\n"
    job += " num_attention_heads: 2}, training: {global_batch_size: 8, sequence_length: 32, steps: 10},\n"
    job += " resources: [{provider: local, zones: [local-a], accelerators: {CPU-fast: 2}}],\n"
    job += " constraints: {budget_usd: 1.0}}\n"
    (folder / "job.yaml").write_text(job)
    given = simulated(folder, "-o", "plan.json", layout="pp=2", nodes="2 x local-cpu-fast@local-a")
    assert given.returncode == 0, given.stderr
    answer = called("up", "job.yaml", "--plan", "plan.json", "--dry-run", cwd=folder)
    assert answer.returncode == 0, answer.stderr
    assert "plan as given, not searched" in answer.stdout
