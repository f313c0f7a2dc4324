"""Tables of published runs, read into typed records."""

from __future__ import annotations

import csv
import math
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "simulator_accuracy"))

import clusters
import fit_kernels
import unseen
from published import PROGRAMS, Recompute, is_failed, is_published, known_program, read_failed, read_published
from published_time import Timed, cases_of, not_in_bars, orders, predict
from reference import read_measured

from sailor_cloud.model.plan import PipelineSchedule
from sailor_cloud.units import GIB
from sailor_cloud.workload import Attention, parameter_count, profiles

ROW = {
    "id": "r1", "source": "maker/tables@0123456789 README.md", "source_date": "2024-01", "trust": "high",
    "framework": "Megatron-LM", "model": "gpt-small", "n_layers": "24.0", "hidden_size": "2048.0", "n_heads": "16.0",
    "n_kv_heads": "16.0", "ffn_size": "8192.0", "ffn_matrices": "2.0", "vocab_size": "51200.0", "tied": "1",
    "sequence_length": "2048", "gpu": "A100-80", "n_gpus": "16", "gpus_per_node": "8.0", "internode_network": "",
    "precision": "bf16", "tp": "4.0", "pp": "2.0", "dp": "2.0", "cp": "1.0", "zero_stage": "1.0",
    "microbatch_size": "2.0", "global_batch_size": "64.0", "recompute": "full", "attention": "plain", "compile": "",
    "tokens_per_s_per_gpu": "5000.0", "tflops_per_gpu": "", "iteration_s": "", "peak_memory_gib": "31.5", "note": "",
}  # fmt: skip
FAILED = {
    "model": "gpt-small", "n_nodes": "2", "tp": "4", "pp": "2", "dp": "2", "zero_stage": "1", "microbatch_size": "8",
    "grad_accum": "16", "global_batch_size": "256",
}  # fmt: skip


def table(folder: Path, *rows: dict[str, str]) -> Path:
    path = folder / "table.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)))
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_every_run_of_an_unseen_source_can_be_predicted_and_names_its_source() -> None:
    runs, unread = read_published(unseen.RUNS)
    assert not unread
    assert len({run.id for run in runs}) == len(runs)
    cases, unlaid = cases_of(runs, profiles.load())
    assert not unlaid
    assert not [not_in_bars(run) for run in runs if not_in_bars(run)]
    for case in cases:
        chunks = {len(stage.ranges) for pipeline in case.plan.pipelines for stage in pipeline.stages}
        assert chunks == {case.run.virtual_stages}
    with unseen.RUNS.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            assert row["address"].startswith("https://")
            assert row["source_date"][:2] == "20"
            assert row["eager_script"] in ("0", "1")


def test_a_run_of_sharded_copies_is_predicted_as_one_copy(tmp_path: Path) -> None:
    row = ROW | {"n_gpus": "64", "tp": "1", "pp": "1", "dp": "64", "zero_stage": "3", "global_batch_size": "128"}
    (whole, copy), unread = read_published(table(tmp_path, row, row | {"id": "r1", "shard_devices": "16"}))
    assert not unread
    assert (copy.devices, copy.dp, copy.global_batch_size) == (16, 16, 32)
    assert copy.microbatches == whole.microbatches
    assert copy.tokens_per_s_per_device == whole.tokens_per_s_per_device


def test_a_first_error_is_read(tmp_path: Path) -> None:
    runs, _ = read_published(table(tmp_path, ROW | {"first_error": "-0.25"}, ROW | {"first_error": ""}))
    assert [run.first_error for run in runs] == [-0.25, None]


def test_virtual_stages_are_read_and_one_is_1f1b(tmp_path: Path) -> None:
    runs, _ = read_published(table(tmp_path, ROW | {"virtual_stages": "3"}, ROW | {"virtual_stages": ""}))
    cases, _ = cases_of(runs, profiles.load())
    schedules = [case.plan.pipeline_schedule for case in cases]
    assert schedules == [PipelineSchedule.INTERLEAVED, PipelineSchedule.ONE_F_ONE_B]
    interleaved, plain = (predict(case).tokens_per_s for case in cases)
    assert interleaved > plain


def test_a_row_becomes_a_decoder_a_layout_and_an_engine(tmp_path: Path) -> None:
    (run,), unread = read_published(table(tmp_path, ROW))
    assert not unread
    assert (run.tp, run.pp, run.dp, run.zero_stage, run.microbatches) == (4, 2, 2, 1, 16)
    assert (run.engine.name, run.engine.attention, run.recompute) == ("megatron", Attention.PLAIN, Recompute.FULL)
    # 24 blocks of 12 h^2 + 13 h, 51,200 rows of a tied head, 2,048 positions, the last norm.
    assert parameter_count(run.decoder) == 24 * (12 * 2048**2 + 13 * 2048) + (51200 + 2048 + 2) * 2048
    assert run.peak_bytes == 31.5 * GIB
    assert run.source_name == "maker/tables README.md"


def test_rows_that_cant_be_read_are_reported_and_the_others_read(tmp_path: Path) -> None:
    bad = [
        ROW | {"id": "r2", "precision": "fp8"},
        ROW | {"id": "r3", "microbatch_size": ""},
        ROW | {"id": "r4", "ep": "8"},
        ROW | {"id": "r5", "dp": "inf"},
        ROW | {"id": "r6", "tokens_per_s_per_gpu": "0"},
        ROW | {"id": "r7", "n_heads": "many"},
    ]
    runs, unread = read_published(table(tmp_path, *bad, ROW))
    assert [run.id for run in runs] == ["r1"]
    assert [(row.id, row.reason) for row in unread] == [
        ("r2", "precision fp8 is not modelled"),
        ("r3", "microbatch_size is not stated"),
        ("r4", "expert parallelism 8 is not modelled"),
        ("r5", "dp is negative or not finite"),
        ("r6", "tokens_per_s_per_gpu is 0"),
        ("r7", "n_heads is no number"),
    ]
    without = {name: value for name, value in ROW.items() if name not in ("trust", "note", "zero_stage")}
    [run], unread = read_published(table(tmp_path, without))
    assert (not_in_bars(run), unread) == ("trust is not stated, not high or medium", ())


@pytest.mark.parametrize(
    ("changes", "engine"),
    [
        ({"framework": "megatron lm"}, "megatron"),
        ({"framework": "HF Trainer + Deepspeed ZeRO-3"}, "deepspeed"),
        ({"framework": "Lit-GPT FSDP"}, "fsdp"),
        ({"framework": "abacus"}, "megatron"),
        ({"framework": "abacus", "zero_stage": "3"}, "fsdp"),
        ({"framework": "abacus", "tp": "1", "pp": "1", "dp": "16"}, "fsdp"),
    ],
)
def test_a_program_is_known_however_it_is_spelt_and_others_run_as_their_layout_tells(
    tmp_path: Path, changes: dict[str, str], engine: str
) -> None:
    (run,), _ = read_published(table(tmp_path, ROW | changes))
    assert run.engine.name == engine
    assert (known_program(run.framework) is None) == (changes["framework"] == "abacus")


def test_derived_columns_may_be_missing(tmp_path: Path) -> None:
    bare = {"dp": "", "tokens_per_s_per_gpu": "", "iteration_s": "1.6384", "precision": "BF16", "recompute": "unknown"}
    (run,), unread = read_published(table(tmp_path, ROW | bare))
    assert not unread
    assert (run.dp, run.recompute, run.tokens_per_s_per_device) == (2, Recompute.UNKNOWN, 64 * 2048 / 1.6384 / 16)


def test_programs_that_are_like_another_one_keep_what_that_one_keeps() -> None:
    # From ZeRO-2 on only our own engine moves tensors layer by layer, and only it computes the loss in chunks.
    rules = [engine.memory for engine, _ in PROGRAMS.values() if engine.name != "sailor"]
    assert {(rule.by_layer, rule.logit_elements) for rule in rules} == {(False, math.inf)}


def test_a_failed_layout_takes_its_shape_from_the_runs_of_its_model(tmp_path: Path) -> None:
    (run,), _ = read_published(table(tmp_path, ROW))
    (failed,), unread = read_failed(table(tmp_path, FAILED), {run.decoder.name: run.decoder})
    assert not unread
    assert (failed.decoder, failed.devices, failed.peak_bytes, failed.engine.name) == (
        run.decoder,
        16,
        None,
        "nanotron",
    )
    _, (unknown,) = read_failed(table(tmp_path, FAILED), {})
    assert unknown.reason == "the shape of gpt-small is not known"


@pytest.mark.parametrize(("row", "published"), [(ROW, True), (FAILED, False)])
def test_the_header_determines_the_kind_of_table(row: dict[str, str], published: bool) -> None:
    assert (is_published(list(row)), is_failed(list(row))) == (published, not published)


def test_a_row_that_ends_early_is_reported_and_the_others_read(tmp_path: Path) -> None:
    path = table(tmp_path, ROW)
    with path.open("a", encoding="utf-8") as file:
        file.write("r2,maker\n")
    runs, unread = read_published(path)
    assert [run.id for run in runs] == ["r1"]
    assert [(each.id, each.reason) for each in unread] == [("r2", "n_gpus is not stated")]


MEASURED = {
    "file": "a/plan_config_N1.json", "model": "OPT-350", "nodes_per_stage_by_gpu": "1xGH-96 | 1xGH-96", "tp": "4",
    "mbs": "1", "gbs": "32", "iteration_time_s": "2.5", "max_mem_bytes": "", "layers_per_stage": "12 14",
}  # fmt: skip


def test_measured_iterations_may_lack_memory_and_bad_rows_are_reported(tmp_path: Path) -> None:
    bad = [MEASURED | {"nodes_per_stage_by_gpu": "GH-96"}, MEASURED | {"gbs": "many"}]
    rows, unread = read_measured(table(tmp_path, MEASURED, *bad))
    assert [(row.name, row.peak_bytes, row.microbatches) for row in rows] == [("N1", None, 32)]
    assert [row.reason for row in unread] == [
        "nodes_per_stage_by_gpu is GH-96",
        "gbs is many, not a whole number from 1 on",
    ]


def test_a_missed_bar_is_named_and_fails_the_benchmark() -> None:
    good = {"mean_of_means": 0.05, "mean_bias": -0.01, "mean_absolute_bias": 0.02, "spearman": 0.8}
    figures = good | {"spearman_large": 0.85, "starved": {"median": 0.2}}
    titles = (fit_kernels.SOURCES, fit_kernels.MODELS, fit_kernels.GENERAL)
    lines, met = fit_kernels.bars([(title, figures) for title in titles])
    assert met
    assert not any("MISSED" in line for line in lines)
    worse = figures | {"mean_bias": -0.05, "spearman_large": 0.83}
    lines, met = fit_kernels.bars([(fit_kernels.SOURCES, worse), *((title, figures) for title in titles[1:])])
    assert not met
    assert sum("MISSED" in line for line in lines) == 2
    fewer = figures | {"spearman_large": None, "starved": None}
    lines, met = fit_kernels.bars([(title, fewer) for title in titles])
    assert met
    assert sum("no rows" in line for line in lines) == 3


def test_runs_of_one_layout_have_no_order(tmp_path: Path) -> None:
    def predicted(speeds: list[float], microbatches: list[int]) -> list[Timed]:
        rows = [
            ROW | {"tokens_per_s_per_gpu": str(speed), "microbatch_size": str(size)}
            for speed, size in zip(speeds, microbatches, strict=True)
        ]
        runs, _ = read_published(table(tmp_path, *rows))
        return [Timed(run=run, tokens_per_s=1.0 * run.microbatch_size, error_p50=0.1, error_p90=0.2) for run in runs]

    assert orders(predicted([5.0, 6.0, 7.0, 8.0, 9.0], [2] * 5)) == []
    assert [each.spearman for each in orders(predicted([5.0, 6.0, 7.0, 8.0, 9.0], [1, 2, 4, 8, 16]))] == [
        pytest.approx(1.0)
    ]
    assert [each.spearman for each in orders(predicted([5.0] * 5, [1, 2, 4, 8, 16]))] == [0.0]


def test_the_links_of_published_v100_follow_from_the_size_of_their_nodes(tmp_path: Path) -> None:
    def linked(per_node: int, tp: int) -> float | None:
        row = {"gpu": "V100-32", "precision": "fp16", "gpus_per_node": str(per_node), "tp": str(tp), "n_gpus": "32"}
        row |= {"pp": "1", "dp": str(32 // tp), "global_batch_size": "64"}
        (run,), _ = read_published(table(tmp_path, ROW | row))
        _, scenario = clusters.scenario_of(run, profiles.load())
        assert scenario.ring_bytes_per_s("V100-32", tp) is None
        return scenario.catalog.accelerator("V100-32").ring_gb_per_s(tp)

    assert [linked(4, tp) for tp in (2, 4)] == [100, 300]
    assert [linked(8, tp) for tp in (2, 4, 8)] == [50, 200, 300]
    assert [linked(16, tp) for tp in (2, 8, 16)] == [300, 300, 300]
