"""Messages and values of Terraform's plugin protocol 6 that the stand-in providers use."""

from __future__ import annotations

import json
from typing import Any

import msgpack
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "sailor_cloud.tfplugin6"
# Message, then field=number:type; * marks a repeated field, {T} a map from string to T.
_TABLE = """
DynamicValue        msgpack=1:bytes json=2:bytes
Diagnostic          severity=1:int32 summary=2:string detail=3:string
RawState            json=1:bytes
Attribute           name=1:string type=2:bytes required=4:bool optional=5:bool computed=6:bool
NestedBlock         type_name=1:string block=2:Block nesting=3:int32 min_items=4:int64 max_items=5:int64
Block               version=1:int64 attributes=2:*Attribute block_types=3:*NestedBlock
Schema              version=1:int64 block=2:Block
Capabilities        plan_destroy=1:bool get_provider_schema_optional=2:bool
Empty
Schemas provider=1:Schema resource_schemas=2:{Schema} data_source_schemas=3:{Schema} server_capabilities=6:Capabilities
Config              config=1:DynamicValue
TypeConfig          type_name=1:string config=2:DynamicValue
Diagnostics         diagnostics=1:*Diagnostic
Configure           terraform_version=1:string config=2:DynamicValue
Upgrade             type_name=1:string version=2:int64 raw_state=3:RawState
Upgraded            upgraded_state=1:DynamicValue diagnostics=2:*Diagnostic
Read                type_name=1:string current_state=2:DynamicValue
DataRead            state=1:DynamicValue diagnostics=2:*Diagnostic
ReadDone            new_state=1:DynamicValue diagnostics=2:*Diagnostic
Plan                type_name=1:string prior_state=2:DynamicValue proposed_new_state=3:DynamicValue
PathStep            attribute_name=1:string
Path                steps=1:*PathStep
Planned planned_state=1:DynamicValue requires_replace=2:*Path diagnostics=4:*Diagnostic legacy_type_system=5:bool
Apply               type_name=1:string prior_state=2:DynamicValue planned_state=3:DynamicValue
Applied             new_state=1:DynamicValue diagnostics=3:*Diagnostic legacy_type_system=4:bool
Import              type_name=1:string id=2:string
Imported            type_name=1:string state=2:DynamicValue private=3:bytes
Imports             imported_resources=1:*Imported diagnostics=2:*Diagnostic
Stopped             Error=1:string
"""
METHODS = {
    "GetProviderSchema": ("Empty", "Schemas"),
    "ValidateProviderConfig": ("Config", "Diagnostics"),
    "ValidateResourceConfig": ("TypeConfig", "Diagnostics"),
    "ValidateDataResourceConfig": ("TypeConfig", "Diagnostics"),
    "ReadDataSource": ("TypeConfig", "DataRead"),
    "UpgradeResourceState": ("Upgrade", "Upgraded"),
    "ConfigureProvider": ("Configure", "Diagnostics"),
    "ReadResource": ("Read", "ReadDone"),
    "PlanResourceChange": ("Plan", "Planned"),
    "ApplyResourceChange": ("Apply", "Applied"),
    "ImportResourceState": ("Import", "Imports"),
    "StopProvider": ("Empty", "Stopped"),
}

_FIELD = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "string": _FIELD.TYPE_STRING,
    "bytes": _FIELD.TYPE_BYTES,
    "bool": _FIELD.TYPE_BOOL,
    "int32": _FIELD.TYPE_INT32,
    "int64": _FIELD.TYPE_INT64,
}


def _build() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="sailor_cloud_tfplugin6.proto", package=_PACKAGE, syntax="proto3")
    for line in _TABLE.strip().splitlines():
        name, *fields = line.split()
        message = file.message_type.add(name=name)
        for text in fields:
            field_name, _, rest = text.partition("=")
            number, _, kind = rest.partition(":")
            _add_field(message, field_name, int(number), kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = [message.name for message in file.message_type]
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in names}


def _add_field(message: Any, name: str, number: int, kind: str) -> None:
    repeated = kind[0] in "*{"
    field = message.field.add(name=name, number=number)
    field.label = _FIELD.LABEL_REPEATED if repeated else _FIELD.LABEL_OPTIONAL
    if kind[0] == "{":
        # A map is a repeated message of key and value, with a name derived from the field's.
        entry = message.nested_type.add(name="".join(part.capitalize() for part in name.split("_")) + "Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, label=_FIELD.LABEL_OPTIONAL, type=_FIELD.TYPE_STRING)
        value = entry.field.add(name="value", number=2, label=_FIELD.LABEL_OPTIONAL)
        _set_type(value, kind[1:-1])
        field.type, field.type_name = _FIELD.TYPE_MESSAGE, f".{_PACKAGE}.{message.name}.{entry.name}"
    else:
        _set_type(field, kind.lstrip("*"))


def _set_type(field: Any, kind: str) -> None:
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type, field.type_name = _FIELD.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"


MESSAGES = _build()


Block = dict[str, Any]


class Unknown:
    """A value that is unknown before the apply."""

    def __repr__(self) -> str:
        return "(known after apply)"


UNKNOWN = Unknown()
_UNKNOWN_ON_WIRE = msgpack.ExtType(0, b"\x00")


def decode(value: Any) -> Any:
    """Return a DynamicValue as plain Python, with UNKNOWN for unknown values."""
    if value.json:
        return json.loads(value.json)
    if not value.msgpack:
        return None
    return msgpack.unpackb(value.msgpack, raw=False, strict_map_key=False, ext_hook=lambda code, data: UNKNOWN)


def encode(value: Any, block: Block) -> bytes:
    """Return an object of a block's type as msgpack, with null for missing values."""
    packed: bytes = msgpack.packb(_conform(value, block), use_bin_type=True)
    return packed


def with_unknowns(value: Any, block: Block) -> Any:
    """Return a configuration as planned for a new object: unset values that the provider computes are unknown."""
    if not isinstance(value, dict):
        return value
    planned = dict(value)
    for name, attribute in block["attributes"].items():
        if planned.get(name) is None and attribute.get("computed"):
            planned[name] = UNKNOWN
    for name, nested in block["block_types"].items():
        inner = planned.get(name)
        if isinstance(inner, list):
            planned[name] = [with_unknowns(item, nested["block"]) for item in inner]
    return planned


def without_unknowns(value: Any) -> Any:
    """Return a value with null for everything unknown."""
    if value is UNKNOWN:
        return None
    if isinstance(value, dict):
        return {name: without_unknowns(item) for name, item in value.items()}
    if isinstance(value, list):
        return [without_unknowns(item) for item in value]
    return value


def computed_but_set(config: Any, block: Block) -> list[str]:
    """Return the attributes that only the provider may set and that a configuration sets."""
    if not isinstance(config, dict):
        return []
    found = [
        name
        for name, attribute in block["attributes"].items()
        if config.get(name) is not None and not (attribute.get("optional") or attribute.get("required"))
    ]
    for name, nested in block["block_types"].items():
        inner = config.get(name)
        for item in inner if isinstance(inner, list) else [inner]:
            found += [f"{name}.{below}" for below in computed_but_set(item, nested["block"])]
    return found


def _conform(value: Any, block: Block) -> Any:
    if value is None:
        return None
    out = {name: _convert(value.get(name), attribute["type"]) for name, attribute in block["attributes"].items()}
    for name, nested in block["block_types"].items():
        inner = value.get(name)
        if inner is UNKNOWN:
            out[name] = _UNKNOWN_ON_WIRE
        elif nested["nesting_mode"] == "single":
            out[name] = _conform(inner, nested["block"])
        else:
            out[name] = [
                _UNKNOWN_ON_WIRE if item is UNKNOWN else _conform(item, nested["block"]) for item in inner or []
            ]
    return out


def _convert(value: Any, kind: Any) -> Any:
    if value is UNKNOWN:
        return _UNKNOWN_ON_WIRE
    if value is None:
        return None
    match kind:
        case "string":
            return str(value)
        case "number":
            number = float(value)
            return int(number) if number.is_integer() else number
        case "bool":
            return bool(value)
        case ["list" | "set", inner]:
            return [_convert(item, inner) for item in value]
        case ["map", inner]:
            return {str(name): _convert(item, inner) for name, item in value.items()}
        case ["object", shape]:
            return {name: _convert(value.get(name), inner) for name, inner in shape.items()}
    raise TypeError(f"Terraform has no type {kind!r}")
