"""The tables by which Sailor's artifact evaluates plans, for its engine: times, sizes, curves and prices.

One file, FILE, next to the imported compute profiles. It holds what our fitted profiles and curves leave out: every
single layer, curves between unequal numbers of devices, and devices without a price.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.errors import DataError, RequestError
from sailor_cloud.interchange.sailor_names import (
    DEFAULT_SEQUENCE_LENGTH,
    SEQUENCE_LENGTHS,
    USD_PER_DEVICE_HOUR,
    our_accelerator,
    our_model,
)
from sailor_cloud.interchange.sailor_tree import Tree

Floats = NDArray[np.float64]

FILE = Path("sailor-artifact") / "tables.json"
_SCHEMA = "sailor-cloud/sailor-artifact-tables/1"
# The artifact's names for the floats per sample of a layer's parameters, kept activations, and output.
_SIZES = {"parameters": "params_floats", "kept": "act_mem_floats", "sent": "act_output_floats"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTables:
    """One model. `times` by accelerator, microbatch size and tp: forward, backward and update seconds, [layers, 3].

    Floats of one sample by tp, shape [layers]: `parameters` of a device, `kept` until the backward pass, and `sent`
    over a cut after each layer.
    """

    sequence_length: int
    times: Mapping[tuple[str, int, int], Floats]
    parameters: Mapping[int, Floats]
    kept: Mapping[int, Floats]
    sent: Mapping[int, Floats]

    @property
    def layers(self) -> int:
        return len(self.sent[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactTables:
    """The artifact's data. `curves` by zone, accelerator and number of devices of either end: a, b and c of the GB/s at
    the binary logarithm of megabytes. `usd_per_gb` by source and destination zone."""

    models: Mapping[str, ModelTables]
    curves: Mapping[tuple[str, str, int, str, str, int], tuple[float, float, float]]
    usd_per_gb: Mapping[tuple[str, str], float]
    usd_per_device_hour: Mapping[str, float]
    memory_bytes: Mapping[str, float]
    devices_per_node: Mapping[str, int]


def write_tables(path: Path, tree: Tree, *, as_of: str, source: str) -> None:
    """Write the tables of a tree. Raises DataError for a layer without sizes."""
    models = {
        our_model(name): _model(name, by_gpu, tree.sizes[name])
        for name, by_gpu in sorted(tree.times.items())
        if name in tree.sizes
    }
    curves = [
        [src_zone, our_accelerator(src), int(src_count), dst_zone, our_accelerator(dst), int(dst_count), *entry[0]]
        for src_zone, by_gpu in sorted(tree.between.items())
        for src, by_count in sorted(by_gpu.items())
        for src_count, by_zone in sorted(by_count.items())
        for dst_zone, by_dst in sorted(by_zone.items())
        for dst, by_dst_count in sorted(by_dst.items())
        for dst_count, entry in sorted(by_dst_count.items())
    ]
    nodes = {our_accelerator(gpu): shape for gpu, shape in sorted(tree.nodes.items()) if isinstance(shape, dict)}
    content = {
        "schema": _SCHEMA,
        "source": source,
        "as_of": as_of,
        "models": models,
        "curves": curves,
        "usd_per_gb": tree.usd_per_gb,
        "usd_per_device_hour": {our_accelerator(gpu): usd for gpu, usd in USD_PER_DEVICE_HOUR.items()},
        "memory_bytes": {name: shape["mem_per_gpu"] for name, shape in nodes.items()},
        "devices_per_node": {name: shape["gpus_per_node"] for name, shape in nodes.items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, separators=(",", ":")) + "\n", encoding="utf-8")


def _model(name: str, by_gpu: dict[str, Any], sizes: dict[str, Any]) -> dict[str, Any]:
    layers = max(len(table) for table in sizes.values())
    order = [str(layer) for layer in range(layers)]
    try:
        return {
            "sequence_length": SEQUENCE_LENGTHS.get(name, DEFAULT_SEQUENCE_LENGTH),
            "sizes": {
                ours: {tp: [sizes[tp][layer][theirs] for layer in order] for tp in sorted(sizes, key=int)}
                for ours, theirs in _SIZES.items()
            },
            "times": {
                our_accelerator(gpu): {
                    size: {tp: [table[layer] for layer in order] for tp, table in sorted(by_tp.items())}
                    for size, by_tp in sorted(by_size.items())
                }
                for gpu, by_size in sorted(by_gpu.items())
            },
        }
    except KeyError as error:
        raise DataError(f"the artifact's times and sizes of {name} lack {error} in some layer of {layers}") from error


def read_tables(profiles: Path | None) -> ArtifactTables:
    """Return the tables of a folder of imported compute profiles.

    Raises RequestError if there are none, and DataError for a file with another content than was written.
    """
    path = None if profiles is None else profiles / FILE
    if path is None or not path.is_file():
        where = "without --profiles" if path is None else f"and {path} is not there"
        raise RequestError(
            f"engine sailor-artifact has no tables {where}; run 'sailor-cloud import sailor-artifact DIR -o OUT' and "
            "give --profiles OUT/compute_profiles"
        )
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if raw["schema"] != _SCHEMA:
            raise DataError(f"{path} has schema {raw['schema']!r}, this version reads {_SCHEMA!r}; import it again")
        return ArtifactTables(
            models={name: _model_tables(entry) for name, entry in raw["models"].items()},
            curves={tuple(row[:6]): tuple(row[6:]) for row in raw["curves"]},
            usd_per_gb={(src, dst): usd for src, by_dst in raw["usd_per_gb"].items() for dst, usd in by_dst.items()},
            usd_per_device_hour=raw["usd_per_device_hour"],
            memory_bytes=raw["memory_bytes"],
            devices_per_node=raw["devices_per_node"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} is not as 'import sailor-artifact' writes it ({error!r}); import it again") from error


def _model_tables(entry: dict[str, Any]) -> ModelTables:
    sizes = {
        ours: {int(tp): np.array(values, dtype=np.float64) for tp, values in entry["sizes"][ours].items()}
        for ours in _SIZES
    }
    return ModelTables(
        sequence_length=entry["sequence_length"],
        times={
            (accelerator, int(size), int(tp)): np.array(rows, dtype=np.float64)
            for accelerator, by_size in entry["times"].items()
            for size, by_tp in by_size.items()
            for tp, rows in by_tp.items()
        },
        **sizes,
    )
