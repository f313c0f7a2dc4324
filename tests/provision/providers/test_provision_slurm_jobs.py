"""How jobs of a run are found on Slurm, and what becomes of a teardown whose scheduler fails."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import yaml

from factories.clusters import INVENTORY
from sailor_cloud.errors import ProvisionError
from sailor_cloud.model.inventory import Inventory
from sailor_cloud.provision.jobs import ClusterJob
from sailor_cloud.provision.live_resources import LiveResource
from sailor_cloud.provision.providers.slurm import commands, provider, scheduler
from sailor_cloud.provision.providers.slurm.scheduler import Slurm
from sailor_cloud.provision.scopes import remove_from

RUN, OTHER = "tiny-20261121-051313-a1b2", "tiny-20261121-051313-a1b20"


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines that squeue prints."""
    lines: list[str] = []
    monkeypatch.setattr(provider, "slurm", lambda *command: "\n".join(lines))
    return lines


def stand_ins(folder: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Put programs that do nothing but this in the place of Slurm's."""
    for name in ("sbatch", "squeue", "scancel", "scontrol", "sinfo"):
        (folder / name).write_text(f"#!/bin/sh\n{program}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def inventory() -> Inventory:
    return Inventory.model_validate(yaml.safe_load(INVENTORY))


def found(run_id: str | None) -> list[tuple[str, str, str]]:
    return [(one.name, one.run_id, one.node) for one in provider.PROVIDER.jobs("lab", run_id)]


def test_a_job_is_found_by_its_comment_or_by_its_name_where_a_site_writes_the_comments(queue: list[str]) -> None:
    queue += [
        f"12+0|RUNNING|a1|sailor-{RUN}-g1|sailor-cloud-run={RUN} sailor-cloud-node=n0,n1",
        f"13|PENDING||sailor-{RUN}-g2|project physics",
        f"14|RUNNING|a2|sailor-{OTHER}-g1|(null)",
        "15|RUNNING|a3|a|b|c",
    ]
    assert found(RUN) == [("12", RUN, "n0"), ("12", RUN, "n1"), ("13", RUN, "")]
    assert found(None) == [*found(RUN), ("14", OTHER, "")]


def test_an_answer_that_is_no_list_confirms_nothing(queue: list[str]) -> None:
    queue += ["Maintenance tonight", ""]
    with pytest.raises(ProvisionError, match="squeue did not print a list of jobs: 'Maintenance tonight'"):
        found(RUN)
    queue += [f"13|PENDING||sailor-{RUN}-g2|project physics"]
    assert found(RUN) == [("13", RUN, "")]


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (
            "echo all; printf '\\243\\377'",
            "'scontrol show config' does not print the cluster's name; is this",
        ),
        ("echo 'Unable to contact slurm controller' >&2; exit 1", "sinfo failed: Unable to contact slurm controller"),
        (
            "echo 'sinfo: fatal: Could not establish a configuration source' >&2; exit 1",
            "sinfo finds no Slurm cluster here; run this on a login node of the cluster",
        ),
        ("exec sleep 60", "sinfo did not answer within 1 s"),
    ],
)
def test_a_scheduler_that_answers_late_or_with_something_else_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, message: str
) -> None:
    monkeypatch.setattr(commands, "_TIMEOUT_S", 1.0)
    stand_ins(tmp_path, monkeypatch, program)
    with pytest.raises(ProvisionError, match=message):
        Slurm().check(inventory())


def test_other_output_of_sbatch_is_no_job_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_ins(tmp_path, monkeypatch, "echo Welcome to the cluster")
    job = SimpleNamespace(groups=(), generation=1, artefact="{}")
    monkeypatch.setattr(scheduler, "batch_script", lambda job, **options: "#!/bin/sh\n")
    with pytest.raises(ProvisionError, match="sbatch printed no job id but 'Welcome to the cluster'"):
        Slurm().submit(cast(ClusterJob, job), tmp_path)


def test_a_job_that_waits_for_machines_that_do_not_answer_is_no_job_that_is_gone(
    queue: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue += [f"12+0|COMPLETING|a1|sailor-{RUN}-g1|sailor-cloud-run={RUN} sailor-cloud-node=n0,n1"]
    monkeypatch.setattr(provider, "hostnames", lambda compact: (compact,))
    monkeypatch.setattr(provider, "hosts_down", lambda hosts: frozenset(hosts))
    (job,) = provider.PROVIDER.jobs("lab", RUN)
    assert (job.name, job.node) == ("12", "")
    assert job.unconfirmed_text.startswith(
        "not confirmed as gone: job 12: machine a1 does not answer, so its processes may still"
    )
    monkeypatch.setattr(commands, "slurm", lambda *command: "a1|down*\na2|idle\na3|drained\na4|idle*\n")
    assert provider.PROVIDER.unresponsive_machines({"a1", "a2", "a3", "a9"}) == {"a1"}


def test_a_scheduler_that_fails_in_the_middle_of_a_teardown_is_a_problem_and_no_end_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*command: str) -> str:
        if command[0] == "squeue":
            raise ProvisionError("squeue failed: slurm_load_jobs error: Unable to contact slurm controller")
        return ""

    monkeypatch.setattr(provider, "slurm", fails)
    monkeypatch.setattr(provider, "cancel", lambda job: None)
    job = LiveResource(provider="slurm", region="lab", type="job", name="12", run_id=RUN, node="n0")
    (problem,) = remove_from([job])
    assert "Unable to contact slurm controller" in problem
