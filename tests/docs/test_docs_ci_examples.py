"""Runs the CI examples as the services would, in a repository and against an API on this machine."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from factories import repeated_command
from factories.commands import COMMAND, ROOT

EXAMPLES = ROOT / "examples" / "ci"
# The quickstart's job made small.
JOB = (ROOT / "examples" / "quickstart.yaml").read_text().replace("local-a, local-b", "local-a")
JOB = re.sub(r" steps: \d+", " steps: 150", re.sub(r"num_hidden_layers: \d+", "num_hidden_layers: 2", JOB))
DEARER = JOB.replace("steps: 150", "steps: 600")
IDENTITY = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")


@dataclass
class Api:
    """What the service has been told; `comments` are those it knows, `refuses` is a method that it answers with 403."""

    url: str = ""
    comments: list[dict[str, Any]] = field(default_factory=list)
    calls: list[tuple[str, str, str]] = field(default_factory=list)
    refuses: str = ""


@pytest.fixture
def api() -> Iterator[Api]:
    state = Api()

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            token = self.headers.get("Authorization") or self.headers.get("PRIVATE-TOKEN") or ""
            state.calls.append((self.command, self.path, token))
            answer: Any = state.comments
            if self.command == state.refuses:
                answer = {"message": "Resource not accessible by integration"}
            elif self.command == "POST":
                answer = {"id": 100 + len(state.comments), **body}
                state.comments.append(answer)
            elif self.command in ("PATCH", "PUT"):
                answer = next(known for known in state.comments if self.path.endswith(f"/{known['id']}"))
                answer.update(body)
            elif self.path.endswith("&page=1"):
                answer = state.comments[:100]
            else:
                answer = state.comments[100:]
            content = json.dumps(answer).encode()
            self.send_response(403 if self.command == state.refuses else 200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PATCH = do_PUT = _serve  # noqa: N815 - the names that http.server calls

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield state
    server.shutdown()
    server.server_close()
    thread.join()


@dataclass
class Repository:
    """A repository, and the folder of the sailor-cloud that its examples run."""

    path: Path
    base: str
    programs: Path


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", *IDENTITY, *arguments], cwd=folder, capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sailor-cloud that plans the job of every test once."""
    return repeated_command.install(tmp_path_factory.mktemp("ci") / "programs", COMMAND)


@pytest.fixture
def repository(tmp_path: Path, programs: Path) -> Repository:
    """A job file at its base, and a change that makes it four times as long."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "job.yaml").write_text(JOB)
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "base")
    base = git(folder, "rev-parse", "HEAD")
    (folder / "job.yaml").write_text(DEARER)
    git(folder, "commit", "-q", "-a", "-m", "head")
    return Repository(folder, base, programs)


def shell(command: str, repository: Repository, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    path = f"{repository.programs}:{COMMAND.parent}:/usr/bin:/bin"
    return subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", command],
        cwd=repository.path,
        env={"PATH": path, "HOME": str(repository.path), **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def run_action(
    repository: Repository, api: Api, *, token: str = "secret", **inputs: str
) -> subprocess.CompletedProcess[str]:
    """Run the composite action's steps but the installation, with the inputs a workflow gives."""
    action = yaml.safe_load((EXAMPLES / "github" / "action.yml").read_text())
    event = repository.path.parent / "event.json"
    event.write_text(json.dumps({"pull_request": {"number": 7, "base": {"sha": repository.base}}}))
    installed = repository.path.parent / "action"
    installed.mkdir(exist_ok=True)
    shutil.copy(EXAMPLES / "cost_report.py", installed)
    values = {f"inputs.{name}": given.get("default", "") for name, given in action["inputs"].items()}
    values |= {f"inputs.{name.replace('_', '-')}": value for name, value in inputs.items()}
    values |= {
        "github.event.pull_request.base.sha": repository.base,
        "github.action_path": str(installed),
        "github.token": token,
    }
    install, report = action["runs"]["steps"]
    assert install["run"] == 'python -m pip install "$WHEEL"'
    environment = {
        name: re.sub(r"\$\{\{ (.*?) \}\}", lambda match: values[match[1]], value)
        for name, value in report["env"].items()
    }
    service = {
        "GITHUB_EVENT_PATH": str(event),
        "GITHUB_API_URL": api.url,
        "GITHUB_REPOSITORY": "me/mine",
        "GITHUB_STEP_SUMMARY": str(repository.path.parent / "summary.md"),
    }
    return shell(report["run"], repository, {**environment, **service})


def test_the_action_comments_what_a_pull_request_costs(repository: Repository, api: Api) -> None:
    answer = run_action(repository, api, job="job.yaml")
    assert answer.returncode == 0, answer.stderr
    assert [call[:2] for call in api.calls] == [
        ("GET", "/repos/me/mine/issues/7/comments?per_page=100&page=1"),
        ("POST", "/repos/me/mine/issues/7/comments"),
    ]
    assert {call[2] for call in api.calls} == {"Bearer secret"}
    (comment,) = api.comments
    assert comment["body"].startswith("<!-- sailor-cloud cost of job.yaml -->\n### quickstart: +0.0")
    assert "| training.steps | 150 | 600 |" in comment["body"]
    assert "The whole plan" in comment["body"]
    assert "+0.0" in (repository.path.parent / "summary.md").read_text()


def test_a_second_run_replaces_the_comment_even_on_a_later_page(repository: Repository, api: Api) -> None:
    api.comments += [{"id": number, "body": "talk"} for number in range(100)]
    api.comments.append({"id": 555, "body": "<!-- sailor-cloud cost of job.yaml -->\nold"})
    answer = run_action(repository, api, job="job.yaml")
    assert answer.returncode == 0, answer.stderr
    assert api.calls[-1][:2] == ("PATCH", "/repos/me/mine/issues/comments/555")
    assert "### quickstart" in api.comments[-1]["body"]
    assert len(api.comments) == 101


def test_the_action_fails_above_a_threshold_and_says_so_in_the_comment(repository: Repository, api: Api) -> None:
    answer = run_action(repository, api, job="job.yaml", fail_above_percent="20")
    assert answer.returncode == 1
    assert "% more, allowed are 20 %" in api.comments[0]["body"]
    assert run_action(repository, api, job="job.yaml", fail_above_usd="0.5").returncode == 0


def test_without_a_token_the_action_only_prints(repository: Repository, api: Api) -> None:
    answer = run_action(repository, api, token="", job="job.yaml")
    assert answer.returncode == 0
    assert api.calls == []
    assert "no token: nothing posted" in answer.stderr
    assert "### quickstart" in answer.stdout


@pytest.mark.parametrize("refused", ["GET", "POST"])
def test_the_limits_hold_where_the_service_refuses_the_comment(repository: Repository, api: Api, refused: str) -> None:
    api.refuses = refused
    assert run_action(repository, api, job="job.yaml").returncode == 0
    answer = run_action(repository, api, job="job.yaml", fail_above_percent="20")
    assert answer.returncode == 1
    assert "comment not posted: HTTP Error 403: Forbidden" in answer.stderr
    assert "% more, allowed are 20 %" in (repository.path.parent / "summary.md").read_text()


def test_a_new_job_counts_as_a_whole(repository: Repository, api: Api) -> None:
    (repository.path / "new.yaml").write_text(JOB)
    assert run_action(repository, api, job="new.yaml", fail_above_usd="5", fail_above_percent="1").returncode == 0
    assert "has no plan in" in api.comments[0]["body"]
    answer = run_action(repository, api, job="new.yaml", fail_above_usd="0.0001", fail_above_percent="1")
    assert answer.returncode == 1, answer.stderr
    assert "the whole 0.0" in api.comments[0]["body"]
    assert "allowed are 0.0001" in api.comments[0]["body"]
    (repository.path / "new.yaml").write_text(JOB.replace(" steps: 150", ""))
    assert run_action(repository, api, job="new.yaml", fail_above_usd="5").returncode == 1
    assert "the limit of 5 USD can't be checked" in api.comments[0]["body"]


def test_a_base_that_is_not_there_is_wrong_input(repository: Repository) -> None:
    answer = shell(f"python3 {EXAMPLES / 'cost_report.py'} job.yaml --base HEAD~99", repository, {})
    assert answer.returncode == 2
    assert "can't check out HEAD~99" in answer.stderr


@pytest.mark.parametrize("absolute", [False, True])
def test_a_job_in_a_folder_is_compared_with_its_base_from_there_too(repository: Repository, absolute: bool) -> None:
    jobs = repository.path / "jobs"
    jobs.mkdir()
    (jobs / "job.yaml").write_text(JOB)
    git(repository.path, "add", ".")
    git(repository.path, "commit", "-q", "-m", "a folder")
    (jobs / "job.yaml").write_text(DEARER)
    job = jobs / "job.yaml" if absolute else "job.yaml"
    command = f"cd jobs && python3 {EXAMPLES / 'cost_report.py'} {job} --base HEAD"
    answer = shell(command, repository, {})
    assert answer.returncode == 0, answer.stderr
    assert "| training.steps | 150 | 600 |" in answer.stdout


@pytest.mark.parametrize("limit", ["nan", "inf", "-1", "five"])
def test_no_limit_switches_the_gate_off(limit: str, repository: Repository, api: Api) -> None:
    (repository.path / "new.yaml").write_text(JOB)
    for name in ("fail_above_usd", "fail_above_percent"):
        answer = run_action(repository, api, job="new.yaml", **{name: limit})
        assert answer.returncode == 2, answer.stdout
        assert f"{name.replace('_', '-')}: must be a finite number, 0 or more, got {limit}" in answer.stderr


def test_a_base_that_can_not_be_planned_says_why_nothing_is_compared(repository: Repository, api: Api) -> None:
    (repository.path / "job.yaml").write_text(JOB.replace("goal:", "gaol:"))
    git(repository.path, "commit", "-q", "-a", "-m", "broken base")
    broken = replace(repository, base=git(repository.path, "rev-parse", "HEAD"))
    (repository.path / "job.yaml").write_text(JOB)
    answer = run_action(broken, api, job="job.yaml", fail_above_percent="20")
    assert answer.returncode == 1, answer.stderr
    (comment,) = api.comments
    assert "can't be planned there" in comment["body"]
    assert "did you mean 'goal'?" in comment["body"]
    assert "the limit of 20 % can't be checked" in comment["body"]


def test_a_broken_job_file_fails_with_its_faults_in_the_comment(repository: Repository, api: Api) -> None:
    (repository.path / "job.yaml").write_text(JOB.replace("goal:", "gaol:"))
    answer = run_action(repository, api, job="job.yaml")
    assert answer.returncode == 2
    assert "did you mean 'goal'?" in api.comments[0]["body"]


def test_the_workflow_uses_the_action_with_inputs_it_has() -> None:
    workflow = yaml.safe_load((EXAMPLES / "github" / "workflow.yml").read_text())
    action = yaml.safe_load((EXAMPLES / "github" / "action.yml").read_text())
    step = workflow["jobs"]["cost"]["steps"][-1]
    assert step["uses"] == "./.github/actions/sailor-cloud-cost"
    assert set(step["with"]) <= set(action["inputs"])
    assert workflow["permissions"] == {"contents": "read", "pull-requests": "write"}
    # YAML 1.1 reads the key `on` as true.
    assert list(workflow[True]) == ["pull_request"]


def test_the_gitlab_job_comments_and_fails_above_its_threshold(repository: Repository, api: Api) -> None:
    job = yaml.safe_load((EXAMPLES / "gitlab" / "sailor-cloud-cost.yml").read_text())["sailor-cloud-cost"]
    assert job["before_script"] == ['python -m pip install "$WHEEL"']
    (repository.path / "ci").mkdir()
    shutil.copy(EXAMPLES / "cost_report.py", repository.path / "ci")
    environment = {
        **job["variables"],
        "CI_MERGE_REQUEST_DIFF_BASE_SHA": repository.base,
        "CI_MERGE_REQUEST_IID": "3",
        "CI_PROJECT_ID": "42",
        "CI_API_V4_URL": f"{api.url}/api/v4",
        "SAILOR_CLOUD_GITLAB_TOKEN": "glpat",
    }
    (command,) = job["script"]
    answer = shell(command, repository, environment)
    assert answer.returncode == 1, answer.stderr
    assert [call[:2] for call in api.calls] == [
        ("GET", "/api/v4/projects/42/merge_requests/3/notes?per_page=100&page=1"),
        ("POST", "/api/v4/projects/42/merge_requests/3/notes"),
    ]
    assert "% more, allowed are 20 %" in api.comments[0]["body"]
    again = shell(command, repository, {**environment, "FAIL_ABOVE_PERCENT": "900"})
    assert again.returncode == 0, again.stderr
    assert api.calls[-1][:2] == ("PUT", f"/api/v4/projects/42/merge_requests/3/notes/{api.comments[0]['id']}")
