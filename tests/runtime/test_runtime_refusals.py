"""What a rank refuses at its start, and the atoms of a plan."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from factories import layered_module
from factories.run_specs import run_spec
from sailor_runtime.refusal import RefusedError
from sailor_runtime.spec import RunSpec
from sailor_runtime.training import trainer
from sailor_runtime.training.checkpoint.description import changed_settings, check_description, description
from sailor_runtime.training.optimizer import optimizer, precision
from sailor_runtime.training.optimizer.loss_scale import GROWTH_INTERVAL, LossScale
from sailor_runtime.training.pipeline import layout
from sailor_runtime.training.preflight import neighbours

ONE = [(12, 1, [(0, 6, 1)])]


def _changed(spec: RunSpec, part: str, **changes: object) -> RunSpec:
    return dataclasses.replace(spec, **{part: dataclasses.replace(getattr(spec, part), **changes)})


@pytest.mark.parametrize(
    ("part", "changes", "message"),
    [
        ("model", {"model_type": "mamba"}, "model type 'mamba' is not supported"),
        ("training", {"precision": "fp8"}, "precision 'fp8' is not supported"),
        ("training", {"global_batch_size": 13}, "pipelines train 12 samples, the batch has 13"),
        ("training", {"sequence_length": 17}, "sequence length 17 exceeds the model's 16 positions"),
        ("training", {"steps": 0}, "steps must be positive"),
    ],
)
def test_an_untrainable_job_is_refused(tmp_path, part, changes, message):
    with pytest.raises(RefusedError, match=message):
        trainer.check(_changed(run_spec(ONE, directory=tmp_path), part, **changes))


def test_an_unknown_zero_stage_is_refused(tmp_path):
    with pytest.raises(RefusedError, match="zero_stage 4 is not supported; supported: 0, 1, 2, 3"):
        trainer.check(run_spec(ONE, directory=tmp_path, zero_stage=4))


@pytest.mark.parametrize(
    ("pipelines", "message"),
    [
        ([(12, 1, [(0, 3, 1), (4, 6, 1)])], "expected them to start at 3"),
        ([(12, 1, [(0, 5, 1)])], "covers layers up to 5, the model has 6"),
        ([(12, 1, [(0, 6, 7)])], "has 6 indivisible pieces"),
    ],
)
def test_a_plan_that_does_not_fit_the_model_is_refused(tmp_path, pipelines, message):
    with pytest.raises(RefusedError, match=message):
        trainer.check(run_spec(pipelines, directory=tmp_path))


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize(
    ("pipelines", "training", "message"),
    [
        ([(8, 1, [(0, 6, 1)]), (4, 1, [(0, 6, 1)])], {}, "pipelines of one shape; pipeline 1 has another"),
        ([(6, 1, [(0, 6, 2)]), (6, 1, [(0, 6, 1)])], {}, "pipelines of one shape"),
        ([(6, 1, [(0, 3, 1), (3, 6, 1)]), (6, 1, [(0, 2, 1), (2, 6, 1)])], {}, "pipelines of one shape"),
        ([(6, 1, [(0, 6, 1)])] * 2, {"sync_every": 10}, "it can't be combined with sync_every"),
    ],
)
def test_zero_2_and_3_are_refused_where_ranks_would_not_meet(tmp_path, stage, pipelines, training, message):
    with pytest.raises(RefusedError, match=message):
        trainer.check(run_spec(pipelines, directory=tmp_path, zero_stage=stage, training=training))


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize(
    ("schedule", "stages"),
    [("zero-bubble", [(0, 3, 1), (3, 6, 1)]), ("interleaved", [(0, 2, 1, (3, 4)), (2, 3, 1, (4, 6))])],
)
def test_zero_2_and_3_are_refused_beside_other_schedules_than_1f1b(tmp_path, stage, schedule, stages):
    with pytest.raises(RefusedError, match=f"the backward passes of 1f1b; it can't be combined with {schedule}"):
        trainer.check(run_spec([(3, 2, stages)] * 2, directory=tmp_path, zero_stage=stage, pipeline_schedule=schedule))


@pytest.mark.parametrize(
    ("schedule", "pipeline", "message"),
    [
        ("1f1b", (3, 4, [(0, 2, 1, (3, 4)), (2, 3, 1, (4, 6))]), "hold 2 ranges of layers; one each is what 1f1b has"),
        ("interleaved", (3, 4, [(0, 3, 1), (3, 6, 1)]), "hold 1 ranges of layers; as many, two or more, each"),
        ("interleaved", (3, 4, [(0, 2, 1, (4, 6)), (2, 4, 1)]), "hold 1 and 2 ranges of layers"),
        ("interleaved", (12, 1, [(0, 2, 1, (3, 4)), (2, 3, 1, (4, 6))]), "1 microbatches, no multiple of 2 to 3, as"),
        (
            "interleaved",
            (3, 4, [(0, 2, 1, (3, 5)), (2, 3, 1, (4, 6))]),
            r"holds layers \[4, 6\), expected them to start",
        ),
    ],
)
def test_ranges_that_no_schedule_takes_are_refused(tmp_path, schedule, pipeline, message):
    with pytest.raises(RefusedError, match=message):
        trainer.check(run_spec([pipeline], directory=tmp_path, pipeline_schedule=schedule))


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ("gpipe", "unknown pipeline schedule 'gpipe'; known: 1f1b, zero-bubble, interleaved"),
        ("zero-bubble", "a zero-bubble schedule halves backward passes, which compiled layers can't: leave one out"),
    ],
)
def test_a_schedule_that_cannot_be_run_is_refused(tmp_path, schedule, message):
    spec = run_spec(ONE, directory=tmp_path, training={"compile": True}, pipeline_schedule=schedule)
    with pytest.raises(RefusedError, match=message):
        trainer.check(spec)


@pytest.mark.parametrize(
    ("stages", "schedule", "pairs"),
    [
        ([(0, 2, 1), (2, 4, 1), (4, 6, 1)], "1f1b", [(0, 1), (1, 2)]),
        ([(0, 1, 1, (3, 4)), (1, 2, 1, (4, 5)), (2, 3, 1, (5, 6))], "interleaved", [(0, 1), (1, 2), (2, 0)]),
    ],
)
def test_links_are_measured_where_tensors_go(tmp_path, stages, schedule, pairs):
    spec = run_spec([(2, 6, stages)], directory=tmp_path, pipeline_schedule=schedule)
    trainer.check(spec)
    found = neighbours(spec.pipelines[0])
    assert [(before.ranks[0], after.ranks[0]) for before, after in found] == pairs


def test_a_rank_says_in_one_line_why_it_refuses(tmp_path):
    spec = _changed(run_spec(ONE, directory=tmp_path), "model", model_type="mamba")
    (tmp_path / "spec.json").write_text(spec.to_json())
    command = [sys.executable, "-m", "sailor_runtime.training", "--spec", str(tmp_path / "spec.json"), "--rank", "0"]
    command += ["--events", str(tmp_path / "events"), "--home", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("sailor_runtime: model type 'mamba' is not supported")
    assert "Traceback" not in done.stderr


def test_atoms_of_three_against_two_cover_each_parameter_once(tmp_path):
    spec = run_spec([(6, 1, [(0, 6, 3)]), (6, 1, [(0, 6, 2)])], directory=tmp_path)
    found = [atom for atom in layout.atoms(spec) if atom.parameter == "transformer.h.0.attn.c_attn.weight"]
    # Six heads of four columns, of queries, keys and values: three ranks cut each at 8 and 16, two at 12.
    assert [(atom.start, atom.end, atom.holders) for atom in found] == [
        (first + start, first + end, holders)
        for first in (0, 24, 48)
        for start, end, holders in [(0, 8, (0, 3)), (8, 12, (1, 3)), (12, 16, (1, 4)), (16, 24, (2, 4))]
    ]


def test_a_replicated_parameter_gets_one_contribution_from_each_copy(tmp_path):
    spec = run_spec([(6, 1, [(0, 6, 3)]), (6, 1, [(0, 6, 2)])], directory=tmp_path)
    [atom] = [atom for atom in layout.atoms(spec) if atom.parameter == "transformer.ln_f.weight"]
    assert atom.holders == (0, 1, 2, 3, 4)
    assert atom.contributors == {0, 3}


def test_a_tied_head_shares_the_atoms_of_the_embedding(tmp_path):
    spec = run_spec([(12, 1, [(0, 3, 1), (3, 6, 2)])], directory=tmp_path)
    found = [atom for atom in layout.atoms(spec) if atom.parameter == "transformer.wte.weight"]
    assert [atom.holders for atom in found] == [(0, 1), (0, 2)]


def test_tf32_is_refused_on_processors():
    with pytest.raises(RefusedError, match="'tf32' needs a CUDA device; use 'fp32' on processors"):
        precision.set_up("tf32", torch.device("cpu"))


def test_the_loss_scale_falls_with_overflows_and_grows_after_many_good_steps():
    scale = LossScale(scale=8.0, dynamic=True)
    scale.update(overflowed=True)
    assert scale.scale == 4.0
    for _ in range(GROWTH_INTERVAL):
        scale.update(overflowed=False)
    assert scale.scale == 8.0
    for _ in range(30):
        scale.update(overflowed=True)
    assert scale.exhausted


def _saved(spec: RunSpec, data: dict[str, object]) -> dict[str, object]:
    return json.loads(json.dumps(description(_engine(spec), data=data, notes={})))


def _engine(spec: RunSpec) -> SimpleNamespace:
    return SimpleNamespace(spec=spec, next_step=4, islands=1, updates=4, scale=LossScale())


DATA = {"samples": 60, "sha256": "a" * 64}


@pytest.mark.parametrize(
    ("part", "changes", "message"),
    [
        ("model", {"blocks": 5}, "checkpoint run/step-4 has model.blocks 4, the job 5; a job continues from its own"),
        ("training", {"seed": 7}, "has seed 0, the job 7"),
        ("training", {"optimizer": "sgd"}, "has optimizer 'adamw', the job 'sgd'"),
        ("training", {"global_batch_size": 6}, "has global_batch_size 12, the job 6"),
    ],
)
def test_a_job_does_not_continue_from_the_checkpoint_of_another(tmp_path, part, changes, message):
    spec = run_spec(ONE, directory=tmp_path)
    check_description(_saved(spec, DATA), spec, DATA, where="run/step-4")
    with pytest.raises(RefusedError, match=message):
        check_description(_saved(spec, DATA), _changed(spec, part, **changes), DATA, where="run/step-4")


def test_a_module_continues_beside_other_changed_files_but_not_with_other_layers(tmp_path, monkeypatch):
    (tmp_path / "layers_of_mine.py").write_text(Path(layered_module.__file__).read_text())
    monkeypatch.syspath_prepend(tmp_path)
    try:
        spec = run_spec(ONE, directory=tmp_path, model={"module": "layers_of_mine:build", "code": "code/abc"})
        saved = _saved(spec, DATA)
        check_description(saved, _changed(spec, "model", code="code/def", setup="true"), DATA, where="run/step-4")
        (tmp_path / "layers_of_mine.py").write_text(Path(layered_module.__file__).read_text() + "\n")
        with pytest.raises(RefusedError, match=r"checkpoint run/step-4 has module\.files\.layers_of_mine '"):
            check_description(saved, spec, DATA, where="run/step-4")
        saved["module"]["parameters"]["layers.0.tokens.weight"] = [[65, 24], True]
        saved["module"]["files"] = description(_engine(spec), data=DATA, notes={})["module"]["files"]
        with pytest.raises(RefusedError, match=r"has module\.parameters\.layers\.0\.tokens\.weight \[\[65, 24\]"):
            check_description(saved, spec, DATA, where="run/step-4")
    finally:
        sys.modules.pop("layers_of_mine", None)


def test_a_module_continues_from_an_older_checkpoint_of_the_same_folder_and_seed_0(tmp_path):
    model = {"module": "factories.layered_module:build", "code": "code/abc"}
    spec = run_spec(ONE, directory=tmp_path, model=model)
    saved = _saved(spec, DATA)
    del saved["module"]
    saved["model"]["code"] = "code/abc"
    check_description(saved, spec, DATA, where="run/step-4")
    with pytest.raises(RefusedError, match=r"has model\.code 'code/abc', the job 'code/def'"):
        check_description(saved, _changed(spec, "model", code="code/def"), DATA, where="run/step-4")
    with pytest.raises(RefusedError, match=r"from seed 0, whatever training\.seed 7; finish the job with that version"):
        check_description({**saved, "seed": 7}, _changed(spec, "training", seed=7), DATA, where="run/step-4")


def test_another_run_does_not_continue_from_a_checkpoint_with_all_its_steps_and_names_other_settings(tmp_path):
    spec = run_spec(ONE, directory=tmp_path, training={"steps": 4})
    saved = _saved(spec, DATA)
    check_description(saved, spec, DATA, where="run/step-4")
    other = _changed(dataclasses.replace(spec, run="sweep-b"), "training", learning_rate=0.5)
    message = r"has step 4 of training.steps 4: already trained; nothing to do \(this job has learning_rate 0.5 inst"
    with pytest.raises(RefusedError, match=message):
        check_description(saved, other, DATA, where="run/step-4")
    longer = _changed(other, "training", steps=5)
    check_description(saved, longer, DATA, where="run/step-4")
    assert changed_settings(saved, longer) == ["learning_rate 0.5 instead of 0.01", "steps 5 instead of 4"]


def test_a_checkpoint_of_an_earlier_format_is_refused_with_the_way_on(tmp_path):
    spec = run_spec(ONE, directory=tmp_path)
    with pytest.raises(RefusedError, match="run/step-4 has format 1, this version reads 2; export it with"):
        check_description({**_saved(spec, DATA), "format": 1}, spec, DATA, where="run/step-4")


def test_a_job_may_continue_with_another_plan_more_steps_and_another_adamw_but_not_with_other_data(tmp_path):
    spec = run_spec(ONE, directory=tmp_path)
    other = run_spec([(6, 2, [(0, 3, 2), (3, 6, 1)])], directory=tmp_path, zero_stage=1, training={"steps": 99})
    other = _changed(_changed(other, "training", optimizer="fused-adam"), "model", weights="/models/first", seed=3)
    check_description(_saved(spec, DATA), other, DATA, where="run/step-4")
    with pytest.raises(RefusedError, match="was made with other data: 60 samples an epoch then, 61 now"):
        check_description(_saved(spec, DATA), other, {**DATA, "samples": 61}, where="run/step-4")
    check_description(_saved(spec, DATA), other, None, where="run/step-4")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lion", "unknown optimizer 'lion'; known: adamw, sgd, cpu-adam, fused-adam"),
        ("fused-adam", "'fused-adam' needs a CUDA device"),
        (
            "cpu-adam",
            r"needs DeepSpeed's extension cpu_adam, which is not in .*build it .*extensions cpu_adam",
        ),
    ],
)
def test_an_optimizer_that_this_node_lacks_is_refused_before_anything_is_compiled(name, message, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    with pytest.raises(RefusedError, match=message):
        optimizer.check(name, torch.device("cpu"))
    assert list(tmp_path.iterdir()) == []


def test_weights_in_float64_get_an_optimizer_that_is_exact_in_it(tmp_path):
    training = run_spec(ONE, directory=tmp_path, training={"optimizer": "cpu-adam"}).training
    weight = torch.zeros(3, 3, dtype=torch.float64, requires_grad=True)
    assert isinstance(optimizer.build(training, [weight]), torch.optim.AdamW)


@pytest.mark.parametrize(("sockets", "network"), [(True, "Socket"), (False, "IB")])
def test_a_rank_joins_with_the_network_of_its_generation(tmp_path, monkeypatch, sockets, network):
    found = []

    def joined(*_, **__):
        found.append(os.environ["NCCL_NET"])
        raise RefusedError("far enough")

    monkeypatch.setenv("NCCL_NET", "IB")
    monkeypatch.setattr(trainer, "World", joined)
    spec = run_spec(ONE, directory=tmp_path, sockets=sockets)
    with pytest.raises(RefusedError, match="far enough"):
        trainer.run(spec, 0, mock.Mock(), mock.Mock(), metrics=tmp_path)
    assert found == [network]
