"""Buffers that a module's forward pass changes: saved, restored and exported, or refused where a plan alters them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from factories import layered_module
from factories.plan_world import Member
from factories.run_specs import TINY, run_spec
from sailor_runtime.manifest import FileSum, encode
from sailor_runtime.refusal import RefusedError
from sailor_runtime.spec import ModelSpec
from sailor_runtime.training import export, verify
from sailor_runtime.training.checkpoint.checkpoint import Checkpoints
from sailor_runtime.training.checkpoint.description import FORMAT
from sailor_runtime.training.model.user_module import UserModule

RUNNING_MEAN = {"module": "factories.layered_module:build_with_running_mean"}


def _member(folder: Path, size: int = 12, count: int = 1, **fields: Any) -> Member:
    spec = run_spec([(size, count, [(0, 6, 1)])], directory=folder, model=RUNNING_MEAN, **fields)
    return Member(spec, 0)


def test_a_buffer_that_training_changes_continues_from_a_checkpoint_and_is_exported(tmp_path, monkeypatch, capsys):
    member = _member(tmp_path)
    try:
        whole = member.engine()
        expected = [whole.step().loss for _ in range(4)]
        checkpoints = Checkpoints(tmp_path / "checkpoints", 3, member.world, member.atoms)
        first = member.engine()
        for _ in range(2):
            first.step()
        checkpoints.begin(first)
        checkpoints.wait()
        second = member.engine()
        checkpoints.load(second, "step-2")
        assert [second.step().loss for _ in range(2)] == expected[2:]
    finally:
        member.world.close()
    monkeypatch.setattr(
        "sys.argv", ["export", "--checkpoint", str(tmp_path / "checkpoints/step-2"), "--out", str(tmp_path / "model")]
    )
    assert export.main() == 0
    out = capsys.readouterr().out
    assert "of factories.layered_module:build_with_running_mean to" in out
    assert "from_pretrained" not in out
    exported = load_file(tmp_path / "model" / "model.safetensors")
    root = nn.Module()
    root.layers = nn.ModuleList(layered_module.build_with_running_mean().layers())
    found = root.load_state_dict(exported, strict=False)
    assert (found.missing_keys, found.unexpected_keys) == (["layers.5.logits.weight"], []), "tied to the embedding"
    assert torch.equal(root.layers[5].logits.weight, exported["layers.0.tokens.weight"])
    assert exported["layers.1.mean"].abs().sum() > 0.0
    assert exported["layers.1.mask"].dtype == torch.bool, "unchanged, and not a weight"


def test_an_export_holds_the_frozen_weights_and_buffers_of_the_jobs_seed(tmp_path):
    model = {"module": "factories.own_modules:frozen_and_noise", "seed": 3}
    spec = run_spec([(12, 1, [(0, 6, 1)])], directory=tmp_path, model=model, training={"seed": 3})
    member = Member(spec, 0)
    try:
        checkpoints = Checkpoints(tmp_path / "checkpoints", 3, member.world, member.atoms)
        checkpoints.begin(member.engine())
        checkpoints.wait()
    finally:
        member.world.close()
    export.export(tmp_path / "checkpoints" / "step-0", tmp_path / "model")
    exported = load_file(tmp_path / "model" / "model.safetensors")
    built = UserModule(spec.model)
    assert torch.equal(exported["layers.1.wide.weight"], built.root.get_parameter("layers.1.wide.weight"))
    assert torch.equal(exported["layers.2.noise"], built.first_buffers()["layers.2.noise"])


def test_a_plan_in_one_pass_equals_one_process_and_one_in_two_names_the_buffer(tmp_path):
    member = _member(tmp_path)
    try:
        outcome = verify.verify(
            member.engine(), member.world, member.samples, steps=2, tolerance=verify.TOLERANCE, alive=lambda: None
        )
        assert outcome.passed
    finally:
        member.world.close()
    for case in ({"size": 6, "count": 2}, {"recompute": 1}, {"accelerators": {"node-0": "CPU-slow"}}):
        member = _member(tmp_path, **case)
        try:
            engine = member.engine()
            engine.step()
            with pytest.raises(RefusedError, match=r"layers\.1\.mean of factories.* changes in forward passes"):
                engine.step()
        finally:
            member.world.close()


def test_a_buffer_with_a_number_that_is_none_has_not_changed(tmp_path):
    model = {"module": "factories.own_modules:marked"}
    member = Member(run_spec([(6, 2, [(0, 6, 1)])], directory=tmp_path, model=model), 0)
    try:
        engine = member.engine()
        for _ in range(2):
            engine.step()
        assert engine.module.buffers is not None
        assert not engine.module.buffers.changed()
    finally:
        member.world.close()


def test_an_export_outside_the_workdir_says_where_to_run(tmp_path):
    model = dataclasses.asdict(ModelSpec(**{**TINY, "module": "not_here.model:build"}))
    (tmp_path / "step-2").mkdir()
    about = {"format": FORMAT, "step": 2, "seed": 0, "model": model}
    sums = [FileSum(name=".metadata", size=0, sha256="")]
    (tmp_path / "step-2" / "sailor.json").write_text(encode(about, sums))
    with pytest.raises(RefusedError, match=r"No module named 'not_here'.*; run this in the job's workdir"):
        export.export(tmp_path / "step-2", tmp_path / "model")
