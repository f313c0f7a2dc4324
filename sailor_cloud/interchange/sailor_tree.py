"""Finds the data files of Sailor's artifact: in its public source tree, or together in one folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sailor_cloud.errors import DataError, RequestError

_CONFIGS = "basic_cluster_config.json"
# The names of the simulator's layer times, in the public tree and in a single folder.
_SIMULATORS = ("profiles_tmp.json", "simulator_profiles.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """The content of the artifact's files, in the artifact's format.

    `times` are the simulator's, [model][gpu][microbatch size][tp][layer]. `planner_only`: models with GPUs that only
    the planner's profiles have; `times` includes them. `differing`: those whose times differ between the two.
    """

    source: Path
    times: dict[str, Any]
    planner_only: tuple[tuple[str, str], ...]
    differing: tuple[tuple[str, str], ...]
    sizes: dict[str, Any]
    between: dict[str, Any]
    within: dict[str, Any]
    usd_per_gb: dict[str, Any]
    nodes: dict[str, Any]
    clusters: tuple[Path, ...]
    trainings: tuple[dict[str, Any], ...]


def read_tree(source: Path) -> Tree:
    """Read an artifact's published repository (`sailor/Planner`, `sailor/providers`), or one flat folder.

    Raises RequestError for another folder, with what it lacks, and DataError for unreadable files.
    """
    root = next((each for each in (source / "sailor", source) if (each / "Planner").is_dir()), None)
    if root is None:
        profiles, configs, providers = source / "planner_profiles", source / "configs", source
        sizes, prices, simulators = source / "llm_info.json", source / "communication_cost.json", source
    else:
        planner, providers = root / "Planner", root / "providers"
        profiles, configs = planner / "sailor_planner" / "profiles", planner / "simulations" / "configs"
        sizes, prices = planner / "llm_info.json", providers / "gcp" / "communication_cost.json"
        simulators = planner / "simulations"
    between, within = (providers / f"{name}.json" for name in ("multizone_bandwidths_het", "intra_node_bandwidths"))
    simulator = next((simulators / name for name in _SIMULATORS if (simulators / name).is_file()), None)
    planned = sorted(profiles.glob("*/*/profile.json"))
    missing = [path for path in (sizes, between, within, prices, configs / _CONFIGS) if not path.is_file()]
    if simulator is None and not planned:
        missing.insert(0, profiles / "<model>" / "<gpu>" / "profile.json")
    if missing:
        names = ", ".join(str(path.relative_to(source)) for path in missing)
        raise RequestError(
            f"{source} is no tree of Sailor's artifact: it has no {names}; "
            "give the root of its repository, or a folder with its data files"
        )
    times, only, differing = _merged({} if simulator is None else _read(simulator), planned)
    return Tree(
        source=source,
        times=times,
        planner_only=only,
        differing=differing,
        sizes=_read(sizes),
        between=_read(between),
        within=_read(within),
        usd_per_gb=_read(prices),
        nodes=_read(configs / _CONFIGS),
        clusters=tuple(sorted(configs.glob("gpu_trace_*.csv"))),
        trainings=tuple(_read(path) for path in sorted(configs.glob("training_config_*.json"))),
    )


def _merged(
    simulator: dict[str, Any], planned: list[Path]
) -> tuple[dict[str, Any], tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]:
    """Return the simulator's times, completed from the planner's; the completed entries; and those that differ."""
    times = {model: dict(by_gpu) for model, by_gpu in simulator.items()}
    only, differing = [], []
    for path in planned:
        model, gpu = path.parts[-3:-1]
        own = _read(path)
        known = times.setdefault(model, {}).setdefault(gpu, own)
        if known is own:
            only.append((model, gpu))
        elif known != own:
            differing.append((model, gpu))
    return times, tuple(only), tuple(differing)


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"can't read {path}: {error.strerror}") from error
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error}") from error
