"""What people get wrong: every fault is told on one line, with the place and the way out, and exits with 2."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from unittest import mock

import pytest
import yaml

import sailor_cloud as sc
from factories.called import called
from factories.commands import COMMAND, ROOT
from sailor_cloud import resources
from sailor_cloud.model.untrusted import MOST_JOB_BYTES

QUICKSTART = (ROOT / "examples" / "quickstart.yaml").read_text()
# What to replace in the quickstart by what, or a whole text, and what is said about it.
WRONG_JOBS = {
    "empty": ("", "is empty ('sailor-cloud init' writes a job file)"),
    "a list": ("- 1", "must be a mapping"),
    "unclosed": ("name: [x", "is not YAML: while parsing a flow sequence: expected ',' or ']'"),
    "tab": ("name: x\n\tgoal: y", "is not YAML: while scanning for the next token"),
    "field": ("goal:", "gaol:", "gaol: is not a field here (did you mean 'goal'?)"),
    "goal": (
        "maximize-throughput",
        "maximise-throughput",
        "goal: is 'maximise-throughput' (did you mean 'maxim",
    ),
    "capitals": ("provider: local", "provider: LOCAL", "provider: is 'LOCAL' (did you mean 'local'? one of"),
    "negative": (
        r"budget_usd: [\d.]+",
        "budget_usd: -5",
        "budget_usd: must be greater than 0, got -5",
    ),
    "unit of money": (
        r"budget_usd: [\d.]+",
        "budget_usd: 5 EUR",
        "budget_usd: must be a number, got '5 EUR'",
    ),
    "budget that no sum can hold": (
        r"budget_usd: [\d.]+",
        "budget_usd: 1.0e15",
        "budget_usd: must be less than or equal to 1000000000, got '1.0e15'",
    ),
    "unit of time": (r"deadline: \w+", "deadline: 2 weeks", "'2 weeks' is not a duration; write for example 90s"),
    "market": (
        r"\[on-demand\]",
        "[on-demnad]",
        "markets[0]: is 'on-demnad' (did you mean 'on-demand'? one of",
    ),
    "provider": (
        "provider: local",
        "provider: gpc",
        "provider: is 'gpc' (did you mean 'gcp'? one of",
    ),
    "zone": ("local-a,", "locl-a,", "'locl-a' is not a known zone of local (did you mean 'local-a'"),
    "no list": (r"zones: \[.*\]", "zones: local-a", "zones: must be a list, got 'local-a' (write [local-a])"),
    "no mapping": (
        r"(?s)model:\n.*(?=data:)",
        "model: gpt2\n",
        "model: must be a mapping, got 'gpt2' (write {preset: gpt2})",
    ),
    "a path as model": (
        r"(?s)model:\n.*(?=data:)",
        "model: hf/config.json\n",
        "model: must be a mapping, got 'hf/config.json' (write {config: hf/config.json})",
    ),
    "a path as data": (
        r"data: \{.*\}",
        "data: own/data",
        "data: must be a mapping, got 'own/data' (write {source: own/data})",
    ),
    "market in capitals": (r"\[on-demand\]", "[On-Demand]", "markets[0]: is 'On-Demand' (did you mean 'on-demand'?"),
    "market of a cloud": (
        r"\[on-demand\]",
        "[spot]",
        "resources[0].markets: local does not sell on spot (markets: [on-demand])",
    ),
    "twice": ("(?s)$", "\nname: again\n", "has the key 'name' twice, in lines"),
    "not finite": (r"budget_usd: [\d.]+", "budget_usd: .inf", "constraints.budget_usd: is inf; it must be a finite"),
    "no unit": (r"deadline: \w+", "deadline: 24", "constraints.deadline: is 24, a time without a unit (write 24h, 24m"),
    "no unit for checkpoints": (
        "every: 1m",
        "every: 10",
        "checkpoint.every: is 10, a time without a unit (write 10h, 10m",
    ),
    "a date": (
        r"deadline: \w+",
        "deadline: 2026-12-01",
        "constraints.deadline: must be a number, got 2026-12-01 (write",
    ),
    "a fraction": (r"steps: \d+", "steps: 1.5", "training.steps: must be a whole number, got 1.5"),
    "no zones": (r"zones: \[.*\]", "zones: []", "resources[0].zones: must not be empty"),
    "no model": (r"(?s)model:\n.*(?=data:)", "model:\n", "model: is missing (add 'model', or the command to 'run')"),
    "weights elsewhere": (
        "model:\n",
        "model:\n  weights: hf://a/b\n",
        "model.weights: must be a path, gs://bucket/folder or s3://bucket/folder, got 'hf://a/b'",
    ),
    "no tokenizer": (
        r"data: \{.*\}",
        "data: {source: mine, format: text}",
        "data: format 'text' needs a tokenizer: add 'tokenizer' with a tokenizers file, or use 'bytes'",
    ),
    "yes": (r"CPU-fast: \d+", "CPU-fast: yes", "must be a number, got yes or true"),
    "yes for money": (r"budget_usd: [\d.]+", "budget_usd: yes", "constraints.budget_usd: must be a number, got yes"),
    "yes for a probability": (
        r"budget_usd:",
        "probability: yes, budget_usd:",
        "probability: must be a number, got yes",
    ),
    "yes for time": (r"deadline: \w+", "deadline: yes", "constraints.deadline: must be a number, got yes or true"),
    "named twice": ("local-a,", "local-a, local-a,", "zones: names local-a twice"),
    "too large": (r"steps: \d+", "steps: 100000000000000000000", "training.steps: must be less than or equal to 10000"),
    "too long": (r"deadline: \w+", "deadline: 99999999999999d", "is longer than a hundred years"),
    "memory left out": (
        "CPU-fast:",
        "CPU:",
        "'CPU' is not a known accelerator offered by local (did you mean 'CPU-fast' or",
    ),
    "heads": ("num_attention_heads: 4", "num_attention_heads: 3", "model.num_attention_heads: 3 does not divide"),
    "long samples": (
        "sequence_length: 128",
        "sequence_length: 129",
        "training.sequence_length: is 129, the model has 128 positions (give at most 128, or a model with",
    ),
    "no config": (
        r"(?s)model:\n.*(?=data:)",
        "model: {config: gone/config.json}\n",
        "model.config: can't read gone/config.json: No such file",
    ),
    "model of the Hub": (
        r"(?s)model:\n.*(?=data:)",
        "model: {config: facebook/opt-350m}\n",
        "No such file or directory (give the path of a config.json, or hf://ORG/NAME for a model on the Hug",
    ),
    "preset": (
        r"(?s)model:\n.*(?=data:)",
        "model: {preset: qwen3-8b}\n",
        "for any other model give {config: FOLDER/config.json} or {config: hf://ORG/NAME})",
    ),
    "precision": ("precision: fp32", "precision: float32", "training.precision: is 'float32' (one of "),
}


@pytest.mark.parametrize("fault", WRONG_JOBS)
def test_each_fault_of_a_job_file_is_one_line_that_names_its_place_and_the_way_out(fault: str, tmp_path: Path) -> None:
    *change, message = WRONG_JOBS[fault]
    text = re.sub(change[0], change[1], QUICKSTART, count=1) if len(change) == 2 else change[0]
    assert text != QUICKSTART
    (tmp_path / "job.yaml").write_text(text)
    answer = called("plan", "job.yaml", cwd=tmp_path)
    assert answer.returncode == 2
    assert answer.stdout == ""
    (line,) = answer.stderr.splitlines()
    assert line.startswith("error: job.yaml: ")
    assert message in line


@pytest.mark.parametrize("function", [sc.plan, sc.explain, sc.compare])
def test_errors_in_python_name_the_job_file_or_say_job_for_a_mapping(
    function: Callable[..., object], tmp_path: Path
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(QUICKSTART.replace("CPU-fast:", "CPU-fats:"))
    place = "resources[1].accelerators.CPU-fats"
    for job, origin in ((path, f"{path}"), (str(path), f"{path}"), (yaml.safe_load(path.read_text()), "job")):
        with pytest.raises(sc.RequestError) as caught:
            function(job)
        assert [problem.path for problem in caught.value.problems] == [f"{origin}: {place}"]


def test_wrong_fields_and_unknown_names_are_reported_together(tmp_path: Path) -> None:
    text = QUICKSTART.replace("precision: fp32", "precision: fp33").replace("CPU-fast:", "CPU-fats:")
    text = text.replace("model:\n", "model:\n  preset: opt-350n\n").replace("local-a,", "local-q,")
    (tmp_path / "job.yaml").write_text(text.replace("markets:", "market:"))
    answer = called("plan", "job.yaml", cwd=tmp_path)
    assert answer.returncode == 2
    for told in (
        "precision: is 'fp33'",
        "market: is not a field",
        "'CPU-fats' is not",
        "'opt-350n' is not",
        "'local-q'",
    ):
        assert told in answer.stderr


def test_up_reports_missing_settings_together_with_unknown_names(tmp_path: Path) -> None:
    text = (ROOT / "examples" / "gcp-a100-v100.yaml").read_text()
    (tmp_path / "job.yaml").write_text(text.replace("owner: me@example.org, ", "").replace("V100-16:", "V100:"))
    answer = called("up", "job.yaml", "--yes", cwd=tmp_path)
    assert answer.returncode == 2
    owner, ssh_from, accelerator = answer.stderr.splitlines()
    assert owner.startswith("error: job.yaml: cloud.owner: is missing (add the person")
    assert ssh_from == "--ssh-from: is missing (your address, such as 203.0.113.7/32)"
    assert accelerator.startswith("job.yaml: resources[0].accelerators.V100: 'V100' is not a known accelerator")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("plan", "."), "'.' is a directory"),
        (("diff", "empty", "empty"), "(a plan document is what 'sailor-cloud plan JOB -o plan.json' writes)"),
        (("simulate", "job.yaml"), "job.yaml is a job file; give --layout and --nodes with it"),
        (("up", "job.yaml", "--plan", "empty", "--yes"), "empty: is not JSON"),
        (("up", "job.yaml", "--plan", "gone.json"), "can't read plan gone.json: No such file"),
        (("plan", "job.yaml", "-o", "gone/plan.json"), "can't write gone/plan.json: there is no folder gone"),
        (("plan", "job.yaml", "--format", "htlm"), "'htlm' is not one of 'table', 'json', 'markdown', 'html'"),
        (("plan", "job.yaml", "--as-of", "yesterday"), "'yesterday' does not match the format"),
        (("plan", "job.yaml", "--as-of", "0001-01-01"), "0001-01-01 is not between 2020-01-01 and 2"),
        (("prices", "list", "--as-of", "9999-12-31"), "9999-12-31 is not between 2020-01-01 and 2"),
        (("plan", "job.yaml", "--json", "--format", "html"), "--json and --format html ask for two formats; give one"),
        (("plan", "-"), "can't read -: there is no such file; standard input is /dev/stdin"),
        (("simulate", "-"), "can't read -: there is no such file; standard input is /dev/stdin"),
        (("plan", "job.yaml", "-o", "-"), "can't write -: leave -o out for standard output, and give --format or"),
        (("plan", "job.yaml", "--pricing", "gone"), "'gone' does not exist"),
        (("plan", "job.yaml", "--pricing", "nothing"), "nothing holds no CSV file; docs/data.md names those"),
        (("prices", "list", "--pricing", "nothing"), "nothing holds no CSV file; docs/data.md names those"),
        (("plan", "job.yaml", "--profiles", "nothing"), "nothing holds no JSON or CSV file; docs/data.md names those"),
        (("plan", "job.yaml", "--network", "nothing"), "nothing holds no CSV file; docs/data.md names those"),
        (("plan", "job.yaml", "-o", "x.pdf"), "can't tell the format of x.pdf; give it a suffix (.htm, .html, .json,"),
        (("plan", "large.json"), "large.json is too large for a job file; 'explain', 'simulate' and 'up JOB --plan' "),
        (("up", "job.yaml", "--budget", "-5"), "-5.0 is not in the range x>0"),
        (("prices", "lst"), "No such command 'lst'. Did you mean 'list'?"),
        (("explain", "empty"), "empty: is empty"),
        (("diff", "job.yaml", "job.yaml"), "job.yaml: is a job file, not a plan"),
    ],
)
def test_wrong_files_and_values_exit_2_with_the_reason_on_one_line(
    command: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text(QUICKSTART)
    (tmp_path / "empty").touch()
    (tmp_path / "nothing").mkdir()
    (tmp_path / "large.json").write_text(" " * (MOST_JOB_BYTES + 1))
    answer = called(*command, cwd=tmp_path)
    assert answer.returncode == 2, answer.stderr
    assert message in answer.stderr.splitlines()[-1]
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize("what", ["a file", "a folder in a file"])
def test_a_state_folder_that_can_t_be_used_is_reported_before_anything_is_done(what: str, tmp_path: Path) -> None:
    (tmp_path / "home").touch()
    home = tmp_path / "home" if what == "a file" else tmp_path / "home" / "inside"
    answer = called("history", home=home, cwd=tmp_path)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert f"the folder of runs can't be used: {home}: Not a directory" in answer.stderr


def test_missing_settings_for_a_purchase_are_reported_before_the_search(tmp_path: Path) -> None:
    called("init", "--preset", "aws", "--no-schema", cwd=tmp_path)
    with mock.patch("sailor_cloud.api.plan", side_effect=AssertionError("searched")):
        answer = called("up", "job.yaml", "--yes", cwd=tmp_path)
    assert answer.returncode == 2
    assert "--ssh-from: is missing (your address, such as 203.0.113.7/32)" in answer.stderr
    assert "have stale prices" in answer.stderr
    assert "buying at 2 doubtful prices among them needs --allow-doubtful" in answer.stderr


TO_BUY = ("up", "job.yaml", "--ssh-from", "203.0.113.7/32")


@pytest.mark.parametrize(
    ("preset", "arguments", "home", "code", "message"),
    [
        (
            "gcp",
            ("--yes",),
            "home",
            1,
            "error: all 52 offers that the job may buy have stale prices, ",
        ),
        (
            "aws",
            ("--yes", "--allow-stale"),
            "home",
            1,
            "error: no AWS credentials; run 'aws configure' or ",
        ),
        ("gcp", ("--yes", "--allow-stale"), "home", 1, "error: no Google Cloud credentials: "),
        ("gcp", (), "home", 2, "error: there is no terminal to ask on; give --yes to buy without being asked"),
        ("gcp", ("--yes",), "/proc/1/nope", 2, "error: the folder of runs can't be created: /proc/1/nope: No such"),
        ("local", ("--yes",), "/proc/1/nope", 2, "error: the folder of runs can't be created: /proc/1/nope: No suc"),
    ],
)
def test_prices_credentials_terminal_and_state_folder_are_checked_before_the_search(
    preset: str, arguments: tuple[str, ...], home: str, code: int, message: str, tmp_path: Path
) -> None:
    called("init", "--preset", preset, "--no-schema", cwd=tmp_path)
    nobody = {"HOME": str(tmp_path), "AWS_CONFIG_FILE": str(tmp_path), "AWS_EC2_METADATA_DISABLED": "true"}
    nobody["NO_GCE_CHECK"] = "true"
    with mock.patch("sailor_cloud.planner.search", side_effect=AssertionError("searched")) as search:
        answer = called(*TO_BUY, *arguments, home=tmp_path / home, cwd=tmp_path, environment=nobody)
    assert (answer.returncode, answer.stdout, search.called) == (code, "", False)
    (line,) = answer.stderr.splitlines()
    assert line.startswith(message)


@pytest.mark.parametrize(
    ("preset", "module", "extra"), [("aws", "boto3", "aws"), ("gcp", "google.cloud.compute_v1", "gcp")]
)
def test_a_cloud_s_missing_package_is_reported_before_the_search(
    preset: str, module: str, extra: str, tmp_path: Path
) -> None:
    called("init", "--preset", preset, "--no-schema", cwd=tmp_path)
    with (
        mock.patch.dict(sys.modules, {module: None}),
        mock.patch("sailor_cloud.planner.search", side_effect=AssertionError("searched")),
    ):
        answer = called(*TO_BUY, "--yes", "--allow-stale", home=tmp_path / "home", cwd=tmp_path)
    message = f"error: the Python module {module} is not installed; run pip install 'sailor-cloud[{extra}]'\n"
    assert (answer.returncode, answer.stderr) == (1, message)
    assert not (tmp_path / "home" / "runs").exists()


def test_a_home_that_takes_no_files_is_named_as_such() -> None:
    answer = called("prices", "refresh", environment={"SAILOR_CLOUD_HOME": "/proc"})
    assert answer.returncode == 2
    assert answer.stderr.startswith("error: the folder of runs can't hold new files: /proc: ")


def test_a_closed_stdout_is_no_error() -> None:
    done = subprocess.run(
        ["bash", "-c", f"{shlex.quote(str(COMMAND))} prices list >&-"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_an_interrupt_while_modules_are_imported_is_one_line() -> None:
    program = (
        "import builtins, sys\n"
        "real = builtins.__import__\n"
        "def interrupted(name, *rest):\n"
        "    if name == 'click':\n"
        "        raise KeyboardInterrupt\n"
        "    return real(name, *rest)\n"
        "builtins.__import__ = interrupted\n"
        "from sailor_cloud.cli import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


@pytest.mark.parametrize("arguments", [("--help",), ("plan", "--help"), ("schema", "job"), ("prices", "list")])
def test_a_full_disk_behind_stdout_is_one_line_and_a_reader_that_left_is_none(arguments: tuple[str, ...]) -> None:
    command = [str(Path(sys.executable).with_name("sailor-cloud")), *arguments]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        1,
        "error: No space left on device, on standard output or in a file\n",
    )
    shell = f"{shlex.join(command)} | head -0; exit ${{PIPESTATUS[0]}}"
    piped = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False)
    assert (piped.returncode, piped.stderr) == (0, "")


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("run: python x.py\n", "neither a budget nor a deadline"),
        ("run: python x.py\nworkdir: nowhere\nconstraints: {deadline: 1h}\n", "workdir: is 'nowhere', and "),
        ("run: python x.py\nenv: {UNSET_X: null}\nconstraints: {deadline: 1h}\n", "env: UNSET_X: null takes the value"),
        ("model: {preset: gpt2}\nconstraints: {deadline: 1h}\n", "training.steps is missing"),
    ],
)
def test_faults_that_no_plan_could_fix_are_reported_before_any_search(part: str, message: str, tmp_path: Path) -> None:
    rest = "resources:\n  - {provider: local, zones: [local-a], accelerators: {CPU-fast: 1}}\n"
    training = "training: {global_batch_size: 8, sequence_length: 32}\n" if "model" in part else ""
    (tmp_path / "job.yaml").write_text(f"name: any\n{part}{training}{rest}")
    answer = called("up", "job.yaml", "--yes", cwd=tmp_path)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert message in answer.stderr


def test_a_package_that_local_training_lacks_is_reported_before_the_search(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(QUICKSTART)
    lacking = mock.patch.dict(sys.modules, {"transformers": None})
    with lacking, mock.patch("sailor_cloud.planner.search", side_effect=AssertionError("searched")):
        answer = called("up", "job.yaml", "--yes", cwd=tmp_path)
    assert (answer.returncode, answer.stderr) == (
        2,
        "error: local nodes train with this machine's Python, which lacks transformers; "
        "run pip install 'sailor-cloud[runtime]'\n",
    )


QUICK = ROOT / "examples" / "quickstart.yaml"
NODES = ["1 x local-cpu-fast@local-a"]
# Calls from Python, and how their error begins.
WRONG_CALLS: dict[str, tuple[Callable[[], object], str]] = {
    "restriction": (lambda: sc.plan(QUICK, restrictions=["nope"]), "restrictions is 'nope'; it may be one-accelerator"),
    "no restrictions": (lambda: sc.plan(QUICK, restrictions=None), "restrictions holds None; it must be a list"),
    "top": (lambda: sc.plan(QUICK, top=-1), "top is -1; it must be a whole number from 0"),
    "time limit": (lambda: sc.plan(QUICK, time_limit_s="5"), "time_limit_s is '5'; it must be a number above 0"),
    "not a number": (lambda: sc.explain(QUICK, time_limit_s=float("nan")), "time_limit_s is nan"),
    "clock": (lambda: sc.plan(QUICK, clock=datetime.now(UTC)), "clock is datetime; write FixedClock"),
    "base": (lambda: sc.plan(QUICK, base=5), "base is a path, not int"),
    "pricing": (lambda: sc.plan(QUICK, pricing="/missing"), "pricing: /missing is not a folder"),
    "a file": (lambda: sc.plan(QUICK, network=QUICK), f"network: {QUICK} is not a folder"),
    "profiles": (lambda: sc.compare(QUICK, profiles="/missing"), "profiles: /missing is not a folder"),
    "data folders": (lambda: sc.data_folders(pricing="/missing").__enter__(), "pricing: /missing is not a folder"),
    "strategies": (lambda: sc.compare(QUICK, strategies=None), "strategies holds None"),
    "no nodes": (lambda: sc.simulate_layout(QUICK, layout="dp=1", nodes=[]), "nodes: is empty (write COUNT x"),
    "layout": (lambda: sc.simulate_layout(QUICK, layout=None, nodes=NODES), "layout is None; it is text"),
    "simulate": (lambda: sc.simulate({}), "a plan is a PlanDocument, not dict; plan(job) makes one"),
    "choose": (lambda: sc.choose(QUICK, "cheapest"), "a plan is a PlanDocument, not PosixPath"),
    "up": (lambda: sc.up(sc.read_job(QUICK), mock.Mock()), "a plan is a PlanDocument, not Job"),
    "observer": (lambda: sc.resume("a", None), "observer is NoneType, which lacks note"),
    "run": (lambda: sc.resume(None, mock.Mock()), "a run is its id or a RunFolder, not NoneType"),
    "unknown run": (lambda: sc.resume("nope", mock.Mock()), "there is no run 'nope'"),
    "read_job": (lambda: sc.read_job(None), "a job file is a path, not NoneType"),
    "read_plan": (lambda: sc.read_plan(None), "a plan file is a path, not NoneType"),
    "zone": (lambda: sc.offers(zones="us-central1-x"), "no zone 'us-central1-x'; did you mean"),
    "market": (lambda: sc.offers(markets="flea"), "markets is 'flea'; it may be on-demand, spot"),
    "price": (lambda: sc.offers(max_usd_per_hour="5"), "max_usd_per_hour is '5'"),
}


@pytest.mark.parametrize("wrong", WRONG_CALLS)
def test_a_wrong_argument_is_named(wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAILOR_CLOUD_HOME", str(tmp_path))
    call, message = WRONG_CALLS[wrong]
    with pytest.raises(sc.RequestError) as caught:
        call()
    assert str(caught.value).startswith(message)


def test_paths_may_be_text_and_one_name_needs_no_list() -> None:
    pricing = str(ROOT / "pricing")
    one = sc.offers(zones="us-central1-a", accelerators="A100-40", markets="spot", pricing=pricing)
    assert one == sc.offers(zones=["us-central1-a"], accelerators=["A100-40"], markets=["spot"], pricing=Path(pricing))
    assert {(offer.zone, offer.accelerator) for offer in one} == {("us-central1-a", "A100-40")}
    with sc.data_folders(pricing=pricing):
        assert resources.folders().pricing == Path(pricing)


def test_python_refuses_what_is_no_job_and_accelerators_that_nobody_sells():
    with pytest.raises(sc.RequestError, match="a job is a path, a mapping of values or a Job, not int"):
        sc.plan(3)
    with pytest.raises(sc.RequestError, match=r"no accelerator 'A100'; did you mean 'A100-[48]0'"):
        sc.offers(accelerators=["A100"])
