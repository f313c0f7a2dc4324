"""Imports the data files of Sailor's artifact, so that its users can bring their profiles, networks and clusters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from sailor_cloud import catalog
from sailor_cloud.interchange.sailor_jobs import write_jobs
from sailor_cloud.interchange.sailor_names import our_accelerator, our_model
from sailor_cloud.interchange.sailor_network import write_curves, write_egress, write_offers
from sailor_cloud.interchange.sailor_profiles import ArtifactProfiles, read_profiles, with_tf32, write_profiles
from sailor_cloud.interchange.sailor_tables import FILE, write_tables
from sailor_cloud.interchange.sailor_tree import Tree, read_tree
from sailor_cloud.model.offer import Precision

PROFILES, NETWORK, PRICING, JOBS = "compute_profiles", "bandwidth_profiles", "pricing", "jobs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """The written files, by folder.

    `tf32`: accelerators with models that ran in TF32. `unpriced`: accelerators without a price in the artifact, hence
    without offers. `differing`: models with GPUs whose times differ between the artifact's planner and simulator; the
    simulator's were taken.
    """

    folder: Path
    accelerators: tuple[str, ...]
    curves: int
    jobs: int
    tf32: tuple[str, ...]
    unpriced: tuple[str, ...]
    differing: tuple[tuple[str, str], ...]


# Gets the number of finished files, their total, and the current subject.
Progress = Callable[[int, int, str], None]
# Steps after the profiles: curves, prices, jobs.
_OTHERS = 3


def import_artifact(
    source: Path,
    out: Path,
    *,
    precision: Precision,
    as_of: date,
    progress: Progress = lambda done, of, what: None,
) -> Imported:
    """Read an artifact, and write compute profiles, its engine's tables, curves, prices and jobs under `out`.

    `source` is the root of its repository, or a folder with its data files.

    `precision` is that of the layer times, which the artifact's files do not state. `progress` counts the profiles of
    each accelerator and the three other folders. Raises RequestError for a folder that is not an artifact's and
    DataError for unreadable files.
    """
    tree = read_tree(source)
    day, origin = as_of.isoformat(), f"Sailor artifact, {source.resolve().name}"
    profiles = read_profiles(tree.times, tree.sizes)
    of = len(profiles.layers) + _OTHERS
    known = catalog.load()
    accelerators, tf32 = _write_profiles(
        profiles,
        known,
        out / PROFILES,
        precision=precision,
        as_of=day,
        origin=origin,
        progress=lambda done, accelerator: progress(done, of, f"fitting a profile of {accelerator}"),
    )
    write_tables(out / PROFILES / FILE, tree, as_of=day, source=origin)
    progress(of - 3, of, "writing bandwidth curves")
    curves = write_curves(
        out / NETWORK / "curves.csv",
        tree.between,
        tree.within,
        as_of=day,
        source=origin,
    )
    progress(of - 2, of, "writing prices")
    unpriced = _write_prices(tree, known, out / PRICING, as_of=day, origin=origin)
    progress(of - 1, of, "writing jobs")
    jobs = write_jobs(
        out / JOBS,
        list(tree.clusters),
        {training["model"]: training["global_batch_size"] for training in tree.trainings},
        precision,
        known,
    )
    return Imported(
        folder=out,
        accelerators=accelerators,
        curves=curves,
        jobs=jobs,
        tf32=tf32,
        unpriced=unpriced,
        differing=tuple((our_model(model), our_accelerator(gpu)) for model, gpu in tree.differing),
    )


def _write_profiles(
    profiles: ArtifactProfiles,
    known: catalog.Catalog,
    folder: Path,
    *,
    precision: Precision,
    as_of: str,
    origin: str,
    progress: Callable[[int, str], None],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Write the compute profiles; return the accelerators, and those with models that ran in TF32."""
    parts = {name: known.accelerator(name) for name in profiles.layers if name in known.accelerator_names()}
    written = write_profiles(
        folder, profiles, parts, precision=precision, as_of=as_of, source=origin, progress=progress
    )
    fast = [name for name, part in parts.items() if with_tf32(profiles.layers[name], part)]
    return written, tuple(fast) if precision is Precision.FP32 else ()


def _write_prices(tree: Tree, known: catalog.Catalog, folder: Path, *, as_of: str, origin: str) -> tuple[str, ...]:
    """Write egress prices and offers; return the accelerators without a price."""
    costs = tree.usd_per_gb
    write_egress(folder / "egress.csv", costs, known, as_of=as_of, source=origin)
    unpriced = write_offers(folder / "offers" / "sailor.csv", costs, tree.nodes, known, as_of=as_of, source=origin)
    return tuple(sorted(our_accelerator(name) for name in unpriced))
