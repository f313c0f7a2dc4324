from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from factories.called import called, searches_end_after
from factories.commands import ROOT, sailor
from factories.machine_speed import slowdown

# Looks at the clock in which a search has tried all accelerators and zones.
LOOKS = 600
HEAVY = ("asyncssh", "numpy", "pandas", "pydantic", "rich", "scipy", "torch", "yaml")


def test_help_answers_in_under_three_tenths_of_a_second() -> None:
    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert sailor("--help").returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    # Processor time, the fastest of several: other tests run on the same cores, and --help waits for nothing else.
    assert min(once() for _ in range(5)) < 0.3 * slowdown()


def test_help_imports_nothing_heavy() -> None:
    code = f"import sys, sailor_cloud.cli; print([m for m in {HEAVY} if m in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert answer.stdout.strip() == "[]"


def test_help_of_no_command_imports_anything_heavy() -> None:
    code = f"""
import sys, click
from sailor_cloud.cli.main import COMMANDS, cli
context = click.Context(cli)
for name in COMMANDS:
    command = cli.get_command(context, name)
    click.Context(command, info_name=name).get_help()
    for part in getattr(command, "commands", {{}}).values():
        click.Context(part, info_name=part.name).get_help()
print([name for name in {HEAVY} if name in sys.modules])
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert answer.stdout.strip() == "[]"


def test_every_listed_command_has_help_of_its_own() -> None:
    from sailor_cloud.cli.main import COMMANDS

    for name in COMMANDS:
        answer = called(name, "--help")
        assert answer.returncode == 0, answer.stderr
        assert f"sailor-cloud {name}" in answer.stdout


def test_the_package_runs_as_a_module() -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "sailor_cloud", "--version"], capture_output=True, text=True, check=True
    )
    assert answer.stdout.startswith("sailor-cloud, version ")


def test_a_mistyped_command_is_guessed() -> None:
    answer = called("paln")
    assert answer.returncode == 2
    assert "no command 'paln'; did you mean 'plan'?" in answer.stderr


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("plan",), "error: Missing argument 'JOB'."),
        (("plan", "job.yaml", "--jsn"), "error: No such option '--jsn'. (Did you mean one of: '--json', '--on'?)"),
        (
            ("bandwidth", "us-central1-a", "us-centrall-b"),
            "error: no zone 'us-centrall-b'; did you mean 'us-central1-b'",
        ),
        (("quota", "--provider", "gcp", "--region", "us-centrall1"), "did you mean 'us-central1'"),
        (
            ("up", str(ROOT / "examples" / "quickstart.yaml"), "--deadline", "soon"),
            "error: --deadline: 'soon' is not a",
        ),
    ],
)
def test_wrong_words_on_the_command_line_exit_2_and_look_like_any_error(command: tuple[str, ...], message: str) -> None:
    answer = called(*command)
    assert answer.returncode == 2
    assert message in answer.stderr
    assert "Error:" not in answer.stderr


def test_ctrl_c_while_planning_ends_with_a_word_and_130() -> None:
    with mock.patch("factories.called._search", side_effect=KeyboardInterrupt):
        answer = called("plan", str(ROOT / "examples" / "quickstart.yaml"), "--as-of", "2026-11-20")
    assert (answer.returncode, answer.stdout, answer.stderr) == (130, "", "\ninterrupted\n")


def test_a_missing_job_file_is_an_input_error_without_a_traceback() -> None:
    answer = called("plan", "nowhere.yaml")
    assert answer.returncode == 2
    missing = "error: can't read job file nowhere.yaml: No such file or directory"
    assert answer.stderr == f"{missing}; 'sailor-cloud init -o nowhere.yaml' writes one\n"


def test_faults_of_a_job_file_are_listed_together(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("name: x\nmodel: {preset: gpt2}\ntraining: {global_batch: 3}\nresources: []\n")
    answer = called("plan", str(job))
    assert answer.returncode == 2
    assert "training.global_batch: is not a field here (did you mean 'global_batch_size'?)" in answer.stderr
    assert "training.sequence_length: is missing" in answer.stderr
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize(
    ("example", "known", "wrong", "named"),
    [
        ("quickstart.yaml", "CPU-fast", "CPU-fats", ("did you mean 'CPU-fast'", "CPU-slow")),
        ("gcp-a100-v100.yaml", "A100-40", "Gaudi-9", ("A100-40", "V100-16", "H100-80")),
    ],
)
def test_an_unknown_accelerator_names_the_known_ones(
    example: str, known: str, wrong: str, named: tuple[str, ...], tmp_path: Path
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text((ROOT / "examples" / example).read_text().replace(f"{known}:", f"{wrong}:"))
    answer = called("plan", str(job))
    assert answer.returncode == 2
    assert f"'{wrong}' is not a known accelerator" in answer.stderr
    assert all(name in answer.stderr for name in named), answer.stderr


def with_budget(text: str, budget_usd: float) -> str:
    return re.sub(r"budget_usd: [\d.]+", f"budget_usd: {budget_usd}", text)


@pytest.mark.xdist_group("plans")
def test_a_budget_too_small_exits_3_and_names_one_that_would_do(tmp_path: Path) -> None:
    text = (ROOT / "examples" / "quickstart.yaml").read_text()
    poor = tmp_path / "poor.yaml"
    poor.write_text(with_budget(text, 0.0001))
    answer = called("plan", str(poor), "--json")
    assert answer.returncode == 3, answer.stderr
    infeasibility = json.loads(answer.stdout)["infeasibility"]
    assert infeasibility["constraint"] == "budget_usd"
    enough = tmp_path / "enough.yaml"
    enough.write_text(with_budget(text, infeasibility["needed"]))
    assert called("plan", str(enough)).returncode == 0


@pytest.mark.xdist_group("plans")
@pytest.mark.parametrize("example", ["quickstart.yaml", "gcp-a100-v100.yaml"])
def test_the_examples_plan_without_credentials_and_fill_the_document(example: str, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    # What the whole searches of the examples find is on the demo page, which is tested.
    with searches_end_after(LOOKS):
        answer = called("plan", str(ROOT / "examples" / example), "--as-of", "2026-11-21", "-o", str(out))
    assert answer.returncode == 0, answer.stderr
    document = json.loads(out.read_text())
    assert document["status"] in ("optimal", "feasible")
    limits, cost = document["constraints"], document["cost"]
    assert 0 < cost["total_usd"] <= limits["budget_usd"]
    assert all(line["price_source"] for line in cost["lines"])
    used = {offer["accelerator"] for offer in document["inputs"]["offers"]}
    assert used <= {"CPU-fast", "CPU-slow", "A100-40", "V100-16"}


def test_status_without_runs_says_how_to_start_one(tmp_path: Path) -> None:
    answer = called("status", home=tmp_path)
    assert answer.returncode == 0
    assert f"no runs yet in {tmp_path / 'runs'}" in answer.stdout.replace("\n", "")
    assert called("status", "--json", home=tmp_path).stdout.strip() == "[]"


def test_down_of_an_unknown_run_names_the_folder(tmp_path: Path) -> None:
    answer = called("down", "nope", home=tmp_path)
    assert answer.returncode == 2
    assert "nope" in answer.stderr


def test_doctor_prints_one_json_document(tmp_path: Path) -> None:
    answer = called("doctor", "--json", home=tmp_path)
    names = {check["name"] for check in json.loads(answer.stdout)}
    assert {"aws clients", "gcp clients"} <= names
    assert {"Python", "Terraform", "torch", "deepspeed", "transformers", "loopback", "run folder", "disk"} <= names


def test_doctor_names_missing_clients_of_a_cloud_and_does_not_fail_for_them(tmp_path: Path) -> None:
    with mock.patch.dict(sys.modules, {"boto3": None}):
        answer = called("doctor", home=tmp_path)
    assert answer.returncode == 0, answer.stdout
    said = "aws clients: the Python module boto3 is not installed; run pip install 'sailor-cloud[aws]'"
    assert said in answer.stdout


def test_doctor_finds_a_run_folder_that_can_t_be_created() -> None:
    answer = called("doctor", home=Path("/proc/nope"))
    assert answer.returncode == 1
    assert "the folder of runs can't be created: /proc/nope" in " ".join(answer.stdout.split())
