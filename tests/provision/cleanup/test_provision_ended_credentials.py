"""A teardown whose credentials have ended: it claims nothing, names what may live, and says how to continue."""

from __future__ import annotations

from pathlib import Path

import pytest

from factories.cloud_runs import INSTANCE, cloud_run
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision.outcomes import applied_or_raise
from sailor_cloud.run.state import fold
from sailor_cloud.testing.aws.ec2_api import serve_ec2
from sailor_cloud.testing.google.compute_api import serve_compute
from sailor_cloud.testing.mock_cloud import in_environment
from sailor_cloud.testing.terraform.cloud import Failure

EXPIRED = {
    "aws": "operation error EC2: DescribeInstances, https response error StatusCode: 400, RequestID: r, "
    "api error ExpiredToken: The security token included in the request is expired",
    "gcp": "Error 401: Request had invalid authentication credentials. Expected OAuth 2 access token, authError",
}
LOGIN = {"aws": "aws sso login", "gcp": "gcloud auth application-default login"}


@pytest.mark.parametrize("provider", [Provider("gcp"), Provider("aws")], ids=str)
def test_nothing_is_confirmed_and_the_login_command_is_shown_before_it_continues(
    provider: Provider, tmp_path: Path
) -> None:
    with cloud_run(provider, tmp_path) as run:
        applied_or_raise(run.apply())
        made = {row.key for row in fold(run.journal().entries()).live}
        for operation in ("read", "delete"):
            failure = Failure(type=INSTANCE[provider], message=EXPIRED[provider], operation=operation)
            run.cloud.failures.append(failure)
        serve = serve_ec2 if provider == "aws" else serve_compute
        with serve(run.cloud, refused=True) as variables, in_environment(variables):
            destroyed = run.destroy()
        assert not destroyed.clean
        living = {row.name for row in destroyed.resources if row.gone_at is None}
        assert living == made > {"n0", "n1"}
        (told,) = {p for p in destroyed.problems if "refused to list resources" in p}
        assert "if your credentials have ended, run '" in told
        assert LOGIN[provider] in told

        run.cloud.failures.clear()
        run.assert_gone(run.destroy())
