"""Turns the clusters and training configurations of Sailor's artifact into job files."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import yaml

from sailor_cloud.catalog import Catalog
from sailor_cloud.errors import DataError
from sailor_cloud.interchange.sailor_names import (
    DEFAULT_SEQUENCE_LENGTH,
    MODELS,
    SEQUENCE_LENGTHS,
    our_accelerator,
)
from sailor_cloud.model.offer import Precision

_INDEX_COLUMNS = ("", "Timestamp")


def write_jobs(
    folder: Path, clusters: list[Path], trainings: dict[str, Any], precision: Precision, known: Catalog
) -> int:
    """Write one job per cluster row and training configuration of a known model; return their number.

    A cluster's columns are `<gpu>_<zone>` with their numbers of devices. Jobs have no number of steps. Raises DataError
    for a zone that the catalog lacks.
    """
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    for path in clusters:
        for number, devices in enumerate(_clusters(path)):
            for model, batch in sorted(trainings.items()):
                if model not in MODELS:
                    continue
                job = _job(f"{path.stem}-{number}-{model}", model, batch, devices, precision, known)
                text = yaml.safe_dump(job, sort_keys=False, default_flow_style=None, width=120)
                (folder / f"{job['name']}.yaml").write_text(text, encoding="utf-8")
                count += 1
    return count


def _clusters(path: Path) -> list[dict[str, dict[str, int]]]:
    """Return devices by zone and accelerator, per row."""
    found = []
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            zones: dict[str, dict[str, int]] = {}
            for column, value in row.items():
                if column in _INDEX_COLUMNS:
                    continue
                gpu, separator, zone = column.partition("_")
                if not separator:
                    raise DataError(f"{path}: column {column!r} is not <gpu>_<zone>")
                if int(value) > 0:
                    zones.setdefault(zone, {})[our_accelerator(gpu)] = int(value)
            found.append(zones)
    return found


def _job(
    title: str, model: str, batch: int, devices: dict[str, dict[str, int]], precision: Precision, known: Catalog
) -> dict[str, Any]:
    name = "".join(letter if letter.isalnum() else "-" for letter in title.lower().removeprefix("gpu_trace_"))
    return {
        "name": name[:40].strip("-"),
        "model": {"preset": MODELS[model]},
        "training": {
            "global_batch_size": batch,
            "sequence_length": SEQUENCE_LENGTHS.get(model, DEFAULT_SEQUENCE_LENGTH),
            "precision": precision.value,
        },
        "goal": "maximize-throughput",
        "resources": [
            {
                "provider": str(known.zone(zone).provider),
                "zones": [zone],
                "markets": ["on-demand"],
                "accelerators": counts,
            }
            for zone, counts in sorted(devices.items())
        ],
    }
