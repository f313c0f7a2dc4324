"""How much is asked of a cloud at a time: resources within a root, and regions side by side."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from factories.cloud_plans import AWS_OFFERS, GCP_OFFERS, WEST_OFFER, cloud_document
from factories.cloud_runs import INSTANCE, STOCKOUT, THROTTLED, CloudRun, cloud_run, without_bucket
from sailor_cloud.errors import CredentialsError
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision.outcomes import Applied, Stockout, applied_or_raise
from sailor_cloud.provision.terraform.driver import TerraformDriver
from sailor_cloud.provision.terraform.pace import Pace, paces, run_concurrently
from sailor_cloud.provision.terraform.progress import Interrupt, ProvisionInterrupted
from sailor_cloud.run.state import fold

REFUSED = {
    Provider("gcp"): "googleapi: Error 401: Request had invalid authentication credentials.",
    Provider("aws"): "api error UnauthorizedOperation: You are not authorized to perform this operation.",
}
# Of the node in the second region.
ELSEWHERE = {Provider("gcp"): {"zone": GCP_OFFERS[2].zone}, Provider("aws"): {"zone": WEST_OFFER.zone}}


@pytest.fixture(params=[Provider("gcp"), Provider("aws")], ids=str)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CloudRun]:
    """A run with a node in each of two regions."""
    provider = Provider(request.param)
    first, second = (GCP_OFFERS[0], GCP_OFFERS[2]) if provider == "gcp" else (AWS_OFFERS[1], WEST_OFFER)
    document = without_bucket(cloud_document(("n0", first), ("n1", second), image=None))
    with cloud_run(provider, tmp_path, document=document) as made:
        yield made


def meeting(kind: str) -> Callable[[str, str], None]:
    """Two of a kind must be under way at the same time, or both fail."""
    both = threading.Barrier(2, timeout=30.0)

    def call(created: str, name: str) -> None:
        if created == kind:
            both.wait()

    return call


def test_regions_are_created_and_deleted_side_by_side(run: CloudRun) -> None:
    """On Google Cloud the second region begins once the network exists, not once the first region's nodes do."""
    run.cloud.on_create = meeting(INSTANCE[run.provider])
    assert isinstance(run.apply(), Applied)
    run.cloud.on_create = lambda kind, name: None
    delete = run.cloud.delete
    meet = meeting(INSTANCE[run.provider])

    def deleted(kind: str, name: str, **how: Any) -> None:
        meet(kind, name)
        delete(kind, name, **how)

    run.cloud.delete = deleted  # type: ignore[method-assign]
    run.assert_gone(run.destroy())


def test_a_region_without_capacity_leaves_the_nodes_of_the_others(run: CloudRun) -> None:
    run.fail(STOCKOUT, where=ELSEWHERE[run.provider])
    outcome = run.apply()
    assert isinstance(outcome, Stockout)
    assert [group.nodes for group in outcome.refused] == [("n1",)]
    assert run.nodes() == ["n0"]
    run.assert_gone(run.destroy())


def test_all_regions_without_capacity_are_reported_together(run: CloudRun) -> None:
    run.fail(STOCKOUT)
    outcome = run.apply()
    assert isinstance(outcome, Stockout)
    assert sorted(name for group in outcome.refused for name in group.nodes) == ["n0", "n1"]
    assert run.nodes() == []
    run.assert_gone(run.destroy())


def test_a_region_that_fails_orphans_no_other(run: CloudRun) -> None:
    """What the other region creates meanwhile is in the journal, in order, and teardown finds it."""
    run.fail(REFUSED, where=ELSEWHERE[run.provider])
    with pytest.raises(CredentialsError):
        run.apply()
    assert run.nodes() == ["n0"]
    entries = run.journal().entries()
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    assert {row.key for row in fold(entries).live if row.resource == "node" and row.created_at} == {"n0"}
    run.assert_gone(run.destroy())


def test_an_interrupt_reaches_every_region(run: CloudRun) -> None:
    stop = Interrupt()
    meet = meeting(INSTANCE[run.provider])

    def interrupt(kind: str, name: str) -> None:
        meet(kind, name)
        if kind == INSTANCE[run.provider]:
            stop.request()

    run.cloud.on_create = interrupt
    with pytest.raises(ProvisionInterrupted):
        run.apply(interrupt=stop)
    run.cloud.on_create = lambda kind, name: None
    run.assert_gone(run.destroy())


def test_a_cloud_that_throttles_is_asked_for_less_at_a_time(run: CloudRun, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    apply = TerraformDriver.apply

    def noted(driver: TerraformDriver) -> Any:
        asked.append(driver.pace.max_concurrent)
        return apply(driver)

    monkeypatch.setattr(TerraformDriver, "apply", noted)
    run.fail(THROTTLED, times=2, where=ELSEWHERE[run.provider])
    assert isinstance(run.apply(), Applied)
    most = 100 if run.provider == "gcp" else 120
    assert asked[0] == most
    assert {most // 2, most // 4} <= set(asked)


def test_terraform_gets_its_number_of_concurrent_operations(run: CloudRun, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    build = TerraformDriver.generate_cmd_string

    def noted(driver: TerraformDriver, *words: Any, **options: Any) -> Any:
        built = build(driver, *words, **options)
        lines.append(" ".join(built))
        return built

    monkeypatch.setattr(TerraformDriver, "generate_cmd_string", noted)
    applied_or_raise(run.apply())
    run.destroy()
    most = 100 if run.provider == "gcp" else 120
    of = {word: [line for line in lines if f" {word} " in line] for word in ("plan", "apply", "init")}
    assert of["plan"]
    assert all(f"-parallelism={most}" in line for line in (*of["plan"], *of["apply"]))
    assert any("-destroy" in line for line in of["apply"])
    assert not any("-parallelism" in line for line in of["init"])


def test_regions_share_the_rate_limit_of_a_project_but_not_those_of_regions() -> None:
    regions = [f"r{number}" for number in range(5)]
    assert paces(("gcp", region) for region in regions)["gcp"].max_concurrent == 40
    assert paces(("aws", region) for region in regions)["aws"].max_concurrent == 120
    assert paces(("gcp", f"r{number}") for number in range(64))["gcp"].max_concurrent == 10
    assert paces([("local", "local")])["local"].max_concurrent == 10


def test_a_pace_never_falls_below_five() -> None:
    pace = Pace(120)
    seen = []
    for _ in range(6):
        pace.slow_down()
        seen.append(pace.max_concurrent)
    assert seen == [60, 30, 15, 7, 5, 5]


def test_all_calls_end_before_the_first_error_is_raised() -> None:
    done = threading.Event()
    begun = threading.Barrier(2, timeout=10.0)

    def fails() -> None:
        begun.wait()
        raise ValueError("first")

    def works() -> None:
        begun.wait()
        threading.Event().wait(0.05)
        done.set()

    with pytest.raises(ValueError, match="first"):
        run_concurrently([fails, works], Interrupt())
    assert done.is_set()


def test_ctrl_c_asks_all_calls_to_stop_and_an_interruption_comes_before_other_errors() -> None:
    stop = Interrupt()

    def fails() -> None:
        while not stop.requested:
            threading.Event().wait(0.01)
        raise ValueError("also went wrong")

    def interrupted() -> None:
        stop.wait(10.0)

    main = threading.main_thread().ident
    assert main is not None
    threading.Timer(0.1, signal.pthread_kill, [main, signal.SIGINT]).start()
    with pytest.raises(ProvisionInterrupted):
        run_concurrently([fails, interrupted], stop)


def test_work_that_still_runs_after_ctrl_c_is_awaited() -> None:
    stop = Interrupt()

    def asked_to_stop(lasts_s: float) -> float:
        while not stop.requested:
            threading.Event().wait(0.01)
        threading.Event().wait(lasts_s)
        return lasts_s

    main = threading.main_thread().ident
    assert main is not None
    threading.Timer(0.1, signal.pthread_kill, [main, signal.SIGINT]).start()
    assert run_concurrently([partial(asked_to_stop, 0.3), partial(asked_to_stop, 0.0)], stop) == [0.3, 0.0]


def test_values_come_in_the_order_of_the_calls() -> None:
    assert run_concurrently([lambda: 1, lambda: 2, lambda: 3], Interrupt()) == [1, 2, 3]
    assert run_concurrently([], Interrupt()) == []


def test_the_more_severe_refusal_of_two_regions_is_reported_and_nothing_stays(run: CloudRun) -> None:
    run.fail(STOCKOUT, where=ELSEWHERE[run.provider])
    run.fail(
        {
            Provider("gcp"): "googleapi: Error 403: Quota 'NVIDIA_A100_GPUS' exceeded.  Limit: 0.0 in region r.",
            Provider("aws"): "api error VcpuLimitExceeded: more vCPU capacity than your current vCPU limit of 0 allows",
        }
    )
    outcome = run.apply()
    assert not isinstance(outcome, Applied | Stockout)
    assert [group.nodes for group in outcome.refused] == [("n0",)]
    assert run.nodes() == []
    run.assert_gone(run.destroy())
