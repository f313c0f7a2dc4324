"""Stand-in Terraform providers: the official schemas over a cloud in memory.

Terraform's core is real; only the plugin is ours. It runs in the caller's process, and Terraform attaches to it through
TF_REATTACH_PROVIDERS, so nothing is downloaded or started. Only the schema is checked, and a few values that force a
replacement (cloud.FORCES_NEW): not defaults, conflicts and validators.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from functools import lru_cache
from importlib import resources
from typing import Any

import grpc

from sailor_cloud.testing.terraform.cloud import FORCES_NEW, CloudError, FakeCloud
from sailor_cloud.testing.terraform.messages import (
    MESSAGES,
    METHODS,
    Block,
    computed_but_set,
    decode,
    encode,
    with_unknowns,
    without_unknowns,
)
from sailor_cloud.testing.terraform.naming import imported

_ERROR = 1
_NESTING = {"single": 1, "list": 2, "set": 3, "map": 4}
_ADDRESSES = {
    "google": "registry.terraform.io/hashicorp/google",
    "aws": "registry.terraform.io/hashicorp/aws",
}


@contextmanager
def serve(cloud: FakeCloud, *names: str) -> Iterator[dict[str, str]]:
    """Serve the stand-ins for `google` and `aws`; yields the environment that makes Terraform use them."""
    servers = []
    reattach = {}
    for name in names or tuple(_ADDRESSES):
        server, port = _server(_Provider(name, cloud))
        servers.append(server)
        reattach[_ADDRESSES[name]] = {
            "Protocol": "grpc",
            "ProtocolVersion": 6,
            "Pid": os.getpid(),
            "Test": True,
            "Addr": {"Network": "tcp", "String": f"127.0.0.1:{port}"},
        }
    try:
        yield {"TF_REATTACH_PROVIDERS": json.dumps(reattach)}
    finally:
        for server in servers:
            server.stop(grace=None).wait()


def _server(provider: _Provider) -> tuple[Any, int]:
    unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    # Threads start on demand: one for each concurrent request of Terraform, over all roots.
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=1024), options=unlimited)
    methods = {
        method: grpc.unary_unary_rpc_method_handler(
            getattr(provider, method), MESSAGES[request].FromString, MESSAGES[answer].SerializeToString
        )
        for method, (request, answer) in METHODS.items()
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("tfplugin6.Provider", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, port


class _Provider:
    """The calls of the plugin protocol, under their original names."""

    def __init__(self, name: str, cloud: FakeCloud) -> None:
        schemas = _schema_file(name)
        self._blocks: dict[str, Block] = schemas["resources"]
        self._data_blocks: dict[str, Block] = schemas["data_sources"]
        self._schemas = _schemas(name)
        self._cloud = cloud
        # By connection, since each provider configuration of each Terraform process has one.
        self._configs: dict[str, dict[str, Any]] = {}

    def GetProviderSchema(self, request: Any, context: Any) -> Any:  # noqa: N802
        return self._schemas

    def ValidateProviderConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        return MESSAGES["Diagnostics"]()

    def ValidateResourceConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        wrong = computed_but_set(decode(request.config), self._blocks[request.type_name])
        faults = [_fault(f"{name} is decided by the provider and can't be set") for name in wrong]
        return MESSAGES["Diagnostics"](diagnostics=faults)

    def ValidateDataResourceConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        wrong = computed_but_set(decode(request.config), self._data_blocks[request.type_name])
        faults = [_fault(f"{name} is decided by the provider and can't be set") for name in wrong]
        return MESSAGES["Diagnostics"](diagnostics=faults)

    def ReadDataSource(self, request: Any, context: Any) -> Any:  # noqa: N802
        block = self._data_blocks[request.type_name]
        try:
            found = self._cloud.look_up(request.type_name, decode(request.config))
        except CloudError as error:
            return MESSAGES["DataRead"](diagnostics=[_fault(str(error))])
        return MESSAGES["DataRead"](state=MESSAGES["DynamicValue"](msgpack=encode(found, block)))

    def UpgradeResourceState(self, request: Any, context: Any) -> Any:  # noqa: N802
        state = json.loads(request.raw_state.json)
        return MESSAGES["Upgraded"](upgraded_state=self._value(request.type_name, state))

    def ConfigureProvider(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._configs[context.peer()] = decode(request.config) or {}
        return MESSAGES["Diagnostics"]()

    def ReadResource(self, request: Any, context: Any) -> Any:  # noqa: N802
        state = decode(request.current_state)
        try:
            found = self._cloud.read(request.type_name, state["id"])
        except CloudError as error:
            return MESSAGES["ReadDone"](new_state=request.current_state, diagnostics=[_fault(str(error))])
        return MESSAGES["ReadDone"](new_state=self._value(request.type_name, found))

    def ImportResourceState(self, request: Any, context: Any) -> Any:  # noqa: N802
        kind = request.type_name
        found = self._cloud.read(kind, imported(kind, request.id, self._cloud.of_type(kind)))
        if found is None:
            return MESSAGES["Imports"](diagnostics=[_fault(f"Cannot import non-existent remote object {request.id}")])
        taken = MESSAGES["Imported"](type_name=kind, state=self._value(kind, found))
        return MESSAGES["Imports"](imported_resources=[taken])

    def PlanResourceChange(self, request: Any, context: Any) -> Any:  # noqa: N802
        wanted = decode(request.proposed_new_state)
        if wanted is None:
            return MESSAGES["Planned"](planned_state=request.proposed_new_state)
        prior = decode(request.prior_state)
        forced = []
        if prior is None:
            wanted = with_unknowns(wanted, self._blocks[request.type_name])
        else:
            names = FORCES_NEW.get(request.type_name, ())
            forced = [name for name in names if (wanted.get(name) or None) != (prior.get(name) or None)]
        paths = [MESSAGES["Path"](steps=[MESSAGES["PathStep"](attribute_name=name)]) for name in forced]
        planned = self._value(request.type_name, wanted)
        return MESSAGES["Planned"](planned_state=planned, requires_replace=paths, legacy_type_system=True)

    def ApplyResourceChange(self, request: Any, context: Any) -> Any:  # noqa: N802
        kind = request.type_name
        prior, planned = decode(request.prior_state), decode(request.planned_state)
        state: Any = prior
        faults = []
        try:
            if prior is None:
                state = None
                state = self._cloud.create(kind, without_unknowns(planned), self._configs.get(context.peer(), {}))
            elif planned is None:
                self._cloud.delete(kind, prior["id"])
                state = None
            else:
                state = self._cloud.update(kind, prior["id"], without_unknowns(planned))
        except CloudError as error:
            faults = [_fault(str(error))]
            state = error.state or state
        answer = MESSAGES["Applied"](new_state=self._value(kind, state), diagnostics=faults, legacy_type_system=True)
        return answer

    def StopProvider(self, request: Any, context: Any) -> Any:  # noqa: N802
        return MESSAGES["Stopped"]()

    def _value(self, kind: str, state: Any) -> Any:
        return MESSAGES["DynamicValue"](msgpack=encode(state, self._blocks[kind]))


@lru_cache
def _schema_file(name: str) -> dict[str, Any]:
    file = resources.files("sailor_cloud.testing") / "schemas" / f"{name}.json"
    known: dict[str, Any] = json.loads(file.read_text())
    return known


@lru_cache
def _schemas(name: str) -> Any:
    known = _schema_file(name)
    return MESSAGES["Schemas"](
        provider=_schema(known["provider"]),
        resource_schemas={kind: _schema(block) for kind, block in known["resources"].items()},
        data_source_schemas={kind: _schema(block) for kind, block in known["data_sources"].items()},
        # As with both real providers, each Terraform process requests the schema once.
        server_capabilities=MESSAGES["Capabilities"](plan_destroy=False, get_provider_schema_optional=True),
    )


def _schema(block: Block) -> Any:
    return MESSAGES["Schema"](version=0, block=_block(block))


def _block(block: Block) -> Any:
    attributes = [
        MESSAGES["Attribute"](
            name=name,
            type=json.dumps(attribute["type"]).encode(),
            required=attribute.get("required", False),
            optional=attribute.get("optional", False),
            computed=attribute.get("computed", False),
        )
        for name, attribute in block["attributes"].items()
    ]
    nested = [
        MESSAGES["NestedBlock"](
            type_name=name,
            block=_block(inner["block"]),
            nesting=_NESTING[inner["nesting_mode"]],
            min_items=inner.get("min_items", 0),
            max_items=inner.get("max_items", 0),
        )
        for name, inner in block["block_types"].items()
    ]
    return MESSAGES["Block"](attributes=attributes, block_types=nested)


def _fault(summary: str) -> Any:
    return MESSAGES["Diagnostic"](severity=_ERROR, summary=summary)
