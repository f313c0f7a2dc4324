"""While an operation takes long, progress says whether the cloud answers."""

from __future__ import annotations

import threading
from pathlib import Path

from factories.cloud_runs import INSTANCE, cloud_run
from factories.local_runs import CLOCK
from sailor_cloud.errors import ProvisionError
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision.apply.apply import Watch, Work
from sailor_cloud.provision.errors.rules import Backoff
from sailor_cloud.provision.rendering.preview import Prices
from sailor_cloud.provision.rendering.root import root_of
from sailor_cloud.provision.terraform.binary import find_terraform
from sailor_cloud.provision.terraform.progress import CloudProbe, Interrupt, Progress
from sailor_cloud.run.ledger import Ledger


class Seconds:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def settled(pulse: CloudProbe) -> str:
    """What a pulse says once its question has been answered."""
    pulse.problem()
    pulse.wait()
    return pulse.problem()


def test_a_cloud_that_answers_gives_no_trouble_and_is_asked_once_a_minute() -> None:
    seconds, asked = Seconds(), []
    pulse = CloudProbe(lambda: asked.append(seconds.now), now=seconds)
    for _ in range(13):
        assert settled(pulse) == ""
        seconds.now += 10.0
    assert asked == [100.0, 160.0, 220.0]


def test_an_error_of_the_cloud_is_reported_until_it_answers_again() -> None:
    seconds, broken = Seconds(), [True]

    def ask() -> None:
        if broken:
            raise OSError("503 Service Unavailable")

    pulse = CloudProbe(ask, now=seconds)
    assert settled(pulse) == "the cloud does not answer: 503 Service Unavailable"
    broken.clear()
    seconds.now += 30.0
    assert settled(pulse) == "the cloud does not answer: 503 Service Unavailable"
    seconds.now += 30.0
    assert settled(pulse) == ""


def test_a_question_that_hangs_is_reported_with_its_time() -> None:
    seconds, answer = Seconds(), threading.Event()
    pulse = CloudProbe(lambda: answer.wait(30.0), now=seconds)
    assert pulse.problem() == ""
    seconds.now += 19.0
    assert pulse.problem() == ""
    seconds.now += 26.0
    assert pulse.problem() == "the cloud has not answered for 45 s"
    answer.set()
    assert settled(pulse) == ""


def test_a_creation_that_takes_long_says_that_the_cloud_is_down(tmp_path: Path) -> None:
    """As it is while hashicorp/google repeats a request by itself."""

    def down() -> None:
        raise ProvisionError("503 Backend Error")

    with cloud_run(Provider("gcp"), tmp_path) as run:
        told: list[Progress] = []
        folder = run.run.folder
        work = Work(
            folder=folder,
            clock=CLOCK,
            journal=run.journal(),
            ledger=Ledger.of(folder, CLOCK),
            binary=find_terraform(),
            interrupt=Interrupt(),
            on_progress=told.append,
            timeout_s=1.0,
            backoff=Backoff(),
            pause=lambda seconds: None,
        )
        watch = Watch(work=work, root=root_of(folder, Provider("gcp"), "us-central1"), nodes=(), prices=Prices())
        watch.probe = CloudProbe(down)
        resource = {"addr": "module.cluster.x", "resource_type": INSTANCE[Provider("gcp")], "resource_name": "n0"}
        for elapsed in (50, 60, 70):
            hook = {"action": "create", "resource": resource, "elapsed_seconds": elapsed}
            watch.event({"type": "apply_progress", "hook": hook, "@message": "Still creating..."})
            watch.probe.wait()
        assert (told[0].problem, told[-1].problem) == ("", "the cloud does not answer: 503 Backend Error")
