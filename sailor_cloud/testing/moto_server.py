"""moto as a server on loopback, with the parts of EC2 that it lacks for this product."""

from __future__ import annotations

import base64
import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from typing import Any
from unittest.mock import patch

from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.responses import EC2Response
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server
from werkzeug.wrappers import Response

from sailor_cloud.testing.http_api import in_thread
from sailor_cloud.testing.machines import PAPER_KEY


class Gaps:
    """Additional state of the patched moto. `full` are zones without capacity, by moto's names.

    `refused` counts the requests for capacity there.
    """

    def __init__(self) -> None:
        self.placement_groups: dict[tuple[str, str], dict[str, Any]] = {}
        self.full: set[str] = set()
        # Reservations, blocks and their offerings by region, after the API reference, since moto has none.
        self.capacity_reservations: dict[str, list[dict[str, Any]]] = {}
        self.capacity_blocks: dict[str, list[dict[str, Any]]] = {}
        self.refused = 0


@contextmanager
def moto_gaps() -> Iterator[Gaps]:
    """Fill the gaps of every moto server in this process."""
    gaps = Gaps()
    original = EC2Response.run_instances

    def run_instances(self: Any) -> Any:
        return _run_instances(self, gaps, original)

    filled: dict[str, Any] = {
        "run_instances": run_instances,
        "create_placement_group": lambda self: _create(self, gaps),
        "describe_placement_groups": lambda self: _describe(self, gaps),
        "delete_placement_group": lambda self: _delete(self, gaps),
        "describe_capacity_reservations": lambda self: _reservations(self, gaps),
        "create_capacity_reservation": lambda self: _reserve(self, gaps),
        "cancel_capacity_reservation": lambda self: _cancel(self, gaps),
        "describe_capacity_block_offerings": lambda self: _offerings(self, gaps),
        "purchase_capacity_block": lambda self: _purchase(self, gaps),
        "get_console_output": _console,
    }
    with ExitStack() as stack:
        for name, method in filled.items():
            stack.enter_context(patch.object(EC2Response, name, method, create=True))
        yield gaps


def _run_instances(response: Any, gaps: Gaps, original: Any) -> Any:
    interfaces = response._get_param("NetworkInterfaces", []) or []
    subnet = response._get_param("SubnetId") or next((face.get("SubnetId") for face in interfaces), None)
    zone = response.ec2_backend.get_subnet(subnet).availability_zone if subnet else ""
    if zone in gaps.full:
        gaps.refused += 1
        kind = response._get_param("InstanceType")
        refused = EC2ClientError(
            "InsufficientInstanceCapacity",
            f"We currently do not have sufficient {kind} capacity in the Availability Zone you requested ({zone}).",
        )
        _, headers, body = response.serialized(ActionResult(refused))
        # EC2 reports it as a server error, which SDKs retry.
        return body, {**headers, "status": 500}
    requested = response._get_param("CapacityReservationSpecification", {}) or {}
    if target := (requested.get("CapacityReservationTarget") or {}).get("CapacityReservationId"):
        _take(response, gaps, target, zone)
    return original(response)


def _take(response: Any, gaps: Gaps, target: str, zone: str) -> None:
    """Let an instance use a place of an active reservation of its type and zone that has one left."""
    row = _known(response, gaps, target)
    kind = response._get_param("InstanceType")
    market = (response._get_param("InstanceMarketOptions", {}) or {}).get("MarketType", "")
    block = row["ReservationType"] == "capacity-block"
    if (row["InstanceType"], row["AvailabilityZone"]) != (kind, zone) or block != (market == "capacity-block"):
        raise EC2ClientError("InvalidParameterValue", f"The request for {kind} in {zone} does not match {target}.")
    if row["State"] != "active" or row["AvailableInstanceCount"] < 1:
        raise EC2ClientError("ReservationCapacityExceeded", f"{target} has insufficient available capacity.")
    row["AvailableInstanceCount"] -= 1


def _known(response: Any, gaps: Gaps, identity: str) -> dict[str, Any]:
    rows = gaps.capacity_reservations.get(response.region, [])
    found = next((row for row in rows if row["CapacityReservationId"] == identity), None)
    if found is None:
        text = f"The capacity reservation ID '{identity}' does not exist"
        raise EC2ClientError("InvalidCapacityReservationId.NotFound", text)
    return found


def _reserve(response: Any, gaps: Gaps) -> Any:
    asked = {name: response._get_param(name) for name in ("InstanceType", "AvailabilityZone", "InstancePlatform")}
    times = {"EndDate": response._get_param("EndDate")} if response._get_param("EndDate") else {}
    count = int(response._get_param("InstanceCount"))
    match = response._get_param("InstanceMatchCriteria", "open")
    own = {"EndDateType": response._get_param("EndDateType", "unlimited"), "InstanceMatchCriteria": match}
    return _made(response, gaps, {**asked, **times, **own, "ReservationType": "default", "State": "active"}, count)


def _made(response: Any, gaps: Gaps, about: dict[str, Any], count: int) -> Any:
    rows = gaps.capacity_reservations.setdefault(response.region, [])
    identity = f"cr-{len(rows):017x}"
    zones = response.ec2_backend.describe_availability_zones()
    zone = next((zone.zone_id for zone in zones if zone.name == about["AvailabilityZone"]), "")
    requested = response._get_param("TagSpecifications", []) or []
    arn = f"arn:aws:ec2:{response.region}:123456789012:capacity-reservation/{identity}"
    row = {
        **about,
        "CapacityReservationId": identity,
        "CapacityReservationArn": arn,
        "OwnerId": "123456789012",
        "AvailabilityZoneId": zone,
        "TotalInstanceCount": count,
        "AvailableInstanceCount": count,
        "Tenancy": "default",
        "EbsOptimized": True,
        "EphemeralStorage": False,
        "CreateDate": datetime.now(UTC),
        "Tags": [tag for specification in requested for tag in specification.get("Tags", [])],
    }
    rows.append(row)
    return ActionResult({"CapacityReservation": row})


def _cancel(response: Any, gaps: Gaps) -> Any:
    row = _known(response, gaps, response._get_param("CapacityReservationId"))
    if row["ReservationType"] == "capacity-block":
        raise EC2ClientError("OperationNotPermitted", "A Capacity Block cannot be cancelled.")
    row["State"] = "cancelled"
    return ActionResult({"Return": True})


def _offerings(response: Any, gaps: Gaps) -> Any:
    earliest, latest = (_time(response._get_param(name)) for name in ("StartDateRange", "EndDateRange"))
    kind, count = response._get_param("InstanceType"), int(response._get_param("InstanceCount"))
    found = [
        row
        for row in gaps.capacity_blocks.get(response.region, [])
        if (row["InstanceType"], row["InstanceCount"]) == (kind, count)
        and (earliest is None or row["StartDate"] >= earliest)
        and (latest is None or row["EndDate"] <= latest)
    ]
    return ActionResult({"CapacityBlockOfferings": found})


def _time(value: Any) -> datetime | None:
    """Return a time of a request; moto drops its zone, which is UTC."""
    return datetime.fromisoformat(str(value)).replace(tzinfo=UTC) if value else None


def _purchase(response: Any, gaps: Gaps) -> Any:
    rows, wanted = gaps.capacity_blocks.get(response.region, []), response._get_param("CapacityBlockOfferingId")
    row = next((row for row in rows if row["CapacityBlockOfferingId"] == wanted), None)
    if row is None:
        raise EC2ClientError("InvalidCapacityBlockOfferingId.NotFound", f"The offering '{wanted}' does not exist.")
    # An offering can be bought once.
    rows.remove(row)
    about = {name: row[name] for name in ("InstanceType", "AvailabilityZone", "StartDate", "EndDate")}
    about |= {"InstancePlatform": response._get_param("InstancePlatform"), "ReservationType": "capacity-block"}
    state = "active" if row["StartDate"] <= datetime.now(UTC) else "scheduled"
    about |= {"State": state, "EndDateType": "limited", "InstanceMatchCriteria": "targeted"}
    return _made(response, gaps, about, row["InstanceCount"])


def _create(response: Any, gaps: Gaps) -> Any:
    name = response._get_param("GroupName")
    if (response.region, name) in gaps.placement_groups:
        raise EC2ClientError("InvalidPlacementGroup.Duplicate", f"The placement group '{name}' already exists.")
    requested = response._get_param("TagSpecifications", []) or []
    made = {
        "GroupName": name,
        "State": "available",
        "Strategy": response._get_param("Strategy", "cluster"),
        "GroupId": f"pg-{len(gaps.placement_groups):017x}",
        "Tags": [tag for specification in requested for tag in specification.get("Tags", [])],
    }
    gaps.placement_groups[response.region, name] = made
    return ActionResult({"PlacementGroup": made})


def _describe(response: Any, gaps: Gaps) -> Any:
    names = response._get_param("GroupNames", []) or []
    known = {name: made for (region, name), made in gaps.placement_groups.items() if region == response.region}
    missing = [name for name in names if name not in known]
    if missing:
        raise EC2ClientError("InvalidPlacementGroup.Unknown", f"The Placement Group '{missing[0]}' is unknown.")
    return ActionResult({"PlacementGroups": [made for name, made in known.items() if not names or name in names]})


def _delete(response: Any, gaps: Gaps) -> Any:
    name = response._get_param("GroupName")
    if gaps.placement_groups.pop((response.region, name), None) is None:
        raise EC2ClientError("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown.")
    return ActionResult({})


def _reservations(response: Any, gaps: Gaps) -> Any:
    rows = gaps.capacity_reservations.get(response.region, [])
    for wanted in response._get_param("Filters", []) or []:
        name, values = wanted["Name"], wanted["Values"]
        if name == "state":
            rows = [row for row in rows if row["State"] in values]
        elif name == "tag-key":
            rows = [row for row in rows if any(tag["Key"] in values for tag in row.get("Tags", []))]
        elif name.startswith("tag:"):
            tag_of = (name.removeprefix("tag:"), values)
            rows = [row for row in rows if any((t["Key"], [t["Value"]]) == tag_of for t in row.get("Tags", []))]
    if identities := response._get_param("CapacityReservationIds", []) or []:
        rows = [_known(response, gaps, identity) for identity in identities]
    return ActionResult({"CapacityReservations": rows})


def _console(response: Any) -> Any:
    text = f"-----BEGIN SSH HOST KEY KEYS-----\n{PAPER_KEY} root@host\n-----END SSH HOST KEY KEYS-----\n"
    output = base64.b64encode(text.encode()).decode()
    return ActionResult({"InstanceId": response._get_param("InstanceId"), "Output": output})


@contextlib.contextmanager
def moto_server() -> Iterator[str]:
    """Serve on a free port of loopback; yields the address as a URL without a path."""
    app = AnsweredOnce(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=MotoRequestHandler)
    server.daemon_threads = True  # type: ignore[attr-defined]
    with in_thread(server) as address:
        yield address


class AnsweredOnce:
    """A WSGI application that makes each change of an AWS SDK only once, and one change at a time.

    On a busy machine, an answer may arrive before the end of its request. The SDK for Go then closes the connection,
    treats the answer as lost, and retries with the same invocation id. By then the change is made, and moto would
    refuse it: the rule to revoke is missing, or the group exists. Server errors are not kept, since SDKs retry them.
    Changes are serialized, since no thread may read moto's tables while another one changes them.
    """

    def __init__(self, app: Callable[..., Iterable[bytes]]) -> None:
        self._app = app
        self._answers: dict[str, Any] = {}
        self._one_call = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        with self._one_call:
            answer = self._answer(environ)
        sent: Iterable[bytes] = answer(environ, start_response)
        return sent

    def _answer(self, environ: dict[str, Any]) -> Any:
        call = environ.get("HTTP_AMZ_SDK_INVOCATION_ID")
        if call in self._answers:
            # Closing a connection with unread bytes would break it before the answer arrives.
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            return self._answers[call]
        answer = Response.from_app(self._app, environ, buffered=True)
        if call is not None and environ["REQUEST_METHOD"] not in ("GET", "HEAD") and answer.status_code < 500:
            self._answers[call] = answer
        return answer
