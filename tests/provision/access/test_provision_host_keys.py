"""Host keys of nodes on a cloud: told by the cloud, else the node is refused, or pinned where the job lets it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from factories.cloud_plans import with_job
from factories.cloud_runs import cloud_run, reached, small_document, waited
from factories.local_runs import LocalRun, local_run, started
from sailor_cloud.errors import ProvisionError
from sailor_cloud.model.job import HostKeys
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision import provisioner
from sailor_cloud.provision.access import host_keys, instances
from sailor_cloud.provision.access.host_keys import first_contact, known_host_keys, learn_host_keys
from sailor_cloud.provision.access.instances import Instance
from sailor_cloud.provision.access.login import FAKE_MACHINES, login
from sailor_cloud.provision.outcomes import applied_or_raise
from sailor_cloud.run.appended import append_line
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.journal import Event
from sailor_cloud.testing.machines import PAPER_KEY


@pytest.fixture
def run(tmp_path: Path) -> Iterator[LocalRun]:
    with local_run(tmp_path) as made:
        yield made


def instance(name: str = "i-1", address: str = "127.0.0.1") -> Instance:
    return Instance(
        node="n0",
        id=name,
        machine=name,
        provider=Provider("aws"),
        region="us-east-1",
        zone="use1-az4",
        project="",
        address=address,
        private_address=address,
        running=True,
    )


@pytest.mark.parametrize("told", ["AAAA\ni-2 ssh-ed25519 BBBB", "AAAA BBBB", "", "\x1b[2J", "AAAA\n"])
def test_a_node_publishes_only_its_own_key(told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is root on a node of Google Cloud writes what the cloud says of its keys."""
    provider = SimpleNamespace(host_keys=lambda found: {"ssh-ed25519": told, "ssh-rsa": "CCCC=="})
    monkeypatch.setattr(instances.providers, "of", lambda name: provider)
    assert instances.published_host_key(instance()) == "ssh-rsa CCCC=="


@pytest.mark.parametrize("instance_type", ["g4dn.xlarge", "p3.2xlarge"])
def test_a_console_is_read_as_it_is_now_where_the_instance_shows_that(instance_type: str) -> None:
    """The stand-in's instances on Nitro show nothing else at first, and those on Xen refuse."""
    with reached(Provider("aws")) as cloud:
        wanted = {"instance_type": instance_type, "host_public_key": PAPER_KEY, "tags": {}}
        cloud.create("aws_instance", wanted, {"region": "us-east-1"})
        (name,) = (name for name, state in cloud.of_type("aws_instance").items() if not state["tags"])
        assert instances.published_host_key(instance(name)) == PAPER_KEY


def test_a_key_is_asked_for_until_it_is_there_and_then_never_again(
    run: LocalRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [None, None, "ssh-ed25519 AAAA"]
    monkeypatch.setattr(host_keys, "published_host_key", lambda found: answers.pop(0))
    pause = waited()
    assert learn_host_keys(run.folder, [instance()], pause=pause, limit_s=60.0) == ()
    assert pause.seconds == [5.0, 5.0]
    assert known_host_keys(run.folder) == {"i-1": "ssh-ed25519 AAAA"}
    assert learn_host_keys(run.folder, [instance()], pause=pause) == ()
    assert run.folder.path.joinpath(host_keys.FILE).stat().st_mode & 0o077 == 0


def test_one_that_stays_silent_is_named_after_the_limit(run: LocalRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_keys, "published_host_key", lambda found: None)
    pause = waited()
    silent = learn_host_keys(run.folder, [instance()], pause=pause, limit_s=10.0)
    assert [found.id for found in silent] == ["i-1"]
    assert pause.seconds == [5.0, 5.0]


def test_the_key_of_the_first_contact_is_pinned(run: LocalRun, monkeypatch: pytest.MonkeyPatch) -> None:
    info = started(run.folder)
    monkeypatch.setenv(FAKE_MACHINES, str(run.folder.nodes_dir))
    first_contact(run.folder, instance(address=info.address))
    (key,) = known_host_keys(run.folder).values()
    assert key.split()[:2] == info.host_public_key.split()[:2]


def test_a_node_that_never_answers_is_an_error_that_names_it(run: LocalRun) -> None:
    with pytest.raises(ProvisionError, match=r"node n0 at 127\.0\.0\.1 has published no host key and does not answer"):
        first_contact(run.folder, instance(), limit_s=0.0)


def test_nodes_are_logged_into_at_port_22_outside_of_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FAKE_MACHINES, raising=False)
    way = login("sc-1-n0")
    assert (way.port, way.user, way.workdir) == (22, "sailor", "/home/sailor")


@pytest.mark.parametrize("provider", [Provider("gcp"), Provider("aws")], ids=str)
def test_a_node_whose_cloud_publishes_no_host_key_is_refused_unless_the_job_trusts_first_contact(
    provider: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_keys, "published_host_key", lambda found: None)
    with cloud_run(provider, tmp_path) as run:
        with pytest.raises(ProvisionError, match=r"host keys of n0, n1 within 7 min.*host_keys: first-contact"):
            run.apply()
        assert not (run.run.folder.path / "host_keys").exists()
        run.assert_gone(run.destroy())

    def shown(folder: RunFolder, found: Instance, *, private: bool) -> str:
        append_line(folder.path / "host_keys", f"{found.id} {PAPER_KEY}")
        return PAPER_KEY

    monkeypatch.setattr(provisioner, "first_contact", shown)
    trusting = with_job(small_document(provider), host_keys=HostKeys.FIRST_CONTACT, to="checkpoints")
    with cloud_run(provider, tmp_path / "trusting", document=trusting) as run:
        assert len(applied_or_raise(run.apply()).nodes) == 2
        believed = [entry for entry in run.journal().entries() if entry.event is Event.FIRST_CONTACT]
        assert {(entry.key, entry.data["host_key"]) for entry in believed} == {("n0", PAPER_KEY), ("n1", PAPER_KEY)}
        run.assert_gone(run.destroy())
