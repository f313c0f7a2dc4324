"""Providers are names: those that are built in, and those that packages outside register."""

from __future__ import annotations

import copy
import pickle
from importlib.metadata import EntryPoint

import pytest

from factories.documents import job
from sailor_cloud.errors import RequestError
from sailor_cloud.model import provider
from sailor_cloud.model.job import Job
from sailor_cloud.model.job_file import parse_job
from sailor_cloud.model.provider import Provider, module_of, names, registered


def job_of(name: str) -> Job:
    described = job().model_dump(mode="json")
    described["resources"][0]["provider"] = name
    return parse_job(Job.model_construct(**described).model_dump_json(warnings=False))


def test_equal_names_are_one_object_however_they_were_made() -> None:
    made = Provider("gcp")
    for other in (
        Provider("gcp"),
        pickle.loads(pickle.dumps(made)),
        copy.deepcopy(made),
        job_of("gcp").resources[0].provider,
    ):
        assert other is made


@pytest.mark.parametrize("name", ["azure", "", "GCP", 7, ["gcp"]])
def test_a_name_that_nobody_has_registered_is_refused_with_those_that_are(name: object) -> None:
    with pytest.raises(ValueError, match="is not a valid Provider; known: gcp, aws, local"):
        Provider(name)  # type: ignore[arg-type]


def test_a_registered_provider_is_valid_everywhere_for_as_long_as_it_is_registered() -> None:
    with registered("toy", "toy_package") as toy:
        assert job_of("toy").resources[0].provider is toy
        assert Job.model_json_schema()["$defs"]["Provider"]["enum"] == [
            "gcp",
            "aws",
            "local",
            "slurm",
            "kubernetes",
            "toy",
        ]
        assert module_of(toy, "catalog") == "toy_package.catalog"
    assert "toy" not in names()
    with pytest.raises(RequestError, match="'gcp', 'aws', 'local', 'slurm' or 'kubernetes'"):
        job_of("toy")


def test_an_installed_package_registers_a_provider_by_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    brought = EntryPoint(name="toy", value="toy_package", group=provider.ENTRY_POINTS)
    monkeypatch.setattr(provider, "entry_points", lambda *, group: [brought] if group == brought.group else [])
    provider._entry_points.cache_clear()
    monkeypatch.setattr(Provider, "_known", {})
    try:
        assert module_of(Provider("toy"), "provision") == "toy_package.provision"
    finally:
        provider._entry_points.cache_clear()


def test_built_in_providers_are_known_without_a_look_at_installed_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    def looked(*, group: str) -> None:
        raise AssertionError(f"looked for {group}")

    monkeypatch.setattr(provider, "entry_points", looked)
    monkeypatch.setattr(Provider, "_known", {})
    provider._entry_points.cache_clear()
    assert [module_of(Provider(name), "catalog") for name in ("gcp", "local")] == [
        "sailor_cloud.catalog.providers.gcp",
        "sailor_cloud.catalog.providers.local",
    ]
