"""The description of a checkpoint besides its tensors, and whether a job may continue from it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from sailor_runtime.refusal import RefusedError
from sailor_runtime.spec import ModelSpec, RunSpec
from sailor_runtime.training.engine import Engine
from sailor_runtime.training.model.architecture import architecture_of, range_parameters
from sailor_runtime.training.model.sources import source_files
from sailor_runtime.training.model.user_module import UserModule
from sailor_runtime.training.optimizer import optimizer

# 2: parameters have the names of transformers' modules.
FORMAT = 2


def description(engine: Engine, *, data: Mapping[str, Any] | None, notes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the saved state of an engine besides its tensors; `data` identifies its training data."""
    return {
        **_of_job(engine.spec),
        "training": dataclasses.asdict(engine.spec.training),
        "step": engine.next_step,
        "islands": engine.islands,
        "updates": engine.updates,
        "loss_scale": engine.scale.scale,
        "good_steps": engine.scale.good_steps,
        "samples": engine.next_step * engine.spec.training.global_batch_size,
        "run": engine.spec.run,
        "generation": engine.spec.generation,
        "plan_hash": engine.spec.plan_hash,
        "data": data,
        "notes": dict(notes),
    }


def check_description(saved: Mapping[str, Any], spec: RunSpec, data: Mapping[str, Any] | None, *, where: str) -> None:
    """Raise RefusedError if a job can't continue from the checkpoint at `where`; `data` is None for any."""
    if saved.get("format") != FORMAT:
        raise RefusedError(
            f"checkpoint {where} has format {saved.get('format')!r}, this version reads {FORMAT}; export it with the "
            "version that made it, and name that folder as model.weights in a job with another checkpoint.to"
        )
    # A round trip through JSON turns tuples into lists, as in the saved description.
    expected = json.loads(json.dumps(_of_job(spec)))
    if "module" not in saved and spec.model.module is not None:
        # Older versions built every module from seed 0, and compared all of the user's folder.
        if spec.training.seed != 0:
            raise RefusedError(
                f"checkpoint {where} is of a version that built {spec.model.module} from seed 0, whatever "
                f"training.seed {spec.training.seed}; finish the job with that version"
            )
        expected["model"] |= {"code": spec.model.code, "setup": spec.model.setup}
        del expected["module"]
    for key, wanted in expected.items():
        found = saved.get(key)
        if found != wanted:
            raise RefusedError(
                f"checkpoint {where} has {_difference(key, found, wanted)}; a job continues from its own checkpoints "
                "only, so keep those of this one elsewhere"
            )
    if saved["step"] >= spec.training.steps and saved["run"] != spec.run:
        settings = ", ".join(changed_settings(saved, spec))
        other = f" (this job has {settings})" if settings else ""
        raise RefusedError(
            f"checkpoint {where} has step {saved['step']} of training.steps {spec.training.steps}: already trained; "
            f"nothing to do{other}; name another checkpoint.to to train again, or raise training.steps"
        )
    then = saved.get("data")
    if then is not None and data is not None and then != data:
        raise RefusedError(
            f"checkpoint {where} was made with other data: {then['samples']} samples an epoch then, {data['samples']} "
            "now, and not the same ones; training can't continue where it was. Give it that data again, or keep "
            "checkpoints elsewhere and begin from the exported weights"
        )


def changed_settings(saved: Mapping[str, Any], spec: RunSpec) -> list[str]:
    """Return the settings of training that differ from those of a checkpoint, in words."""
    before, now = saved.get("training", {}), dataclasses.asdict(spec.training)
    names = sorted(name for name in before if name in now and before[name] != now[name])
    return [f"{name} {now[name]!r} instead of {before[name]!r}" for name in names]


def _of_job(spec: RunSpec) -> dict[str, Any]:
    """Return the properties that a checkpoint and a continuing job must share."""
    training = spec.training
    # The source of the first weights no longer matters, and other files of the user's folder are not the model.
    model = dataclasses.asdict(dataclasses.replace(spec.model, weights=None, code=None, setup=None))
    # That of the job, below; older checkpoints lack it here.
    del model["seed"]
    return {
        "format": FORMAT,
        "model": model,
        "module": _of_module(spec.model),
        "optimizer": optimizer.rule(training.optimizer),
        "sequence_length": training.sequence_length,
        "global_batch_size": training.global_batch_size,
        "seed": training.seed,
    }


def _of_module(model: ModelSpec) -> dict[str, Any] | None:
    """Return what defines a user's module: its parameters, and the files with its layers."""
    architecture = architecture_of(model)
    if model.module is None or not isinstance(architecture, UserModule):
        return None
    specs = range_parameters(model, range(model.layers))
    return {
        "files": source_files(architecture.root, model.module),
        "parameters": {name: [list(spec.shape), spec.trainable] for name, spec in specs.items()},
    }


def _difference(key: str, found: Any, wanted: Any) -> str:
    """Return the first difference in words."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        first = next(name for name in sorted({*found, *wanted}) if found.get(name) != wanted.get(name))
        return _difference(f"{key}.{first}", found.get(first), wanted.get(first))
    return f"{key} {found!r}, the job {wanted!r}"
