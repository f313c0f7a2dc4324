"""Extracts provider schemas from the npm packages that are generated from them.

    npm pack @cdktf/provider-google @cdktf/provider-aws
    python benchmarks/provision/extract_schemas.py cdktf-provider-google-*.tgz cdktf-provider-aws-*.tgz

Each compiled file of such a package carries its TypeScript source in its source map, and there every attribute has a
comment with its name and flags. ForceNew, defaults, conflicts and validators are in no schema and so not here.
"""

from __future__ import annotations

import base64
import json
import re
import sys
import tarfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

GOOGLE = (
    "compute-network",
    "compute-subnetwork",
    "compute-firewall",
    "compute-resource-policy",
    "compute-instance",
    "compute-router",
    "compute-router-nat",
    "service-account",
    "storage-bucket",
    "storage-bucket-iam-member",
    "storage-bucket-object",
    "project-iam-custom-role",
    "project-iam-member",
    "cloudfunctions2-function",
    "cloud-scheduler-job",
)
AWS = (
    "vpc",
    "internet-gateway",
    "route-table",
    "route",
    "subnet",
    "route-table-association",
    "security-group",
    "vpc-security-group-ingress-rule",
    "vpc-security-group-egress-rule",
    "key-pair",
    "placement-group",
    "ec2-capacity-reservation",
    "ec2-capacity-block-reservation",
    "instance",
    "launch-template",
    "eip",
    "nat-gateway",
    "vpc-endpoint",
    "vpc-peering-connection",
    "vpc-peering-connection-accepter",
    "scheduler-schedule-group",
    "scheduler-schedule",
    "s3-bucket",
    "s3-bucket-public-access-block",
    "s3-bucket-lifecycle-configuration",
    "iam-role",
    "iam-role-policy",
    "iam-instance-profile",
    "lambda-function",
    "cloudwatch-log-group",
)
AWS_DATA = ("availability-zone", "vpc", "route-table", "security-group", "ssm-parameter")

_SOURCE_MAP = re.compile(r"sourceMappingURL=data:application/json;base64,([A-Za-z0-9+/=]+)")
_CLASS = re.compile(r"^export class (\w+) extends ([\w.]+) \{\n(.*?)^\}\n", re.M | re.S)
_MAPPER = re.compile(r"^export function (\w+)ToHclTerraform\(.*?\n(.*?)^\}\n", re.M | re.S)
_ENTRY = re.compile(
    r'^ +(\w+): \{\n +value: (.*),\n +isBlock: \w+,\n +type: "(\w+)",\n +storageClassType: "(\w+)"', re.M
)
_ATTRIBUTE = re.compile(
    r"^  // (\w+) - computed: (\w+), optional: (\w+), required: (\w+)\n((?:(?!  // ).*\n){1,4})", re.M
)
_NESTED = re.compile(r'= new (cdktf\.)?(\w+)\(this, "\w+"(?:, (true|false))?')
_GETTER = re.compile(r"this\.get(\w+)Attribute\(")
# `alias` belongs to Terraform itself.
_LEFT_OUT = ("alias",)
_SCALARS = {"String": "string", "Number": "number", "Boolean": "bool", "string": "string", "number": "number"}
_STORED = {**_SCALARS, "boolean": "bool", "stringMap": ["map", "string"], "stringList": ["list", "string"]}


@dataclass(frozen=True)
class _Source:
    """The TypeScript of one resource."""

    text: str

    @cached_property
    def classes(self) -> dict[str, tuple[str, str]]:
        return {found[1]: (found[2], found[3]) for found in _CLASS.finditer(self.text)}

    @cached_property
    def mappers(self) -> dict[str, dict[str, tuple[str, str, str]]]:
        """Name of a nested structure, in small letters, to how its attributes are written as HCL."""
        return {found[1].lower(): _entries(found[2]) for found in _MAPPER.finditer(self.text)}

    def top(self, base: str) -> str:
        return next(name for name, (parent, _) in self.classes.items() if parent == base)

    def block(self, name: str, written: dict[str, tuple[str, str, str]]) -> dict[str, Any]:
        """Return the schema of a class, as Terraform's own JSON has it."""
        attributes: dict[str, Any] = {}
        blocks: dict[str, Any] = {}
        for found in _ATTRIBUTE.finditer(self.classes[name][1]):
            attribute, flags, tail = found[1], _flags(found), found[5]
            nested = _NESTED.search(tail.split("\n")[0])
            how = written.get(attribute)
            if nested is None or nested[1]:
                attributes[attribute] = {"type": _simple_type(tail, nested, how), **flags}
                continue
            inner = self._nested_block(nested[2])
            mode = self._mode(nested, how)
            if how is None or ", false)(" in how[0]:
                # A list of objects that HCL also takes as blocks; or one that is only ever computed.
                shape = _object_type(inner)
                attributes[attribute] = {"type": shape if mode == "single" else [mode, shape], **flags}
            else:
                blocks[attribute] = _block_type(inner, mode, single=nested[2].endswith("OutputReference"), **flags)
        return {"attributes": attributes, "block_types": blocks}

    def _nested_block(self, kind: str) -> dict[str, Any]:
        structure = re.sub(r"(OutputReference|List)$", "", kind)
        return self.block(f"{structure}OutputReference", self.mappers.get(structure.lower(), {}))

    def _mode(self, nested: re.Match[str], how: tuple[str, str, str] | None) -> str:
        if nested[2].endswith("OutputReference"):
            return "list" if how is not None and how[1] != "struct" else "single"
        return "set" if nested[3] == "true" else "list"


def _entries(body: str) -> dict[str, tuple[str, str, str]]:
    return {found[1]: (found[2], found[3], found[4]) for found in _ENTRY.finditer(body)}


def _flags(found: re.Match[str]) -> dict[str, bool]:
    named = zip(("computed", "optional", "required"), found.group(2, 3, 4), strict=True)
    return {name: True for name, value in named if value == "true"}


def _simple_type(tail: str, nested: re.Match[str] | None, how: tuple[str, str, str] | None) -> Any:
    if nested is not None:
        return ["map", _SCALARS[nested[2].removesuffix("Map")]]
    getter = _GETTER.search(tail)
    if getter is None:
        raise ValueError(f"no type is known for:\n{tail}")
    word = getter[1]
    if word.endswith("Map"):
        return ["map", _SCALARS[word.removesuffix("Map")]]
    if word in ("List", "NumberList"):
        mode = "set" if "Fn.tolist" in tail or (how is not None and how[1] == "set") else "list"
        return [mode, "number" if word == "NumberList" else "string"]
    return _SCALARS[word]


def _block_type(inner: dict[str, Any], mode: str, *, single: bool, **flags: bool) -> dict[str, Any]:
    counts = {"min_items": 1} if flags.get("required") and mode != "single" else {}
    if single and mode != "single":
        counts["max_items"] = 1
    return {"nesting_mode": mode, "block": inner, **counts}


def _object_type(block: dict[str, Any]) -> list[Any]:
    shape = {name: attribute["type"] for name, attribute in block["attributes"].items()}
    for name, nested in block["block_types"].items():
        inner = _object_type(nested["block"])
        shape[name] = inner if nested["nesting_mode"] == "single" else [nested["nesting_mode"], inner]
    return ["object", shape]


def extract(package: Path, names: tuple[str, ...], data: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the schemas of some resources and data sources, and of the provider's plain attributes."""
    with tarfile.open(package) as archive:

        def read(name: str) -> str:
            member = archive.extractfile(f"package/{name}")
            if member is None:
                raise FileNotFoundError(f"{package} has no {name}")
            return member.read().decode()

        about = json.loads(read("package.json"))
        versions: set[str] = set()

        def schema(name: str, base: str) -> tuple[str, dict[str, Any]]:
            source = _source(read(f"lib/{name}/index.js"))
            top = source.top(base)
            body = source.classes[top][1]
            versions.update(re.findall(r"providerVersion: '([\d.]+)'", body))
            kind = re.findall(r'tfResourceType = "(\w+)"', body)[0]
            return kind, source.block(top, _entries(body[body.index("synthesizeHclAttributes") :]))

        resources = dict(schema(name, "cdktf.TerraformResource") for name in names)
        data_sources = dict(schema(f"data-aws-{name}", "cdktf.TerraformDataSource") for name in data)
        provider = _provider(_source(read("lib/provider/index.js")))
    return {
        "extracted_from": f"{about['name']}@{about['version']}",
        "provider_version": versions.pop() if len(versions) == 1 else sorted(versions),
        "provider": provider,
        "resources": resources,
        "data_sources": data_sources,
    }


def _provider(source: _Source) -> dict[str, Any]:
    """Return the plain attributes of the provider's own block; blocks in it are left out."""
    body = source.classes[source.top("cdktf.TerraformProvider")][1]
    written = _entries(body[body.index("synthesizeHclAttributes") :])
    kept = {name: how for name, how in written.items() if name not in _LEFT_OUT and not name.endswith("_endpoint")}
    plain = {name: _STORED[how[2]] for name, how in kept.items() if how[1] == "simple" and how[2] in _STORED}
    return {"attributes": {name: {"type": kind, "optional": True} for name, kind in plain.items()}, "block_types": {}}


def _source(compiled: str) -> _Source:
    encoded = _SOURCE_MAP.search(compiled)
    if encoded is None:
        raise ValueError("the file carries no source map")
    return _Source(text=json.loads(base64.b64decode(encoded[1]))["sourcesContent"][0])


def main() -> None:
    google, aws = (Path(argument) for argument in sys.argv[1:3])
    folder = Path(__file__).parents[2] / "sailor_cloud" / "testing" / "schemas"
    for package, names, data, target in ((google, GOOGLE, (), "google.json"), (aws, AWS, AWS_DATA, "aws.json")):
        text = json.dumps(extract(package, names, data), sort_keys=True, separators=(",", ":"))
        # One resource a line keeps the file small and its changes readable.
        (folder / target).write_text(re.sub(r'("(?:aws|google)_\w+":\{"attributes")', r"\n\1", text) + "\n")


if __name__ == "__main__":
    main()
