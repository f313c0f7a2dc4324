"""Comments on a pull or merge request what it changes in the cost of a job, and fails above a threshold.

Needs git, sailor-cloud on PATH and nothing else. Posts to GitHub where GITHUB_EVENT_PATH names a pull request, to
GitLab where CI_MERGE_REQUEST_IID is set, and otherwise (or where the service refuses) only prints.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WRONG_INPUT, INFEASIBLE = 2, 3
PER_PAGE = 100
Json = dict[str, Any]


def main() -> int:
    options = _options()
    marker = f"<!-- sailor-cloud cost of {options.job} -->"
    with tempfile.TemporaryDirectory() as folder:
        body, code = report(options, Path(folder))
    comment = f"{marker}\n{body}"
    print(body)
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        with open(summary, "a", encoding="utf-8") as file:
            file.write(body)
    try:
        where = post(comment, marker)
    except (urllib.error.URLError, TimeoutError) as error:
        # The token of a fork's pull request may not write comments. The limits hold without a comment.
        where = f"comment not posted: {error}"
    print(where, file=sys.stderr)
    return code


def report(options: argparse.Namespace, folder: Path) -> tuple[str, int]:
    """Return the comment and the exit code that the thresholds ask for."""
    head, page = folder / "head.json", folder / "head.md"
    failed = _plan(Path(options.job), head, page)
    if failed:
        return f"### {options.job} can't be planned\n\n```\n{failed}```\n", WRONG_INPUT
    whole = page.read_text(encoding="utf-8")
    details = f"<details><summary>The whole plan</summary>\n\n{whole}\n</details>\n"
    base = folder / "base.json"
    with _checkout(options.base, folder / "base") as before:
        job = before / _in_repository(options.job)
        there = job.exists()
        failed = _plan(job, base) if there else ""
        if failed or not there:
            why = f" It can't be planned there:\n\n```\n{failed}```\n" if failed else "\n"
            nothing = f"{whole}\n`{options.job}` has no plan in `{options.base}` to compare with.{why}"
            code, excess = _alone(json.loads(head.read_text()), options)
            return nothing + (f"\n**error: {excess}**\n" if excess else ""), code
    limits = []
    if options.fail_above_usd is not None:
        limits += ["--fail-above-usd", str(options.fail_above_usd)]
    if options.fail_above_percent is not None:
        limits += ["--fail-above-percent", str(options.fail_above_percent)]
    compared = _run("sailor-cloud", "diff", str(base), str(head), "--format", "markdown", *limits)
    failure = f"\n**{compared.stderr.strip()}**\n" if compared.returncode else ""
    return f"{compared.stdout}{failure}\n{details}", compared.returncode


def post(comment: str, marker: str) -> str:
    """Create the comment, or replace the one with the same marker; return what was done."""
    event = os.environ.get("GITHUB_EVENT_PATH")
    if event and "pull_request" in (content := json.loads(Path(event).read_text())):
        token = os.environ.get("GITHUB_TOKEN")
        url = f"{os.environ['GITHUB_API_URL']}/repos/{os.environ['GITHUB_REPOSITORY']}/issues"
        listed, edited = f"{url}/{content['pull_request']['number']}/comments", f"{url}/comments"
        headers, change = {"Authorization": f"Bearer {token}", "Accept": "application/vnd.github+json"}, "PATCH"
    elif number := os.environ.get("CI_MERGE_REQUEST_IID"):
        token = os.environ.get("SAILOR_CLOUD_GITLAB_TOKEN")
        url = f"{os.environ['CI_API_V4_URL']}/projects/{os.environ['CI_PROJECT_ID']}/merge_requests/{number}/notes"
        listed, edited = url, url
        headers, change = {"PRIVATE-TOKEN": str(token)}, "PUT"
    else:
        return "no pull or merge request: nothing posted"
    if not token:
        return "no token: nothing posted"
    for note in _pages(listed, headers):
        if note["body"].startswith(marker):
            _call(change, f"{edited}/{note['id']}", headers, {"body": comment})
            return "comment replaced"
    _call("POST", listed, headers, {"body": comment})
    return "comment posted"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", help="job file")
    parser.add_argument("--base", required=True, help="commit to compare with")
    parser.add_argument("--fail-above-usd", type=_limit)
    parser.add_argument("--fail-above-percent", type=_limit)
    return parser.parse_args()


def _limit(text: str) -> float:
    """Return a limit. No cost exceeds NaN or infinity, so they would switch the gate off."""
    try:
        limit = float(text)
    except ValueError:
        limit = math.nan
    if not math.isfinite(limit) or limit < 0.0:
        raise argparse.ArgumentTypeError(f"must be a finite number, 0 or more, got {text}")
    return limit


def _plan(job: Path, *outputs: Path) -> str:
    """Plan a job file; return the error message, or "". Infeasible is a plan, too."""
    files = [word for path in outputs for word in ("-o", str(path))]
    answer = _run("sailor-cloud", "plan", str(job), "--as-of", _today(), *files)
    return "" if answer.returncode in (0, INFEASIBLE) else answer.stderr


def _in_repository(job: str) -> str:
    """Return a job file's path from the root of its repository, wherever this runs."""
    top = _run("git", "rev-parse", "--show-toplevel").stdout.strip()
    return os.path.relpath(os.path.realpath(job), os.path.realpath(top))


def _alone(head: Json, options: argparse.Namespace) -> tuple[int, str]:
    """Return exit code and message where there is nothing to compare with: the whole cost counts as the change."""
    if head["status"] == "infeasible":
        return INFEASIBLE, ""
    usd, limit = head["cost"]["total_usd"], options.fail_above_usd
    if limit is not None and usd is None:
        return 1, (
            f"the limit of {limit:g} USD can't be checked, since the total is unknown; it needs training.steps, and "
            "throughput for a command"
        )
    if limit is not None and usd > limit:
        return 1, f"without a plan to compare with, the whole {usd:.4g} USD count as the change, allowed are {limit:g}"
    if limit is None and options.fail_above_percent is not None:
        return 1, (
            f"without a plan to compare with, the limit of {options.fail_above_percent:g} % can't be checked; "
            "a limit in USD (--fail-above-usd) says how much a job may cost that has nothing to compare with"
        )
    return 0, ""


@contextmanager
def _checkout(commit: str, folder: Path) -> Iterator[Path]:
    added = _run("git", "worktree", "add", "--detach", str(folder), commit)
    if added.returncode:
        print(f"can't check out {commit}: {added.stderr}(fetch it, for example with fetch-depth: 0)", file=sys.stderr)
        sys.exit(WRONG_INPUT)
    try:
        yield folder
    finally:
        _run("git", "worktree", "remove", "--force", str(folder))


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True)


def _today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def _pages(url: str, headers: dict[str, str]) -> Iterator[Json]:
    page = 1
    while True:
        found: list[Json] = _call("GET", f"{url}?per_page={PER_PAGE}&page={page}", headers)
        yield from found
        if len(found) < PER_PAGE:
            return
        page += 1


def _call(method: str, url: str, headers: dict[str, str], content: Json | None = None) -> Any:
    data = None if content is None else json.dumps(content).encode()
    request = urllib.request.Request(
        url, data=data, method=method, headers={**headers, "Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


if __name__ == "__main__":
    sys.exit(main())
