"""The fake cloud refuses what the real ones refuse, and keeps books of what was billed."""

from __future__ import annotations

import threading

import pytest

from sailor_cloud.testing.terraform.cloud import CloudError, Failure, FakeCloud

CONFIG = {"region": "us-east-1", "project": "p"}
INSTANCE = {"name": "vm", "zone": "us-central1-a", "machine_type": "a2-highgpu-1g"}


def test_a_name_that_is_taken_is_refused_in_the_providers_words() -> None:
    cloud = FakeCloud()
    cloud.create("google_compute_instance", INSTANCE, CONFIG)
    with pytest.raises(CloudError, match=r"googleapi: Error 409: .*alreadyExists"):
        cloud.create("google_compute_instance", INSTANCE, CONFIG)
    cloud.create("aws_key_pair", {"key_name": "k"}, CONFIG)
    with pytest.raises(CloudError, match=r"InvalidKeyPair\.Duplicate"):
        cloud.create("aws_key_pair", {"key_name": "k"}, CONFIG)


def test_nothing_is_created_in_what_does_not_exist() -> None:
    cloud = FakeCloud()
    with pytest.raises(CloudError, match=r"Invalidaws_vpcID\.NotFound"):
        cloud.create("aws_subnet", {"vpc_id": "vpc-1"}, CONFIG)
    with pytest.raises(CloudError, match="Error 404"):
        cloud.create("google_compute_subnetwork", {"name": "s", "network": "projects/p/global/networks/n"}, CONFIG)
    assert cloud.resources == {}


def test_a_failure_may_let_some_pass_and_may_come_after_the_creation() -> None:
    cloud = FakeCloud()
    cloud.failures.append(Failure(type="aws_key_pair", message="no", after=1, times=1, late=True))
    cloud.create("aws_key_pair", {"key_name": "a"}, CONFIG)
    with pytest.raises(CloudError) as caught:
        cloud.create("aws_key_pair", {"key_name": "b"}, CONFIG)
    assert caught.value.state is not None
    assert sorted(cloud.of_type("aws_key_pair")) == ["a", "b"]
    cloud.create("aws_key_pair", {"key_name": "c"}, CONFIG)


def test_the_books_hold_what_is_billed_and_what_became_of_it() -> None:
    cloud = FakeCloud()
    made = cloud.create("google_compute_instance", INSTANCE, CONFIG)
    assert cloud.billed() == (made["id"],)
    cloud.delete("google_compute_instance", made["id"], why="preempted")
    assert cloud.billed() == ()
    assert [(verb, kind) for verb, kind, _ in cloud.history] == [
        ("created", "google_compute_instance"),
        ("preempted", "google_compute_instance"),
    ]


def test_settle_waits_for_creations_in_progress() -> None:
    cloud = FakeCloud()
    begun, finish = threading.Event(), threading.Event()

    def slow(kind: str, name: str) -> None:
        begun.set()
        assert finish.wait(30)

    cloud.on_create = slow
    creating = threading.Thread(target=lambda: cloud.create("google_compute_instance", INSTANCE, CONFIG))
    creating.start()
    assert begun.wait(30)
    cloud.settle(limit_s=0.0)
    assert creating.is_alive()
    finish.set()
    cloud.settle()
    creating.join()
    assert len(cloud.billed()) == 1
