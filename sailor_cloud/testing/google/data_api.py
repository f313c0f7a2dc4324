"""Serves resources of runs on Google Cloud other than Compute Engine over HTTP: accounts, buckets, the watchdog.

It covers the JSON calls of a sweep. Buckets belong to the cloud that the stand-in provider fills, their objects to an
`ObjectStore`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from sailor_cloud.testing.object_store import ObjectStore
from sailor_cloud.testing.terraform.cloud import FakeCloud

ACCOUNT, BUCKET, MEMBER = "google_service_account", "google_storage_bucket", "google_storage_bucket_iam_member"
_ACCOUNTS = re.compile(r"/v1/(projects/([^/]+)/serviceAccounts)(?:/([^/]+))?")
_BUCKETS = re.compile(r"/storage/v1/b(?:/([^/]+)(/o(?:/(.+))?)?)?")
OBJECT, FUNCTION = "google_storage_bucket_object", "google_cloudfunctions2_function"
_NAMED = re.compile(r"/v[12]/(projects/[^/]+/(?:locations/[^/]+/(functions|jobs)|roles))(?:/([^/]+))?")
_TYPES = {"functions": FUNCTION, "jobs": "google_cloud_scheduler_job", None: "google_project_iam_custom_role"}
_POLICY = re.compile(r"/storage/v1/b/([^/]+)/iam")
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class GoogleData:
    """Answers calls with status and body; None for those of other interfaces."""

    cloud: FakeCloud
    store: ObjectStore

    def answer(self, method: str, url: str, body: bytes = b"") -> tuple[int, Json] | None:
        parts = urlsplit(url)
        if policy := _POLICY.fullmatch(parts.path):
            return self._policy(unquote(policy[1]), json.loads(body) if method == "PUT" else None)
        if parts.path.endswith(":getEffectiveOrgPolicy"):
            constraint = json.loads(body)["constraint"]
            return 200, {"constraint": constraint, **self.cloud.policies.get(constraint, {})}
        if accounts := _ACCOUNTS.fullmatch(parts.path):
            return self._accounts(method, accounts[1], unquote(accounts[3] or ""))
        if parts.path.startswith("/v1/projects/") and parts.path.endswith(":testIamPermissions"):
            wanted = json.loads(body)["permissions"]
            return 200, {"permissions": [right for right in wanted if right not in self.cloud.denied]}
        if named := _NAMED.fullmatch(parts.path):
            return self._named(method, named[1], _TYPES[named[2]], named[3])
        if buckets := _BUCKETS.fullmatch(parts.path):
            asked = parse_qs(parts.query)
            if not buckets[1]:
                return 200, {"items": self._listed(asked.get("prefix", [""])[0])}
            return self._bucket(method, unquote(buckets[1]), buckets[2], unquote(buckets[3] or ""))
        return None

    def _named(self, method: str, place: str, kind: str, name: str | None) -> tuple[int, Json]:
        """List functions of every region, or show or delete a resource by its full name."""
        known = self.cloud.of_type(kind)
        if name is None:
            return 200, {"functions": [{"name": key, "labels": state["labels"]} for key, state in known.items()]}
        if f"{place}/{name}" not in known:
            return 404, {"error": {"code": 404, "message": f"{place}/{name} does not exist"}}
        if method == "DELETE":
            self.cloud.delete(kind, f"{place}/{name}")
        return 200, {"name": f"{place}/{name}"}

    def _accounts(self, method: str, place: str, email: str) -> tuple[int, Json]:
        known = {name: state for name, state in self.cloud.of_type(ACCOUNT).items() if name.startswith(f"{place}/")}
        if not email:
            shown = [{"email": s["email"], "description": s.get("description") or ""} for s in known.values()]
            return 200, {"accounts": shown}
        if f"{place}/{email}" not in known:
            return 404, {"error": {"code": 404, "message": f"{email} does not exist"}}
        if method == "GET":
            return 200, {"email": email, "description": known[f"{place}/{email}"].get("description") or ""}
        self.cloud.delete(ACCOUNT, f"{place}/{email}")
        return 200, {}

    def _policy(self, bucket: str, wanted: Json | None) -> tuple[int, Json]:
        """Show the policy of a bucket, which may belong to others, or remove rights that are not in `wanted`."""
        prefix = f"b/{bucket}/"
        rights = {name: state for name, state in self.cloud.of_type(MEMBER).items() if name.startswith(prefix)}
        if wanted is not None:
            kept = {(b["role"], _alive(member)) for b in wanted["bindings"] for member in b["members"]}
            for name, state in rights.items():
                if (state["role"], state["member"]) not in kept:
                    self.cloud.delete(MEMBER, name)
            return 200, wanted
        roles: dict[str, list[str]] = {}
        for state in rights.values():
            roles.setdefault(state["role"], []).append(self._shown(state["member"]))
        return 200, {"etag": "1", "bindings": [{"role": role, "members": who} for role, who in roles.items()]}

    def _shown(self, member: str) -> str:
        """Return a member as a policy shows it: those of deleted accounts are marked."""
        kind, _, email = member.partition(":")
        alive = kind != "serviceAccount" or any(email in name for name in self.cloud.of_type(ACCOUNT))
        return member if alive else f"deleted:{member}?uid=1"

    def _listed(self, prefix: str) -> list[Json]:
        return [
            {"name": name, "labels": state.get("labels") or {}, "location": str(state.get("location", "")).upper()}
            for name, state in self.cloud.of_type(BUCKET).items()
            if name.startswith(prefix)
        ]

    def _bucket(self, method: str, name: str, of_objects: str | None, key: str) -> tuple[int, Json]:
        uploads = {state["name"]: key for key, state in self.cloud.of_type(OBJECT).items() if state["bucket"] == name}
        held = {*self.store.of(name), *uploads}
        if name not in self.cloud.of_type(BUCKET) or (key and key not in held):
            return 404, {"error": {"code": 404, "message": "not found"}}
        if method == "GET" and not of_objects:
            return 200, next(shown for shown in self._listed(name) if shown["name"] == name)
        if of_objects and not key:
            return 200, {"items": [{"name": found, "generation": "1"} for found in held]}
        if key:
            self.store.objects.pop((name, key), None)
            self.cloud.delete(OBJECT, uploads.get(key, ""))
        elif held:
            return 409, {"error": {"code": 409, "message": "The bucket you tried to delete is not empty."}}
        else:
            for member in [found for found in self.cloud.of_type(MEMBER) if found.startswith(f"b/{name}/")]:
                self.cloud.delete(MEMBER, member)
            self.cloud.delete(BUCKET, name)
        return 200, {}


def _alive(member: str) -> str:
    return member.removeprefix("deleted:").partition("?uid=")[0]
