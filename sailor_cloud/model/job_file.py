"""Reads a job from the text of its YAML file and reports every fault with its place."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from sailor_cloud.errors import Problem, RequestError
from sailor_cloud.model.job import Job
from sailor_cloud.model.untrusted import (
    DEEPEST,
    MOST_JOB_BYTES,
    MOST_JOB_VALUES,
    REPORTS,
    check_values,
    read_at_most,
    too_deep,
    too_many,
)

# The forms of fields with a pattern, by field, or by the enclosing field and the field.
_FORMS: dict[str, str] = {
    "name": "lower-case letters, digits and hyphens, at most 40 characters, not ending in a hyphen",
    "gcp.service_account": "the e-mail of a service account, such as nodes@my-project.iam.gserviceaccount.com",
    "billing_export": "PROJECT.DATASET.TABLE, such as my-billing.export.gcp_billing_export_v1_0123AB_4567CD_89EF01",
    "bucket": "gs://BUCKET or s3://BUCKET, without a folder",
    "module": "a module and the name of its function, such as my_package.model:build",
    "prefix": "folders, such as sailor-cloud or teams/a",
    "to": "a path that begins with /, gs:// or s3://",
    "checkpoints": "a path that begins with /, gs:// or s3://",
    "gres": "a resource without its count, such as gpu:a100",
    "partition": "one or more of Slurm's partitions, such as gpu,gpu-old",
    "constraint": "features of Slurm's nodes, such as a100 or a100&nvlink",
    "python": "the path of an interpreter, without spaces",
    "account": "letters, digits, dots and hyphens alone",
    "qos": "letters, digits, dots and hyphens alone",
    "namespace": "lower-case letters, digits and hyphens",
    "queue": "lower-case letters, digits, dots and hyphens",
    "service_account": "lower-case letters, digits, dots and hyphens",
    "claim": "lower-case letters, digits, dots and hyphens",
    "image": "a container image without spaces, such as registry.example.org/sailor:1",
    "resource": "a resource of Kubernetes' nodes, such as nvidia.com/gpu",
    "mounts": "an absolute path without spaces",
    "modules": "names of modules without spaces, such as cuda/12.6",
    "id": "the reservation's id on AWS, such as cr-0123456789abcdef0, or its name on Google Cloud",
}


_MISSING = {"model": "add 'model', or the command to 'run'", "training": "add 'training'"}
_OTHER_FAMILIES = "; others train by their own script in 'run', or as layers in model: {module: my_package.model:build}"
_PASSWORD = re.compile(r"//[^/@]+@")
_MERGE = "tag:yaml.org,2002:merge"


class _ForbiddenError(yaml.YAMLError):
    """Something that is YAML and that no job file may have."""


class _Loader(yaml.SafeLoader):
    """Reads plain values only; rejects duplicate keys, and merge keys that multiply what they merge."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        super().flatten_mapping(node)
        if len(node.value) > MOST_JOB_VALUES:
            raise _ForbiddenError(f"merges more than {MOST_JOB_VALUES:,} values at {_place(node.start_mark)}")

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[str, yaml.Mark] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                if key.value in seen:
                    lines = f"{seen[key.value].line + 1} and {key.start_mark.line + 1}"
                    raise _ForbiddenError(f"has the key {key.value!r} twice, in lines {lines}")
                seen[key.value] = key.start_mark
        return super().construct_mapping(node, deep=deep)


def parse_job(text: str, *, origin: str = "job") -> Job:
    """Return the job of a YAML text. Raises RequestError with all faults, each with path and hint."""
    return job_of_values(read_yaml(text, origin=origin), origin=origin)


# The name for all nodes of an inventory if a job names no resources; no accelerator has it.
ALL = "all"


def read_job(path: Path, *, on: str | None = None) -> Job:
    """Return the job in a file. Raises RequestError if the file is unreadable or wrong.

    With `on`, a scheduler's inventory replaces the job's resources, so it may have none.
    """
    return job_of_values(read_values(path), origin=str(path), on=on)


def read_values(path: Path) -> Any:
    """Return the plain values of a job file. Raises RequestError if the file is unreadable or not YAML."""
    if path.suffix in REPORTS and path.is_file():
        instead = "give the job file, or to 'explain' the plan that 'sailor-cloud plan JOB -o plan.json' writes"
        raise RequestError(f"{path} is a page or a report, not a job file; {instead}")
    return read_yaml(text_of(path, "job file", written_by="init"), origin=str(path))


def text_of(path: Path, what: str, *, written_by: str) -> str:
    """Return the text of a small file. Raises RequestError; for a missing file, with the command that writes one."""
    try:
        if path.suffix == ".json" and path.stat().st_size > MOST_JOB_BYTES:
            raise RequestError(
                f"{path} is too large for a {what}; 'explain', 'simulate' and 'up JOB --plan' read plans in JSON"
            )
        return read_at_most(path, MOST_JOB_BYTES).decode()
    except FileNotFoundError as error:
        hint = f"'sailor-cloud {written_by} -o {path}' writes one"
        raise RequestError(f"can't read {what} {path}: {error.strerror}; {hint}") from error
    except OSError as error:
        raise RequestError(f"can't read {what} {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RequestError(f"{what} {path} is not UTF-8 text: {error}") from error


def job_of_values(raw: Any, *, origin: str = "job", on: str | None = None) -> Job:
    """Return the job of plain values; `on` as in `read_job`, errors as in `parse_job`."""
    check_values(raw, origin=origin, most=MOST_JOB_VALUES)
    if raw is None:
        raise RequestError([Problem(path=origin, message="is empty", hint="'sailor-cloud init' writes a job file")])
    if not isinstance(raw, dict):
        kind = "a list" if isinstance(raw, list) else repr(raw)
        message = f"must be a mapping with name, model (or run), training and resources; it is {kind}"
        raise RequestError([Problem(path=origin, message=message)])
    if {"schema_version", "plan"} <= raw.keys():
        hint = "'sailor-cloud up JOB --plan FILE' carries it out, 'sailor-cloud simulate FILE' looks at it"
        raise RequestError([Problem(path=origin, message="is a plan, not a job file", hint=hint)])
    if unitless := [
        Problem(path=f"{origin}: {place}", message=f"is {value:g}, a time without a unit", hint=_with_units(value))
        for place, value in _times(raw)
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]:
        raise RequestError(unitless)
    if on is not None and "resources" not in raw:
        raw = {**raw, "resources": [{"provider": on, "zones": [ALL], "accelerators": {ALL: 1}}]}
    try:
        return Job.model_validate(raw)
    except ValidationError as error:
        absent = [name for name in ("model", "training") if "run" not in raw and raw.get(name) is None]
        missing = [Problem(path=f"{origin}: {name}", message="is missing", hint=_MISSING[name]) for name in absent]
        raise RequestError([*missing, *faults_of(error, origin, but="no_training" if absent else "")]) from error


def _times(raw: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the durations of a job file with their places."""
    for part, name in (("constraints", "deadline"), ("checkpoint", "every")):
        if isinstance(raw.get(part), dict):
            yield f"{part}.{name}", raw[part].get(name)
    yield "stall", raw.get("stall")


def _with_units(value: float) -> str:
    return f"write {value:g}h, {value:g}m or {value:g}s"


def of_file(error: RequestError, origin: str) -> RequestError:
    """Return the error with the file's name before each place in the job that is named without it."""
    return RequestError(
        [
            replace(problem, path=f"{origin}: {problem.path}")
            if ": " not in problem.path and re.split(r"[.\[]", problem.path)[0] in Job.model_fields
            else problem
            for problem in error.problems
        ]
    )


def read_yaml(text: str, *, origin: str) -> Any:
    """Return the values of a YAML text. Raises RequestError for other text, and for deep nesting."""
    _check_extent(text, origin)
    try:
        raw = yaml.load(text, Loader=_Loader)
    except _ForbiddenError as error:
        raise RequestError([Problem(path=origin, message=str(error))]) from error
    except yaml.YAMLError as error:
        raise RequestError([Problem(path=origin, message=f"is not YAML: {_yaml_fault(error)}")]) from error
    except ValueError as error:
        # A date that does not exist, such as 2026-13-01, or a number with thousands of digits.
        raise RequestError([Problem(path=origin, message=f"is not YAML: {error}")]) from error
    return raw


def faults_of(error: ValidationError, origin: str, model: type[BaseModel] = Job, *, but: str = "") -> list[Problem]:
    """Return the faults of a file that should be a `model`, except those of the type `but`."""
    faults = _first_faults(error.errors())
    return [_problem(origin, fault, model) for fault in faults if fault["type"] != but]


def _check_extent(text: str, origin: str) -> None:
    """Raise RequestError for text that PyYAML would read slowly, that is nested too deeply or that contains itself.

    This is one pass in C.
    """
    open_anchors: list[str | None] = []
    try:
        for seen, event in enumerate(yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))):
            if isinstance(event, yaml.CollectionStartEvent):
                open_anchors.append(event.anchor)
            elif isinstance(event, yaml.CollectionEndEvent):
                open_anchors.pop()
            elif isinstance(event, yaml.AliasEvent) and event.anchor in open_anchors:
                message = f"has the alias *{event.anchor} within &{event.anchor}, a loop, at {_place(event.start_mark)}"
                raise RequestError([Problem(path=origin, message=message)])
            if len(open_anchors) > DEEPEST:
                raise RequestError([Problem(path=origin, message=too_deep())])
            if seen > MOST_JOB_VALUES:
                raise RequestError([Problem(path=origin, message=too_many(MOST_JOB_VALUES))])
    except yaml.YAMLError:
        # PyYAML's Python parser reports it more clearly.
        return


def _first_faults(faults: list[ErrorDetails]) -> list[ErrorDetails]:
    """Drop lists that are too short only because their items are wrong, and all but the first fault of a choice."""
    faults = [fault for fault in faults if not str(fault["loc"][-1:]).startswith("('constrained-")]
    places = [fault["loc"] for fault in faults]
    return [
        fault
        for fault, place in zip(faults, places, strict=True)
        if fault["type"] != "too_short" or not any(len(p) > len(place) and p[: len(place)] == place for p in places)
    ]


def _yaml_fault(error: yaml.YAMLError) -> str:
    """Return the fault and its place on one line."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return " ".join(str(error).split())
    context = f"{error.context}: " if error.context else ""
    return f"{context}{error.problem} at {_place(error.problem_mark)}"


def _place(mark: Any) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}"


def _problem(origin: str, fault: ErrorDetails, model: type[BaseModel]) -> Problem:
    path = f"{origin}: {_dotted(fault['loc'])}"
    given = fault.get("input")
    match fault["type"]:
        case "missing":
            return Problem(path=path, message="is missing", hint=f"add '{fault['loc'][-1]}'")
        case "extra_forbidden":
            return Problem(path=path, message="is not a field here", hint=_field_hint(fault["loc"], model))
        case "enum":
            expected = str(fault.get("ctx", {}).get("expected", ""))
            close = difflib.get_close_matches(str(given).lower(), re.findall(r"'([^']+)'", expected), n=1)
            guess = f"did you mean '{close[0]}'? " if close else ""
            other = _OTHER_FAMILIES if fault["loc"][-1] == "model_type" else ""
            return Problem(path=path, message=f"is {given!r}", hint=f"{guess}one of {expected}{other}")
        case "literal_error" if str(fault["loc"][-1]).startswith("literal["):
            path = f"{origin}: {_dotted(fault['loc'][:-1])}"
            return Problem(path=path, message=f"is {given!r}", hint=f"a number above 0, or {fault['ctx']['expected']}")
        case "string_type":
            hint = "put it in quotes" if isinstance(given, int | float | date) else ""
            return Problem(path=path, message=f"must be text, got {_shown(given)}", hint=hint)
        case "string_too_short":
            return Problem(path=path, message="must not be empty")
        case "too_short" if fault["ctx"]["min_length"] == 1:
            return Problem(path=path, message="must not be empty")
        case "int_type" | "int_parsing" | "int_from_float":
            return Problem(path=path, message=f"must be a whole number, got {_shown(given)}")
        case "float_type" | "float_parsing":
            hint = "write a duration such as 24h" if isinstance(given, date) else ""
            return Problem(path=path, message=f"must be a number, got {_shown(given)}", hint=hint)
        case "string_pattern_mismatch":
            path = path.removesuffix(".[key]")
            return Problem(path=path, message=f"is {given!r}", hint=_form(fault))
        case "tuple_type" | "list_type":
            return Problem(path=path, message=f"must be a list, got {given!r}", hint=_as_list(given))
        case "model_type" | "model_attributes_type" | "dict_type":
            return Problem(
                path=path, message=f"must be a mapping, got {given!r}", hint=_as_mapping(fault["loc"], given, model)
            )
    message = fault["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    already_shown = isinstance(given, dict | list | bool) or (isinstance(given, str) and repr(given) in message)
    shown = "" if already_shown else f", got {_shown(given)}"
    return Problem(path=path, message=message + shown)


def _shown(given: object) -> str:
    return str(given) if isinstance(given, date) else _PASSWORD.sub("//…@", repr(given))


def _form(fault: ErrorDetails) -> str:
    """Return the required form of a field's text in words, else its pattern."""
    names = ["name" if part == "[key]" else part for part in fault["loc"] if isinstance(part, str)]
    found = _FORMS.get(".".join(names[-2:])) or _FORMS.get(names[-1] if names else "")
    return found or f"of the form {fault['ctx']['pattern']}"


def _as_list(given: object) -> str:
    return f"write [{given}]" if isinstance(given, str | int | float) else "write a line that begins with - for each"


def _as_mapping(location: Sequence[int | str], given: object, model: type[BaseModel]) -> str:
    if location in (("model",), ("data",)) and isinstance(given, str):
        field = "source" if location == ("data",) else "config" if "/" in given or ".json" in given else "preset"
        return f"write {{{field}: {given}}}"
    if location[-1] == "accelerators":
        return "from names to counts, such as {A100-40: 8}"
    names = _fields_at(location, model)
    # A place without fields of its own has those of the part around it.
    return "" if names == _fields_at(location[:-1], model) else f"with {', '.join(names)}"


def _dotted(location: Sequence[int | str]) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text or "file"


def _field_hint(location: Sequence[int | str], model: type[BaseModel]) -> str:
    names = _fields_at(location[:-1], model)
    close = difflib.get_close_matches(str(location[-1]).lower(), names, n=1)
    return f"did you mean '{close[0]}'?" if close else f"known: {', '.join(names)}"


def _fields_at(location: Sequence[int | str], model: type[BaseModel]) -> list[str]:
    for part in location:
        if isinstance(part, str) and part in model.model_fields:
            found = _model_in(model.model_fields[part].annotation)
            if found is not None:
                model = found
    return list(model.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        found = _model_in(argument)
        if found is not None:
            return found
    return None
