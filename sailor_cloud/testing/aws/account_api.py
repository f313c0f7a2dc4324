"""Serves resources of runs on AWS other than EC2, and quotas, from the fake cloud over HTTP.

It covers the calls of a sweep. Buckets belong to the cloud, their objects to an `ObjectStore`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote
from xml.sax.saxutils import escape

from sailor_cloud.testing.http_api import Answer
from sailor_cloud.testing.object_store import ObjectStore
from sailor_cloud.testing.terraform.cloud import CloudError, FakeCloud

ROLE, PROFILE, POLICY = "aws_iam_role", "aws_iam_instance_profile", "aws_iam_role_policy"
BUCKET, GROUP, SCHEDULE = "aws_s3_bucket", "aws_scheduler_schedule_group", "aws_scheduler_schedule"
FUNCTION, LOG_GROUP = "aws_lambda_function", "aws_cloudwatch_log_group"
_BUCKET_PARTS = ("aws_s3_bucket_public_access_block", "aws_s3_bucket_lifecycle_configuration")
_REGION = "us-east-1"
IAM_ACTIONS = frozenset(
    {
        *("GetCallerIdentity", "SimulatePrincipalPolicy"),
        *("ListRoles", "GetRole", "ListRolePolicies", "DeleteRolePolicy", "DeleteRole"),
        *("ListInstanceProfiles", "GetInstanceProfile", "ListInstanceProfilesForRole"),
        *("RemoveRoleFromInstanceProfile", "DeleteInstanceProfile"),
    }
)


@dataclass(frozen=True, slots=True)
class Iam:
    """One call to IAM, whose resources have no region."""

    cloud: FakeCloud

    def answer(self, parameters: Mapping[str, str]) -> Answer:
        action = parameters["Action"]
        if action in ("GetCallerIdentity", "SimulatePrincipalPolicy"):
            return self._about_caller(action, parameters)
        role, profile = parameters.get("RoleName", ""), parameters.get("InstanceProfileName", "")
        for kind, name in ((PROFILE, profile), (ROLE, "" if profile else role)):
            if name and name not in self.cloud.of_type(kind):
                return _iam_error("NoSuchEntity", f"{name} cannot be found.")
        match action:
            case "ListRoles":
                return _iam(action, f"<Roles>{self._members(ROLE, self.cloud.of_type(ROLE))}</Roles>")
            case "GetRole":
                return _iam(action, f"<Role>{self._shown(ROLE, role)}</Role>")
            case "ListInstanceProfiles" | "ListInstanceProfilesForRole":
                known = self.cloud.of_type(PROFILE)
                names = [name for name, state in known.items() if not role or state.get("role") == role]
                return _iam(action, f"<InstanceProfiles>{self._members(PROFILE, names)}</InstanceProfiles>")
            case "GetInstanceProfile":
                return _iam(action, f"<InstanceProfile>{self._shown(PROFILE, profile)}</InstanceProfile>")
            case "ListRolePolicies":
                names = [state["name"] for state in self._policies(role).values()]
                listed = "".join(f"<member>{escape(name)}</member>" for name in names)
                return _iam(action, f"<PolicyNames>{listed}</PolicyNames>")
            case "RemoveRoleFromInstanceProfile":
                self.cloud.update(PROFILE, profile, {"role": ""})
            case "DeleteRolePolicy":
                self.cloud.delete(POLICY, f"{role}:{parameters['PolicyName']}")
            case "DeleteInstanceProfile":
                if self.cloud.of_type(PROFILE)[profile].get("role"):
                    return _iam_error("DeleteConflict", "Cannot delete entity, must remove roles from it first.")
                self.cloud.delete(PROFILE, profile)
            case "DeleteRole":
                if self._policies(role) or any(s.get("role") == role for s in self.cloud.of_type(PROFILE).values()):
                    return _iam_error("DeleteConflict", "Cannot delete entity, must delete policies first.")
                self.cloud.delete(ROLE, role)
        return _iam(action, "")

    def _about_caller(self, action: str, parameters: Mapping[str, str]) -> Answer:
        if action == "GetCallerIdentity":
            return _iam(action, "<Arn>arn:aws:iam::000000000000:user/me</Arn><Account>000000000000</Account>")
        asked = [value for key, value in parameters.items() if key.startswith("ActionNames.member.")]
        results = ""
        for name in asked:
            decision = "implicitDeny" if name in self.cloud.denied else "allowed"
            result = f"<EvalActionName>{name}</EvalActionName><EvalDecision>{decision}</EvalDecision>"
            results += f"<member>{result}</member>"
        return _iam(action, f"<EvaluationResults>{results}</EvaluationResults>")

    def _policies(self, role: str) -> dict[str, dict[str, Any]]:
        return {name: state for name, state in self.cloud.of_type(POLICY).items() if state.get("role") == role}

    def _members(self, kind: str, names: Iterable[str]) -> str:
        return "".join(f"<member>{self._shown(kind, name)}</member>" for name in names)

    def _shown(self, kind: str, name: str) -> str:
        state = self.cloud.of_type(kind)[name]
        own = "RoleName" if kind == ROLE else "InstanceProfileName"
        about = f"<{own}>{escape(name)}</{own}><Path>/</Path><Arn>{escape(state['arn'])}</Arn>"
        about += f"<{own[:-4]}Id>AID</{own[:-4]}Id><CreateDate>2026-11-21T00:00:00Z</CreateDate>{_tags(state)}"
        if kind == PROFILE:
            held = f"<member>{self._shown(ROLE, state['role'])}</member>" if state.get("role") else ""
            about += f"<Roles>{held}</Roles>"
        return about


def schedules(cloud: FakeCloud, region: str, method: str, path: str) -> Answer:
    """Answer one call to EventBridge Scheduler."""
    known = {name: state for name, state in cloud.of_type(GROUP).items() if state["region"] == region}
    what, _, rest = path.partition("?")[0].strip("/").partition("/")
    if what == "tags":
        found = next((state for state in known.values() if state["arn"] == unquote(rest)), {})
        return _json(200, {"Tags": [{"Key": k, "Value": v} for k, v in (found.get("tags") or {}).items()]})
    if what == "schedules":
        if not any(state["name"] == rest for state in cloud.of_type(SCHEDULE).values()):
            return _json(404, {"Message": f"Schedule {rest} does not exist."}, "ResourceNotFoundException")
        return _json(200, {"Name": rest})
    if not rest:
        listed = [{"Name": name, "Arn": state["arn"], "State": "ACTIVE"} for name, state in known.items()]
        return _json(200, {"ScheduleGroups": listed})
    if rest not in known:
        return _json(404, {"Message": f"Schedule group {rest} does not exist."}, "ResourceNotFoundException")
    if method == "DELETE":
        for name, state in cloud.of_type(SCHEDULE).items():
            if state["group_name"] == rest:
                cloud.delete(SCHEDULE, name)
        cloud.delete(GROUP, rest)
        return _json(200, {})
    return _json(200, {"Name": rest, "Arn": known[rest]["arn"], "State": "ACTIVE"})


def functions(cloud: FakeCloud, region: str, method: str, path: str) -> Answer:
    """Answer one call to Lambda."""
    known = {name: state for name, state in cloud.of_type(FUNCTION).items() if state["region"] == region}
    name = path.partition("?")[0].partition("/functions")[2].strip("/")
    if not name:
        return _json(200, {"Functions": [{"FunctionName": found} for found in known]})
    if name not in known:
        return _json(404, {"Message": f"Function not found: {name}"}, "ResourceNotFoundException")
    if method == "DELETE":
        cloud.delete(FUNCTION, name)
        return _json(200, {})
    return _json(200, {"Configuration": {"FunctionName": name}, "Tags": known[name].get("tags") or {}})


def logs(cloud: FakeCloud, action: str, asked: Mapping[str, str]) -> Answer:
    """Answer one call to CloudWatch Logs."""
    if action == "DescribeLogGroups":
        return _json(200, {"logGroups": [{"logGroupName": name} for name in cloud.of_type(LOG_GROUP)]})
    if asked["logGroupName"] not in cloud.of_type(LOG_GROUP):
        return _json(400, {"message": "The specified log group does not exist."}, "ResourceNotFoundException")
    cloud.delete(LOG_GROUP, asked["logGroupName"])
    return _json(200, {})


def quota(cloud: FakeCloud, code: str) -> Answer:
    """Answer a call to Service Quotas for one EC2 quota."""
    if code not in cloud.quotas:
        return _json(400, {"Message": f"no quota {code}"}, "NoSuchResourceException")
    result = {"ServiceCode": "ec2", "QuotaCode": code, "Value": cloud.quotas[code]}
    return _json(200, {"Quota": result})


@dataclass(frozen=True, slots=True)
class Buckets:
    """The S3 calls about buckets; the store answers those about objects."""

    cloud: FakeCloud
    store: ObjectStore

    def __call__(self, method: str, bucket: str, query: Mapping[str, list[str]]) -> tuple[int, bytes] | None:
        """Return status and body, or None if the call is about objects."""
        known = self.cloud.of_type(BUCKET)
        if not bucket:
            listed = "".join(f"<Bucket><Name>{escape(name)}</Name></Bucket>" for name in known)
            return 200, f"<ListAllMyBucketsResult><Buckets>{listed}</Buckets></ListAllMyBucketsResult>".encode()
        if bucket not in known:
            return None
        if "location" in query:
            region = known[bucket].get("region", _REGION)
            place = "" if region == _REGION else escape(region)
            return 200, f"<LocationConstraint>{place}</LocationConstraint>".encode()
        if "tagging" in query:
            pairs = (known[bucket].get("tags") or {}).items()
            tags = "".join(f"<Tag><Key>{escape(k)}</Key><Value>{escape(v)}</Value></Tag>" for k, v in pairs)
            return 200, f"<Tagging><TagSet>{tags}</TagSet></Tagging>".encode()
        if query.get("max-keys") == ["1"]:
            held = "".join(
                f"<Contents><Key>{escape(key)}</Key></Contents>" for key in sorted(self.store.of(bucket))[:1]
            )
            return 200, f"<ListBucketResult>{held}</ListBucketResult>".encode()
        if "versions" in query:
            version = "<VersionId>null</VersionId>"
            held = "".join(f"<Version><Key>{escape(k)}</Key>{version}</Version>" for k in self.store.of(bucket))
            return 200, f"<ListVersionsResult><IsTruncated>false</IsTruncated>{held}</ListVersionsResult>".encode()
        if method == "DELETE":
            return self._delete(bucket)
        return None

    def _delete(self, bucket: str) -> tuple[int, bytes]:
        if self.store.of(bucket):
            return 409, b"<Error><Code>BucketNotEmpty</Code><Message>it is not empty</Message></Error>"
        try:
            for part in _BUCKET_PARTS:
                if bucket in self.cloud.of_type(part):
                    self.cloud.delete(part, bucket)
            self.cloud.delete(BUCKET, bucket)
        except CloudError as error:
            return 500, f"<Error><Code>InternalError</Code><Message>{escape(str(error))}</Message></Error>".encode()
        return 204, b""


def _tags(state: Mapping[str, Any]) -> str:
    pairs = (state.get("tags") or {}).items()
    members = "".join(f"<member><Key>{escape(k)}</Key><Value>{escape(v)}</Value></member>" for k, v in pairs)
    return f"<Tags>{members}</Tags>"


def _iam(action: str, inner: str) -> Answer:
    space = "https://iam.amazonaws.com/doc/2010-05-08/"
    result = f"<{action}Result>{inner}<IsTruncated>false</IsTruncated></{action}Result>"
    body = f'<{action}Response xmlns="{space}">{result}</{action}Response>'
    return Answer(status=200, body=body.encode(), kind="text/xml")


def _iam_error(code: str, message: str) -> Answer:
    body = f"<ErrorResponse><Error><Code>{code}</Code><Message>{escape(message)}</Message></Error></ErrorResponse>"
    return Answer(status=404 if code == "NoSuchEntity" else 409, body=body.encode(), kind="text/xml")


def _json(status: int, content: Mapping[str, Any], code: str = "") -> Answer:
    body = {**content, "__type": code} if code else content
    return Answer(status=status, body=json.dumps(body).encode())
