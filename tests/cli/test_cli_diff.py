from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from factories.called import called
from factories.commands import COMMAND
from factories.documents import document, infeasible


@pytest.fixture
def plans(tmp_path: Path) -> tuple[str, str]:
    base = document()
    assert base.cost is not None
    head = replace(base, cost=replace(base.cost, total_usd=0.006))
    names = (tmp_path / "base.json", tmp_path / "head.json")
    for path, made in zip(names, (base, head), strict=True):
        path.write_text(made.to_json())
    return str(names[0]), str(names[1])


def diff(plans: tuple[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    return called("diff", *plans, *options)


def test_a_diff_says_what_a_change_costs(plans: tuple[str, str]) -> None:
    answer = diff(plans)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.startswith("tiny: +0.00300 USD (+100 %), 0\n")


def test_a_limit_in_dollars_fails_the_command(plans: tuple[str, str]) -> None:
    answer = diff(plans, "--fail-above-usd", "0.001")
    assert answer.returncode == 1
    assert answer.stderr == "error: the change costs 0.00300 USD more, allowed are 0.00100\n"
    assert diff(plans, "--fail-above-usd", "0.004").returncode == 0


def test_a_limit_in_percent_fails_the_command(plans: tuple[str, str]) -> None:
    answer = diff(plans, "--fail-above-percent", "50")
    assert answer.returncode == 1
    assert "the change costs 100 % more, allowed are 50 %" in answer.stderr
    assert diff(plans[::-1], "--fail-above-percent", "0", "--fail-above-usd", "0").returncode == 0


def test_without_a_plan_to_compare_with_the_whole_cost_counts(plans: tuple[str, str]) -> None:
    base, head = plans
    Path(base).write_text(infeasible().to_json())
    assert diff((base, head), "--fail-above-usd", "0.01").returncode == 0
    answer = diff((base, head), "--fail-above-usd", "0.001", "--fail-above-percent", "900")
    assert answer.returncode == 1
    assert answer.stderr == "error: BASE has no plan, so the whole cost counts: 0.00600 USD, allowed are 0.00100\n"
    answer = diff((base, head), "--fail-above-percent", "900")
    assert answer.returncode == 1
    assert "900 % can't be checked; give --fail-above-usd" in answer.stderr
    assert diff((head, base)).returncode == 3


def test_a_limit_that_can_not_be_checked_fails(plans: tuple[str, str], tmp_path: Path) -> None:
    base = document(steps=None)
    assert base.cost is not None
    command = replace(base, cost=replace(base.cost, usd_per_iteration=None))
    larger = replace(command, cost=replace(base.cost, usd_per_iteration=None, usd_per_hour=2 * base.cost.usd_per_hour))
    one, two = str(tmp_path / "one.json"), str(tmp_path / "two.json")
    for path, made in ((one, command), (two, larger)):
        Path(path).write_text(made.to_json())
    for pair, whose in (((plans[0], one), "HEAD"), ((one, plans[0]), "BASE"), ((one, two), "BASE and HEAD")):
        answer = diff(pair, "--fail-above-usd", "50")
        assert answer.returncode == 1
        assert f"can't be checked, since the total of {whose} is unknown" in answer.stderr
        assert diff(pair).returncode == 0
    assert diff((plans[0], one), "--fail-above-percent", "900").returncode == 1
    assert "costs 100 % more" in diff((one, two), "--fail-above-percent", "20").stderr
    assert diff((one, two), "--fail-above-percent", "101").returncode == 0


def test_a_plan_of_another_version_is_distinguished_from_a_broken_one(plans: tuple[str, str]) -> None:
    base, head = plans
    Path(base).write_text(Path(base).read_text().replace('"schema_version": 1', '"schema_version": 7'))
    answer = diff((base, head))
    assert answer.returncode == 2
    assert "is 7, this version reads 1" in answer.stderr
    assert "write the document again" in answer.stderr


def test_json_is_one_document(plans: tuple[str, str]) -> None:
    assert json.loads(diff(plans, "--json").stdout)["usd"]["head"] == 0.006
    file = Path(plans[0]).with_name("diff.json")
    assert diff(plans, "--json", "-o", str(file)).stdout == file.read_text()


def test_markdown_goes_to_a_file(plans: tuple[str, str], tmp_path: Path) -> None:
    out = tmp_path / "comment.md"
    assert diff(plans, "--format", "markdown", "-o", str(out)).stdout == ""
    assert out.read_text().startswith("### tiny: +0.00300 USD")


@pytest.mark.parametrize(("name", "begin"), [("a.md", "### tiny"), ("a.json", '{\n  "base_job"'), ("a.txt", "tiny: +")])
def test_the_ending_of_the_file_says_the_format(plans: tuple[str, str], tmp_path: Path, name: str, begin: str) -> None:
    assert diff(plans, "-o", str(tmp_path / name)).returncode == 0
    assert (tmp_path / name).read_text().startswith(begin)


def test_a_format_that_diff_lacks_is_refused(plans: tuple[str, str], tmp_path: Path) -> None:
    answer = diff(plans, "-o", str(tmp_path / "a.html"))
    assert answer.returncode == 2
    assert "'diff' has no html; name a .json, .md or .txt file" in answer.stderr


def test_a_missing_plan_says_how_to_write_one(tmp_path: Path) -> None:
    answer = called("diff", str(tmp_path / "no.json"), str(tmp_path / "no.json"))
    assert answer.returncode == 2
    assert "'sailor-cloud plan JOB -o" in answer.stderr


def test_a_reader_that_leaves_early_does_not_hide_the_limit(plans: tuple[str, str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [str(COMMAND), "diff", *plans, "--fail-above-usd", "0"]
    with open(writing, "wb") as closed:
        done = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert "allowed are 0" in done.stderr
