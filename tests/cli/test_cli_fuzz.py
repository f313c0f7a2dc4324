"""Any arguments, and any job with `run`: an answer or one clear error with the right exit code, never a traceback."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import click
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from factories.called import Answer, called
from factories.commands import ROOT
from factories.documents import document
from factories.simulated_runs import simulated_run
from sailor_cloud.cli.main import COMMANDS, cli
from sailor_cloud.errors import RequestError, SailorError
from sailor_cloud.model.job_file import parse_job

# What would search, train, serve, ask a cloud or replace this process; the arguments have been read by then.
BEYOND = (
    "api.plan",
    "api.explain",
    "api.compare",
    "api.replay",
    "api.replay_spot",
    "api.up",
    "catalog.quota_needs.read_quotas",
    "catalog.refresh.refresh",
    "catalog.prices.elsewhere.ask_gpuhunt",
    "launch.doctor.examine",
    "launch.down.take_down",
    "launch.start.resume_run",
    "launch.profiling.profiler.run_profile",
    "provision.cleanup.reap.find_leftovers",
    "provision.cloud_clock.by_cloud",
    "report.run.dashboard.Dashboard",
)
RUN_JOB = """
name: any
run: python train.py
setup: pip install x
workdir: .
env: {A: b}
processes_per_node: 2
stall: 30m
throughput: 2.0
training: {steps: 100}
constraints: {budget_usd: 5, deadline: 24h}
resources:
  - {provider: gcp, zones: [us-central1-a, us-central1-b], markets: [on-demand], accelerators: {A100-40: 2}}
checkpoint: {every: 10m, keep: 3}
"""
FILES = {
    "job.yaml": (ROOT / "examples" / "quickstart.yaml").read_bytes(),
    "run.yaml": RUN_JOB.encode(),
    "empty": b"",
    "bytes.json": bytes(range(256)),
    "deep.yaml": b"[" * 5000,
    "deep.json": b'{"a":' * 5000,
    "list.json": b"[1, NaN, 1e999]",
    "table.csv": b"a,b\n1\n",
    "trace.csv": (ROOT / "examples" / "traces" / "lost-zone.csv").read_bytes(),
    "plan.json": document().to_json().encode(),
}
VALUES = st.sampled_from(
    [
        *FILES,
        *("folder", ".", "missing/x.json", "/dev/full", "/dev/null", "-", "--", "", " ", "*", "a" * 5000),
        *("-1", "0", "1", "7", "1e400", "nan", "-inf", "99999999999999999999", "0x1", "1,2", "1,,2", "½"),
        *("gcp", "local", "azure", "us-central1-a", "local-a", "us-east-1", "A100-40", "A100", "spot", "sailor"),
        *("90s", "2 weeks", "1e99d", "0001-01-01", "9999-12-31", "2026-02-30", "203.0.113.7/32", "0.0.0.0/0", "::/0"),
        *(
            "tp=1 pp=2",
            "tp=0",
            "pp=",
            "tp=99999999999",
            "2 x local-cpu-fast@local-a",
            "0 x @",
            "8xA100-40@us-central1-a",
        ),
        *("\udcff", "[/red]", "[bold]x", "\x1b[2J", "\u202e", "../../etc", "127.0.0.1:1", ":99999999", "a,b"),
    ]
)


def commands(group: click.Group, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*words, name))
        else:
            yield (*words, name), command


EVERY = list(commands(cli))


# What a command takes, by the name of its argument or option.
RIGHT = {
    "job_file": ("job.yaml", "run.yaml"),
    "plan_file": ("plan.json",),
    "what": ("plan.json", "job.yaml", "run.yaml"),
    "file": ("plan.json", "job.yaml", "run.yaml"),
    "base": ("plan.json",),
    "head": ("plan.json",),
    "trace_file": ("trace.csv",),
    "run": ("chaos",),
    "runs": ("chaos",),
    "src": ("us-central1-a", "local-a", "use1-az1"),
    "dst": ("us-central1-b", "europe-west4-a", "local-b"),
    "zones": ("us-central1-a",),
    "regions": ("us-central1", "us-east-1"),
    "accelerators": ("A100-40",),
    "accelerator": ("A100-40", "CPU-fast"),
    "instance_type": ("a2-highgpu-1g",),
    "layout": ("tp=1 pp=2", "dp=2", "pp=2 microbatch=2 zero=1 recompute=full"),
    "nodes": ("2 x local-cpu-fast@local-a", "1 x 4xA100-40@us-central1-a", "2 x a2-highgpu-1g@us-central1-a/spot"),
    "ssh_from": ("203.0.113.7/32",),
    "older_than": ("1h",),
    "deadline": ("12h",),
    "strategies": ("metis,amp",),
    "why_not": ("local-a", "CPU-fast"),
    "output": ("out.json", "out.html", "new/out"),
}


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """Draw a command with what it takes, mostly, and something else in some places."""
    words, command = draw(st.sampled_from(EVERY))
    line = list(words)
    for parameter in draw(st.permutations(command.params)):
        flag = isinstance(parameter, click.Option) and parameter.is_flag
        value = VALUES if draw(st.integers(0, 3)) == 0 else right(parameter)
        if isinstance(parameter, click.Argument):
            line += draw(st.lists(value, min_size=1, max_size=1 if draw(st.integers(0, 9)) else 2))
        elif parameter.required or draw(st.integers(0, 5)) == 0:
            line += [parameter.opts[-1]] if flag else [parameter.opts[-1], draw(value)]
    return line


def right(parameter: click.Parameter) -> st.SearchStrategy[str]:
    """Return what a parameter takes."""
    if isinstance(parameter.type, click.Choice):
        return st.sampled_from([str(choice) for choice in parameter.type.choices])
    if isinstance(parameter.type, click.Path) and not parameter.type.file_okay:
        return st.just("folder")
    if isinstance(parameter.type, click.IntRange | click.FloatRange):
        return st.sampled_from(["1", "2", "40"])
    if isinstance(parameter.type, click.DateTime):
        return st.sampled_from(["2026-11-21", "2026-08-01", "0001-01-01", "9999-12-31"])
    return st.sampled_from(RIGHT[parameter.name]) if parameter.name in RIGHT else VALUES


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "folder").mkdir()
    simulated_run(folder / "home")
    return folder


@pytest.fixture(scope="module")
def _nothing_beyond() -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for place in BEYOND:
            stack.enter_context(mock.patch(f"sailor_cloud.{place}", side_effect=SailorError("reached")))
        yield


def broken(answer: Answer) -> list[str]:
    """Return what an answer breaks of what every command promises."""
    errors = [text for text in answer.stderr.splitlines() if text.startswith("error: ")]
    refused = answer.returncode in (2, 3) and "Usage" not in answer.stdout + answer.stderr
    promises = {
        "an exit code from 0 to 3": answer.returncode in (0, 1, 2, 3),
        "one line of error where it refuses": len(errors) == 1 or not refused,
        "errors that say something": all(len(error) > len("error: ") + 3 for error in errors),
        "no traceback": "Traceback" not in answer.stderr,
    }
    return [promise for promise, kept in promises.items() if not kept]


@pytest.mark.usefixtures("_nothing_beyond")
@settings(max_examples=120)
@given(line=command_lines())
def test_any_arguments_are_accepted_or_rejected_with_a_message(line: list[str], folder: Path) -> None:
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    answer = called(*line, cwd=folder, home=folder / "home")
    assert broken(answer) == [], answer.stderr


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the places of everything inside a job file."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, below in inner for place in leaves(below, (*path, key)))]


JOBS = [yaml.safe_load(FILES["job.yaml"]), yaml.safe_load((ROOT / "examples" / "gcp-a100-v100.yaml").read_bytes())]
JOBS.append(yaml.safe_load(RUN_JOB))
JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["", "1e400", "~"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=300)
@given(data=st.data(), which=st.integers(0, len(JOBS) - 1), junk=JUNK)
def test_a_job_file_with_anything_anywhere_is_read_or_refused_and_one_with_run_planned_as_well(
    data: st.DataObject, which: int, junk: Any, folder: Path
) -> None:
    job = copy.deepcopy(JOBS[which])
    *parents, last = data.draw(st.sampled_from(leaves(job)[1:]))
    place = job
    for key in parents:
        place = place[key]
    place[last] = junk
    # Anything but these two would be a traceback.
    try:
        outcome = parse_job(yaml.safe_dump(job)).name
    except RequestError as error:
        outcome = str(error)
    assert outcome
    if JOBS[which]["name"] == "any":
        (folder / "any.yaml").write_text(yaml.safe_dump(job))
        command = data.draw(st.sampled_from([["plan", "any.yaml"], ["up", "any.yaml", "--dry-run", "--json"]]))
        answer = called(*command, cwd=folder, home=folder / "home")
        assert broken(answer) == [], f"{job}\n{answer.stderr}"


def test_every_command_is_among_those_that_are_tried() -> None:
    assert {words[0] for words, _ in EVERY} == set(COMMANDS)
