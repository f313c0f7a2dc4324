"""Data of Sailor's artifact in our formats."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pytest

from factories.sailor_artifact import block_seconds, write_artifact, write_public_tree
from sailor_cloud import catalog, network
from sailor_cloud.errors import DataError, RequestError
from sailor_cloud.interchange import Imported, import_artifact
from sailor_cloud.interchange.sailor_tables import read_tables
from sailor_cloud.model.job import ModelSource
from sailor_cloud.model.job_file import parse_job
from sailor_cloud.model.offer import Precision
from sailor_cloud.network import Place
from sailor_cloud.workload import decoder, profiles

OPT = decoder(ModelSource(preset="sailor-opt-350"))


@pytest.fixture
def imported(tmp_path: Path) -> Imported:
    source = write_artifact(tmp_path / "artifact")
    return import_artifact(source, tmp_path / "out", precision=Precision.FP32, as_of=date(2026, 1, 2))


def test_profiles_answer_with_the_artifacts_own_times(imported: Imported) -> None:
    mine = profiles.load(profiles=imported.folder / "compute_profiles")
    assert imported.accelerators == ("A100-40", "Titan-RTX-24", "V100-16")
    found = mine.layer_times(
        catalog.load().accelerator("V100-16"),
        OPT,
        sequence_length=2048,
        microbatch_size=2,
        tp=4,
        precision=Precision.FP32,
    )
    forward, backward = block_seconds(2, 4, 1.0)
    assert found.forward_s[1] == pytest.approx(forward)
    assert found.backward_s[24] == pytest.approx(backward)
    assert found.forward_s[0] == pytest.approx(5e-4)
    assert found.forward_s[25] == pytest.approx(3 * forward)


def test_unmeasured_layers_come_from_a_fit(imported: Imported) -> None:
    mine = profiles.load(profiles=imported.folder / "compute_profiles")
    found = mine.layer_times(
        catalog.load().accelerator("V100-16"),
        OPT,
        sequence_length=2048,
        microbatch_size=8,
        tp=2,
        precision=Precision.FP32,
    )
    assert found.forward_s[1] == pytest.approx(block_seconds(8, 2, 1.0)[0], rel=0.02)


def test_models_that_ran_in_tf32_are_kept_apart_from_fp32(imported: Imported) -> None:
    """The A100's blocks are faster than its FP32 units can be; V100 and Titan have no TF32."""
    mine, shipped = profiles.load(profiles=imported.folder / "compute_profiles"), profiles.load()
    assert imported.tf32 == ("A100-40",)
    a100 = catalog.load().accelerator("A100-40")
    shape = {"sequence_length": 2048, "microbatch_size": 2, "tp": 1}
    for precision in (Precision.FP32, Precision.TF32):
        found = mine.layer_times(a100, OPT, precision=precision, **shape)
        assert found.forward_s[1] == pytest.approx(block_seconds(2, 1, 4.0)[0])
    other = decoder(ModelSource(preset="gpt2-xl"))
    known = shipped.layer_times(a100, other, precision=Precision.FP32, **shape)
    found = mine.layer_times(a100, other, precision=Precision.FP32, **shape)
    assert found.profile == known.profile
    assert mine.layer_times(a100, other, precision=Precision.TF32, **shape).profile.id == "A100-40.tf32"
    assert not (imported.folder / "compute_profiles" / "V100-16.tf32.json").exists()


def test_times_that_the_user_declares_to_be_half_precision_are_one_profile(tmp_path: Path) -> None:
    source = write_artifact(tmp_path / "artifact")
    done = import_artifact(source, tmp_path / "out", precision=Precision.FP16, as_of=date(2026, 1, 2))
    assert done.tf32 == ()
    assert sorted(path.name for path in (done.folder / "compute_profiles").glob("A100-40*")) == [
        "A100-40.csv",
        "A100-40.json",
    ]


def test_optimizer_times_are_per_block_of_the_two_that_were_timed(imported: Imported) -> None:
    rows = profiles.load(profiles=imported.folder / "compute_profiles").get("V100-16", Precision.FP32).measured
    [block] = [row for row in rows if (row.layer_kind, row.microbatch_size, row.tp) == ("block", 1, 1)]
    assert block.update_s == pytest.approx(1e-3)
    assert block.activation_bytes == 160_000_000


def test_the_network_uses_the_artifacts_curves_and_prices(imported: Imported) -> None:
    mine = network.load(profiles=imported.folder / "bandwidth_profiles", pricing=imported.folder / "pricing")
    src, dst = (
        Place(zone=zone, node=zone, accelerator="V100-16", instance_type="sailor-4xV100-16")
        for zone in ("us-central1-a", "us-central1-b")
    )
    assert mine.link(src, dst, pairs=2).transfer_s(1e6) == pytest.approx(1e6 / 2.0e9)
    for pair, usd in (
        (("us-central1-a", "us-central1-b"), 0.01),
        (("us-central1-a", "us-west1-b"), 0.02),
    ):
        assert [price.usd_per_gb for price in mine.egress(*pair)] == [usd]


def test_only_accelerators_that_the_artifact_prices_become_offers(imported: Imported) -> None:
    offers = catalog.load(pricing=imported.folder / "pricing").offers()
    assert {offer.accelerator for offer in offers} == {"A100-40", "V100-16"}
    assert {offer.usd_per_hour for offer in offers if offer.accelerator == "V100-16"} == {4 * 2.859998}
    assert {offer.as_of_from for offer in offers} == {date(2026, 1, 2)}
    assert imported.unpriced == ("Titan-RTX-24",)


def test_clusters_become_jobs_that_parse(imported: Imported) -> None:
    jobs = {path.stem: parse_job(path.read_text()) for path in (imported.folder / "jobs").glob("*.yaml")}
    assert imported.jobs == len(jobs) == 2
    first = jobs["mixed-0-opt-350"]
    assert first.training.global_batch_size == 64
    assert [(entry.zones, entry.accelerators) for entry in first.resources] == [
        (("us-central1-a",), {"A100-40": 8}),
        (("us-central1-b",), {"V100-16": 16}),
    ]
    assert [entry.zones for entry in jobs["mixed-1-opt-350"].resources] == [("us-central1-b",)]


def test_a_profile_without_logits_is_no_measurement_of_a_head(tmp_path: Path) -> None:
    source = write_artifact(tmp_path / "artifact")
    sizes = json.loads((source / "llm_info.json").read_text())
    for layers in sizes["OPT-350"].values():
        layers["25"] |= {"params_floats": 2048, "act_mem_floats": 4_000_000}
    (source / "llm_info.json").write_text(json.dumps(sizes))
    done = import_artifact(source, tmp_path / "out", precision=Precision.FP32, as_of=date(2026, 1, 2))
    rows = profiles.load(profiles=done.folder / "compute_profiles").get("V100-16", Precision.FP32).measured
    assert {str(row.layer_kind) for row in rows} == {"embedding", "block"}


def test_the_public_repository_is_read_as_it_is(tmp_path: Path) -> None:
    repository = write_public_tree(tmp_path / "public")
    done = import_artifact(repository, tmp_path / "out", precision=Precision.FP32, as_of=date(2026, 1, 2))
    assert (done.accelerators, done.jobs) == (("A100-40", "Titan-RTX-24", "V100-16"), 2)
    assert done.differing == (("sailor-opt-350", "V100-16"),)
    tables = read_tables(done.folder / "compute_profiles").models["sailor-opt-350"]
    # The simulator's times, which judge a plan, go before the planner's.
    assert tables.times["V100-16", 1, 1][1, 0] == block_seconds(1, 1, 1.0)[0]
    assert ("Titan-RTX-24", 4, 2) in tables.times


def test_a_public_tree_without_the_simulators_profiles_has_the_planners(tmp_path: Path) -> None:
    repository = write_public_tree(tmp_path / "public")
    (repository / "sailor/Planner/simulations/profiles_tmp.json").unlink()
    done = import_artifact(repository / "sailor", tmp_path / "out", precision=Precision.FP32, as_of=date(2026, 1, 2))
    tables = read_tables(done.folder / "compute_profiles").models["sailor-opt-350"]
    assert tables.times["V100-16", 1, 1][1, 0] == 2.0 * block_seconds(1, 1, 1.0)[0]
    assert done.differing == ()


def test_missing_files_of_a_tree_are_named_with_their_place(tmp_path: Path) -> None:
    repository = write_public_tree(tmp_path / "public")
    (repository / "sailor/providers/gcp/communication_cost.json").unlink()
    with pytest.raises(RequestError, match=r"it has no sailor/providers/gcp/communication_cost\.json"):
        import_artifact(repository, tmp_path / "out", precision=Precision.FP32, as_of=date(2026, 1, 2))


def test_a_folder_that_is_no_artifact_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"no tree of Sailor's artifact: it has no planner_profiles/<model>/<gpu>/"):
        import_artifact(tmp_path, tmp_path / "out", precision=Precision.FP32, as_of=date(2026, 1, 2))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("communication_cost.json", "{", "is not JSON"),
        (
            "communication_cost.json",
            json.dumps(
                {
                    "us-central1-a": {"us-central1-b": 0.01, "us-central1-c": 0.05},
                }
            ),
            "us-central1-a to us-central1-c costs 0.05, another pair like it 0.01",
        ),
        ("intra_node_bandwidths.json", '{"V100-16": {"2": [1, 2]}}', "bandwidth curve of V100-16 is not"),
        ("llm_info.json", '{"OPT-350": {"1": {"0": {}}}}', "times 26 layers of OPT-350, llm_info.json has 1"),
    ],
)
def test_a_broken_file_is_named_with_what_is_wrong(tmp_path: Path, name: str, content: str, message: str) -> None:
    source = write_artifact(tmp_path / "artifact")
    (source / name).write_text(content)
    with pytest.raises(DataError, match=message):
        import_artifact(source, tmp_path / "out", precision=Precision.FP32, as_of=date(2026, 1, 2))
