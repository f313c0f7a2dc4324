"""The caller's credentials and rights on AWS, and a run's bill."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from sailor_cloud.catalog.providers.aws.account import HOW
from sailor_cloud.errors import CredentialsError, ProvisionError
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import Cloud, NetworkAccess
from sailor_cloud.provision.account import CredentialsExpiry, MissingPermissions, ProviderBill
from sailor_cloud.provision.live_resources import RUN_LABEL
from sailor_cloud.provision.providers.aws.permissions import ACTIONS, PROGRAM_ACTIONS, UNTAGGED
from sailor_cloud.provision.providers.aws.sweep import AWS, boto_client, is_refusal
from sailor_cloud.provision.rendering.data import may_have_data
from sailor_cloud.run.folder import resource_prefix, start_time_of

# The region for requests that belong to no region; Cost Explorer exists only there.
_HOME = "us-east-1"
_AT_ONCE = 100


def credentials_expiry() -> CredentialsExpiry | None:
    """Return when the caller's credentials end for good; None if botocore renews them, or there are none.

    It renews those of roles, processes, instances and of SSO sessions with a refresh token, as Terraform does.
    """
    try:
        import botocore.session
        from botocore.credentials import RefreshableCredentials
        from botocore.exceptions import BotoCoreError
    except ImportError:
        return None
    session = botocore.session.get_session()
    try:
        credentials = session.get_credentials()
        config = session.get_scoped_config()
    except BotoCoreError as error:
        raise CredentialsError(f"AWS credentials can't be used: {error}; {HOW}") from error
    if credentials is None:
        return None
    if credentials.method == "sso":
        return _sso_end(config)
    # Ended credentials of the environment are reread from it, which renews nothing.
    of_environment = credentials.method == "env"
    if of_environment and not os.environ.get("AWS_SESSION_TOKEN"):
        return None
    if not of_environment and (isinstance(credentials, RefreshableCredentials) or not credentials.token):
        return None
    expiration = os.environ.get("AWS_CREDENTIAL_EXPIRATION", "") if of_environment else ""
    where = "of the environment" if of_environment else "in the credentials file"
    renew = "name a profile of SSO or of a role with AWS_PROFILE, whose credentials renew automatically"
    return CredentialsExpiry(
        credentials=f"the AWS session credentials {where}", expires_at=_time(expiration), renewal_hint=renew
    )


def _sso_end(config: dict[str, Any]) -> CredentialsExpiry | None:
    from botocore.exceptions import SSOTokenLoadError
    from botocore.utils import JSONFileCache, SSOTokenLoader

    start, session = config.get("sso_start_url"), config.get("sso_session")
    cache = JSONFileCache(str(Path.home() / ".aws" / "sso" / "cache"))
    try:
        token = SSOTokenLoader(cache=cache)(start, session_name=session)
    except SSOTokenLoadError as error:
        raise CredentialsError(f"the login with AWS SSO is missing: {error}; run 'aws sso login'") from error
    if "refreshToken" in token:
        return None
    renew = "run 'aws sso login' before, and again during the run: a new login counts at once"
    return CredentialsExpiry(
        credentials="the credentials of the login with AWS SSO",
        expires_at=_time(str(token.get("expiresAt", ""))),
        renewal_hint=renew,
    )


def _time(text: str) -> datetime | None:
    try:
        parsed = datetime.fromisoformat(text.replace("UTC", "Z"))
    except ValueError:
        return None
    return parsed.astimezone(UTC) if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def check_caller(cloud: Cloud) -> None:
    """Ask AWS for the caller's identity. Raises CredentialsError if there is none, or AWS refuses the credentials."""
    try:
        boto_client(_HOME, "sts").get_caller_identity()
    except Exception as error:
        if (refused := _refused(error)) is not None:
            raise refused from error


def _refused(error: Exception) -> CredentialsError | None:
    """Return the error for credentials that are missing or that AWS refuses; None for any other error."""
    if type(error).__name__ == "NoCredentialsError":
        return CredentialsError(f"no AWS credentials; {HOW}")
    code = getattr(error, "response", {}).get("Error", {}).get("Code", "")
    if is_refusal(error) or code in ("ExpiredTokenException", "UnrecognizedClientException"):
        return CredentialsError(f"AWS refuses the credentials: {error}; {HOW}")
    return None


def missing_permissions(document: PlanDocument, kinds: Collection[str]) -> MissingPermissions:
    """Return the actions that a run needs and IAM would refuse the caller.

    `kinds` are the types that Terraform would create. Raises CredentialsError.
    """
    private = document.job.cloud.network is NetworkAccess.PRIVATE
    wanted = {action for kind in kinds for action in ACTIONS.get(kind, ())}
    wanted |= {action for what in ("sweep", "host keys", "images") for action in PROGRAM_ACTIONS[what]}
    wanted |= PROGRAM_ACTIONS["sweep of other kinds"] if may_have_data(document.job) else set()
    # Policies that name a session's id allow all later calls of the user who started it.
    wanted |= {"ssm:StartSession"} if private else set()
    try:
        sts, iam = boto_client(_HOME, "sts"), boto_client(_HOME, "iam")
        caller = sts.get_caller_identity()["Arn"]
        account = caller.split(":")[4]
        if caller.endswith(":root"):
            return MissingPermissions()
        source = _principal(iam, caller)
        region = next(offer.region for offer in document.inputs.offers if offer.provider == AWS)
        missing: list[str] = []
        for service in sorted({action.partition(":")[0] for action in wanted}):
            mine = sorted(action for action in wanted - UNTAGGED.keys() if action.startswith(f"{service}:"))
            allowed = set(_allowed(iam, source, mine, _arns(service, region, account), _TAGS))
            missing += [action for action in mine if action not in allowed]
        for action in sorted(wanted & UNTAGGED.keys()):
            arn = f"arn:aws:ec2:{region}:{account}:{UNTAGGED[action]}"
            missing += [] if action in _allowed(iam, source, [action], [arn], ()) else [action]
    except ProvisionError as error:
        return MissingPermissions(unchecked_reason=str(error))
    except Exception as error:
        if (refused := _refused(error)) is not None:
            raise refused from error
        return MissingPermissions(unchecked_reason=str(error))
    return MissingPermissions(names=tuple(sorted(missing)))


def _principal(iam: Any, caller: str) -> str:
    """Return whose policies apply; a role's session has those of the role, which may have a path."""
    kind, _, rest = caller.partition(":assumed-role/")
    if not rest:
        return caller
    role = rest.partition("/")[0]
    try:
        return str(iam.get_role(RoleName=role)["Role"]["Arn"])
    except Exception as error:
        if is_refusal(error):
            raise
        return f"arn:aws:iam::{kind.rpartition(':')[2]}:role/{role}"


def _arns(service: str, region: str, account: str) -> list[str]:
    """Return the ARNs of a service's resources, by the names that a run would use."""
    name = resource_prefix("")
    named = {
        "iam": [f"arn:aws:iam::{account}:{what}" for what in (f"role/{name}-node", f"role/{name}-watchdog")]
        + [f"arn:aws:iam::{account}:instance-profile/{name}-node"],
        "lambda": [f"arn:aws:lambda:{region}:{account}:function:{name}-watchdog"],
        "logs": [f"arn:aws:logs:{region}:{account}:log-group:/aws/lambda/{name}-watchdog", "*"],
        "s3": [f"arn:aws:s3:::{name}-data", f"arn:aws:s3:::{name}-data/x"],
        "scheduler": [f"arn:aws:scheduler:{region}:{account}:{what}" for what in _schedules(name)],
        "ssm": [
            f"arn:aws:ec2:{region}:{account}:instance/i-0",
            f"arn:aws:ssm:{region}::parameter/aws/service/x",
        ],
    }
    return named.get(service, ["*"])


def _schedules(name: str) -> tuple[str, str]:
    return f"schedule-group/{name}-watchdog", f"schedule/{name}-watchdog/{name}-watchdog"


def _allowed(
    iam: Any, source: str, actions: list[str], arns: list[str], tags: Sequence[dict[str, Any]]
) -> Iterator[str]:
    """Yield the actions that are allowed on any of some resources with these tags."""
    context = [*tags, _context("iam:PassedToService", "ec2.amazonaws.com")]
    for first in range(0, len(actions), _AT_ONCE):
        asked = {"PolicySourceArn": source, "ActionNames": actions[first : first + _AT_ONCE], "ResourceArns": arns}
        pages = iam.get_paginator("simulate_principal_policy").paginate(**asked, ContextEntries=context)
        for page in pages:
            for result in page["EvaluationResults"]:
                every = [result, *result.get("ResourceSpecificResults", ())]
                decisions = {part.get("EvalDecision") or part.get("EvalResourceDecision") for part in every}
                if "allowed" in decisions:
                    yield result["EvalActionName"]


def _context(key: str, value: str) -> dict[str, Any]:
    return {"ContextKeyName": key, "ContextKeyType": "string", "ContextKeyValues": [value]}


_TAGS = (_context(f"aws:ResourceTag/{RUN_LABEL}", "x"), _context(f"aws:RequestTag/{RUN_LABEL}", "x"))


def fetch_bill(run_id: str, today: date) -> ProviderBill:
    """Return Cost Explorer's amounts for a run's tag. Raises CredentialsError or ProvisionError."""
    explorer = boto_client(_HOME, "ce")
    begun = start_time_of(run_id)
    start = begun.date() if begun else today - timedelta(days=60)
    amounts: dict[str, float] = {}
    currency, until, final = "USD", None, None
    try:
        for day in _days(explorer, run_id, start, max(today, start) + timedelta(days=1)):
            end = datetime.fromisoformat(day["TimePeriod"]["End"]).replace(tzinfo=UTC)
            for group in day["Groups"]:
                cost = group["Metrics"]["UnblendedCost"]
                currency = cost["Unit"]
                amounts[group["Keys"][0]] = amounts.get(group["Keys"][0], 0.0) + float(cost["Amount"])
                until = end
            if day["Groups"] and not day["Estimated"]:
                final = end
        switch_on = "" if amounts else _switch_on(explorer)
    except Exception as error:
        if (refused := _refused(error)) is not None:
            raise refused from error
        raise ProvisionError(
            f"Cost Explorer can't be asked: {error}; it needs ce:GetCostAndUsage and ce:ListCostAllocationTags, and "
            "must have been opened once in the console"
        ) from error
    return ProviderBill(
        provider=AWS,
        currency=currency,
        lines=tuple(sorted(amounts.items(), key=lambda line: (-line[1], line[0]))),
        until=until,
        final_until=final,
        switch_on=switch_on,
        notes=("Cost Explorer is about a day late, and each query costs 0.01 USD",),
    )


def _days(explorer: Any, run_id: str, start: date, end: date) -> Iterator[dict[str, Any]]:
    asked: dict[str, Any] = {
        "TimePeriod": {"Start": start.isoformat(), "End": end.isoformat()},
        "Granularity": "DAILY",
        "Metrics": ["UnblendedCost"],
        "Filter": {"Tags": {"Key": RUN_LABEL, "Values": [run_id]}},
        "GroupBy": [{"Type": "DIMENSION", "Key": "SERVICE"}],
    }
    while True:
        response = explorer.get_cost_and_usage(**asked)
        yield from response["ResultsByTime"]
        if not response.get("NextPageToken"):
            return
        asked["NextPageToken"] = response["NextPageToken"]


def _switch_on(explorer: Any) -> str:
    tags = explorer.list_cost_allocation_tags(TagKeys=[RUN_LABEL])["CostAllocationTags"]
    if any(tag["Status"] == "Active" for tag in tags):
        return ""
    order = f"aws ce update-cost-allocation-tags-status --cost-allocation-tags-status TagKey={RUN_LABEL},Status=Active"
    return (
        f"{RUN_LABEL} is not an active cost allocation tag; the account that pays switches it on with '{order}', a day "
        "after the first run at the earliest; 'aws ce start-cost-allocation-tag-backfill' adds what was used before"
    )
