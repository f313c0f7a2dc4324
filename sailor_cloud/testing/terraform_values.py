"""Values of Terraform's type system on the wire, between msgpack and plain Python."""

from __future__ import annotations

import json
from typing import Any

import msgpack

Block = dict[str, Any]


class Unknown:
    """A value that is not known before the apply."""

    def __repr__(self) -> str:
        return "(known after apply)"


UNKNOWN = Unknown()
_UNKNOWN_ON_WIRE = msgpack.ExtType(0, b"\x00")


def decode(value: Any) -> Any:
    """Return a DynamicValue as plain Python, with UNKNOWN where it is not known."""
    if value.json:
        return json.loads(value.json)
    if not value.msgpack:
        return None
    return msgpack.unpackb(value.msgpack, raw=False, strict_map_key=False, ext_hook=lambda code, data: UNKNOWN)


def encode(value: Any, block: Block) -> bytes:
    """Return an object of a block's type as msgpack; what is missing is null."""
    packed: bytes = msgpack.packb(_conform(value, block), use_bin_type=True)
    return packed


def with_unknowns(value: Any, block: Block) -> Any:
    """Return a configuration as planned for a new object: what the provider computes and nobody set is unknown."""
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
    """Return a value with null for everything that is unknown."""
    if value is UNKNOWN:
        return None
    if isinstance(value, dict):
        return {name: without_unknowns(item) for name, item in value.items()}
    if isinstance(value, list):
        return [without_unknowns(item) for item in value]
    return value


def computed_but_set(config: Any, block: Block) -> list[str]:
    """Return the attributes that the provider alone decides and that a configuration sets nevertheless."""
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
