"""What providers will refuse is asked before anything is bought."""

from __future__ import annotations

from pathlib import Path

import pytest

from factories.cloud_plans import AWS_OFFERS, cloud_document, with_job
from factories.cloud_runs import cloud_run, without_bucket
from sailor_cloud.errors import RequestError
from sailor_cloud.model.job import NetworkAccess
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision.outcomes import Applied

SIX = without_bucket(cloud_document(*((f"n{index}", AWS_OFFERS[0]) for index in range(6)), image=None))


def test_nodes_with_several_network_cards_must_find_an_elastic_address_each(tmp_path: Path) -> None:
    with cloud_run(Provider("aws"), tmp_path, document=SIX) as run:
        before = set(run.cloud.resources)
        with pytest.raises(RequestError) as caught:
            run.apply()
        assert str(caught.value) == (
            "plan.nodes: need 6 elastic IP addresses in us-east-1, one for each with several network cards; the "
            "account may have 5 and uses 0 (set 'cloud: {network: private}', or ask for more: quota L-0263D0A3 of EC2)"
        )
        assert run.journal().entries() == ()
        assert set(run.cloud.resources) == before

        # The account has more, but others use some of them.
        run.cloud.quotas["L-0263D0A3"] = 7.0
        for _ in range(2):
            run.cloud.create("aws_eip", {"tags": {"team": "another-team"}}, {"region": "us-east-1"})
        with pytest.raises(RequestError, match="the account may have 7 and uses 2"):
            run.apply()
        run.cloud.quotas["L-0263D0A3"] = 8.0
        assert isinstance(run.apply(), Applied)
        # What the run has itself is not asked for again.
        assert isinstance(run.apply(), Applied)


def test_nodes_without_public_addresses_need_no_elastic_one(tmp_path: Path) -> None:
    private = without_bucket(with_job(SIX, network=NetworkAccess.PRIVATE, image=None))
    with cloud_run(Provider("aws"), tmp_path, document=private) as run:
        assert isinstance(run.apply(), Applied)
