"""`make chaos`, second half: faults of the disk, the clock and other controllers; writes results/faults.md.

Damages every file of a run's folder in five ways before `down` and `reap`, fills the disk at each write of `up` and of
the teardown after it, lets a controller run out of disk in simulated time and on this machine's nodes, resumes damaged
runs, starts two teardowns at once, and sets the clock wrong. The clouds are those of sailor_cloud.testing, under the
real Terraform. A full disk is a small tmpfs, which root may mount; in simulated time, the controller's own writes fail
with ENOSPC. All parts are run at one commit: what they have found there is kept in the state file, and what they found
at others doesn't count; `--only PART` repeats one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
from commit import commit as commit_of_checkout  # noqa: E402
from commit import same_files  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "faults.md"
STATE = ROOT / "build" / "faults.json"
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "runtime")]
# As tests/conftest.py has it: plans for local nodes are those of one machine.
os.environ.setdefault("SAILOR_CLOUD_MACHINE", "64 cores at 1.0")
os.environ.update({"GOMAXPROCS": "1", "GOGC": "off", "GOMEMLIMIT": "512MiB"})

from factories.storage_faults import (  # noqa: E402
    NAMED,
    Bought,
    Case,
    Damage,
    Verdict,
    bought,
    called,
    counted,
    forget,
    harm,
    judged,
    unwritable,
    without_waiting,
)
from sailor_cloud.clock import SystemClock  # noqa: E402
from sailor_cloud.errors import SailorError  # noqa: E402
from sailor_cloud.model.offer import Provider  # noqa: E402

CLOUDS = (Provider("gcp"), Provider("aws"))
# What is lost together, besides each file alone.
TOGETHER = (
    ("plan.json", "journal.jsonl"),
    ("plan.json", "terraform"),
    ("journal.jsonl", "terraform"),
    ("journal.jsonl", "ledger.jsonl"),
    ("plan.json", "journal.jsonl", "terraform"),
)
FILES_OF_REAP = ("plan.json", "journal.jsonl", "ledger.jsonl", "terraform")
# Every so many-th write is the one at which the disk fills up.
STRIDE = 6


def files(root: Path) -> Iterator[Case]:
    """Every file damaged in every way, each group of files of Terraform at once; and what is lost together."""
    for provider in CLOUDS:
        with bought(provider, root / provider) as run:
            names = [name for name in run.files() if not name.startswith(("terraform/", "reserve"))]
            roots = sorted(path.name for path in (run.path / "terraform").iterdir() if path.is_dir())
            states = [f"terraform/{name}/stacks/{_stack(name)}/{file}" for name in roots for file in _STATE]
            targets = [*names, "terraform", *(state for state in states if (run.path / state).exists())]
            for target in targets:
                for damage in Damage:
                    yield _damaged(run, "down", (target,), damage)
            for group in TOGETHER:
                for damage in (Damage.MISSING, Damage.GARBAGE):
                    yield _damaged(run, "down", group, damage)
            for target in FILES_OF_REAP:
                for damage in Damage:
                    yield _damaged(run, "reap", (target,), damage)


_STATE = ("terraform.tfstate", "terraform.tfvars.json")


def _stack(name: str) -> str:
    return "-".join(part for part in name.split("-")[:2] if part in ("gcp", "aws", "data", "links"))


def _damaged(run: Bought, command: str, targets: tuple[str, ...], damage: Damage) -> Case:
    run.again()
    for target in targets:
        harm(run.path / target, damage)
    return judged(run, command, f"{' + '.join(_short(target) for target in targets)}: {damage}")


def _short(target: str) -> str:
    parts = target.split("/")
    return f"{parts[-1]} of {parts[1]}" if len(parts) > 3 else target


def disk(root: Path) -> Iterator[Case]:
    """The disk fills up at a write of `up`, or of `down`, and stays full."""
    acts: dict[str, Callable[[Bought], object]] = {"up": _apply, "down": lambda run: called("down", run.run.run.run_id)}
    with small_disk(root / "disk") as (home, fill, free):
        for provider in CLOUDS:
            for command, act in acts.items():
                with _on_disk(provider, command, home / f"{provider}-{command}") as run:
                    with counted(run.path, lambda count, where: None) as clean:
                        _unexpected(partial(act, run))
                    run.again()
                    judged(run, "down", "")
                for at in range(1, clean.count + 1, STRIDE):
                    with _on_disk(provider, command, home / f"{provider}-{command}-{at}") as run:
                        with counted(run.path, lambda count, where, at=at: fill() if count == at else None):
                            broken = _unexpected(partial(act, run))
                        yield _after(run, command, f"full from write {at} of {clean.count} on", broken)
                    free()


@contextlib.contextmanager
def _on_disk(provider: Provider, command: str, home: Path) -> Iterator[Bought]:
    with bought(provider, home, apply=command == "down") as run:
        run.run.run.folder.keep_reserve()
        yield run
    shutil.rmtree(home, ignore_errors=True)


def _apply(run: Bought) -> None:
    run.run.apply()


def _unexpected(act: Callable[[], Any]) -> str:
    """Return the traceback of what is no expected error."""
    import traceback

    try:
        answer = act()
    except (SailorError, OSError):
        return ""
    except Exception:
        return traceback.format_exc()
    return str(getattr(answer, "broken", ""))


def _after(run: Bought, command: str, fault: str, broken: str) -> Case:
    """Tear down while the disk is still full."""
    case = judged(run, "down", fault)
    if broken:
        case.verdict, case.text = Verdict.TRACEBACK, f"{broken}\n{case.text}"
    case.command = command
    return case


@contextlib.contextmanager
def small_disk(place: Path) -> Iterator[tuple[Path, Callable[[], None], Callable[[], None]]]:
    """Yield a folder on a tmpfs, how to fill it up, and how to make room again."""
    place.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(place)], check=False, capture_output=True
    )
    if mounted.returncode != 0:
        raise SystemExit("no tmpfs can be mounted here; run as root, or leave out this part with --only")
    filler = place / "filler"

    def fill() -> None:
        with filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            for size in (2**20, 4096, 1):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(bytes(size))

    try:
        yield place / "home", fill, lambda: filler.unlink(missing_ok=True)
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=False)


def simulated(root: Path) -> Iterator[Case]:
    """A controller that re-plans and tears down in simulated time; all its writes fail from one on."""
    from factories.simulated_runs import simulated_run
    from sailor_cloud.run.folder import RunFolder
    from sailor_cloud.run.journal import read
    from sailor_cloud.run.state import fold

    def carried_out(home: Path, after: int) -> tuple[int, str]:
        (home / "runs").mkdir(parents=True)
        with unwritable(home / "runs", after=after) as writes:
            broken = _unexpected(lambda: simulated_run(home))
        return writes.count, broken

    total, _ = carried_out(root / "clean", 10**6)
    # Below that, there is no run yet.
    for at in range(8, total, max(1, total // 50)):
        home = root / str(at)
        _, broken = carried_out(home, at)
        (folder,) = RunFolder.list(root=home / "runs")
        live = fold(read(folder.journal_file)).live
        verdict = Verdict.TRACEBACK if broken else Verdict.LEAK if live else Verdict.WENT_ON
        fault = f"each write after {at} of {total} fails"
        yield Case(cloud="simulated", command="up", fault=fault, verdict=verdict, text=broken)
        forget()


def clock(root: Path) -> Iterator[Case]:
    """An hour ahead and a day behind, for `down`, and for `reap` on another machine."""
    real = SystemClock.now
    for provider in CLOUDS:
        with bought(provider, root / provider) as run:
            for name, off in (("an hour ahead", timedelta(hours=1)), ("a day behind", -timedelta(days=1))):
                SystemClock.now = lambda self, off=off: real(self) + off  # type: ignore[method-assign]
                try:
                    run.again()
                    before, own = len(run.left()), os.environ["SAILOR_CLOUD_HOME"]
                    os.environ["SAILOR_CLOUD_HOME"] = str(root / "another machine")
                    outcome = called("reap", "--yes", *NAMED)
                    os.environ["SAILOR_CLOUD_HOME"] = own
                    kept = "left alone" in outcome.text and len(run.left()) == before
                    verdict = Verdict.TRACEBACK if outcome.broken else Verdict.LIVE if kept else Verdict.TAKEN
                    yield Case(cloud=provider, command="reap elsewhere", fault=name, verdict=verdict, text=outcome.text)
                    case = judged(run, "down", name)
                    case.verdict = (
                        case.verdict if "the cloud's is used" in case.text and _times_are_right(run) else Verdict.WRONG
                    )
                    yield case
                finally:
                    SystemClock.now = real  # type: ignore[method-assign]


def _times_are_right(run: Bought) -> bool:
    """Tell whether all times of the receipt are those of the cloud, and the bill is one of minutes."""
    receipt = json.loads((run.path / "receipt.json").read_text())
    now = datetime.now(UTC)
    times = [row["gone_at"] for row in receipt["resources"] if row["gone_at"]] + [receipt["written_at"]]
    close = all(abs(now - datetime.fromisoformat(at)) < timedelta(minutes=5) for at in times)
    return close and all(line["quantity"] < 0.5 for line in receipt["lines"] if line["unit"] == "h")


def rivals(root: Path) -> Iterator[Case]:
    """Two teardowns at once, and one beside a controller whose lock file was deleted."""
    from sailor_cloud.run.folder import RunFolder

    for provider in CLOUDS:
        with bought(provider, root / provider) as run:
            for commands in (("down", "down"), ("down", "reap"), ("down", "resume")):
                run.again()
                lines = [_command(run, command) for command in commands]
                answers = [line.communicate() for line in lines]
                text = "\n".join(out + err for out, err in answers)
                fine = "Traceback" not in text and run.left() == () and 0 in {line.returncode for line in lines}
                verdict = Verdict.GONE if fine else Verdict.TRACEBACK if "Traceback" in text else Verdict.LEAK
                yield Case(cloud=provider, command=" + ".join(commands), fault="at once", verdict=verdict, text=text)
            run.again()
            folder = RunFolder(run_id=run.run.run.run_id, path=run.path)
            with folder.lock():
                folder.lock_file.unlink()
                outcomes = [called("down", folder.run_id), called("reap", "--yes"), called("resume", folder.run_id)]
            alone = bool(run.left()) and all("process" in answer.text and not answer.broken for answer in outcomes)
            text = "\n".join(answer.text for answer in outcomes)
            fault = "beside a controller whose lock file was deleted"
            yield Case(
                cloud=provider, command="each", fault=fault, verdict=Verdict.LIVE if alone else Verdict.TAKEN, text=text
            )


def _command(run: Bought, command: str) -> subprocess.Popen[str]:
    arguments = {
        "down": ["down", run.run.run.run_id],
        "reap": ["reap", "--yes"],
        "resume": ["resume", run.run.run.run_id],
    }
    program = [sys.executable, "-c", "from sailor_cloud.cli.main import main; main()", *arguments[command]]
    return subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ))


def resume(root: Path) -> Iterator[Case]:
    """A run on this machine's nodes whose controller was killed: damaged, resumed, torn down."""
    from factories.quick_runs import EXTRA_PATHS, RANKS, killed_run, trained
    from sailor_cloud.launch.fleet import agents
    from sailor_cloud.provision import processes

    agents.RANK_MODULE, agents.EXTRA_PATHS = RANKS, EXTRA_PATHS
    faults = [("journal.jsonl", damage) for damage in Damage] + [("ledger.jsonl", damage) for damage in Damage]
    faults += [("plan.json", Damage.CUT), ("plan.json", Damage.MISSING), ("terraform", Damage.MISSING)]
    faults += [("logs/events.jsonl", Damage.GARBAGE), ("terraform", Damage.ZEROS)]
    faults += [("ssh_key", Damage.GARBAGE), ("ssh_key", Damage.MISSING)]
    for number, (name, damage) in enumerate(faults):
        home = root / str(number)
        os.environ["SAILOR_CLOUD_HOME"] = str(home)
        folder = killed_run(home, trained(3), "--steps", "12")
        harm(folder.path / name, damage)
        outcome = called("resume", folder.run_id)
        down = called("down", folder.run_id)
        left = processes.on_nodes(folder.run_id)
        processes.end(lambda folder=folder: processes.of_run(folder.run_id), grace_s=0.0)
        text = f"{outcome.code}\n{outcome.text}{outcome.broken}\n--- down: {down.code}\n{down.text}{down.broken}"
        verdict = Verdict.WENT_ON if outcome.code == 0 else Verdict.REFUSED
        verdict = Verdict.LEAK if left else Verdict.TRACEBACK if outcome.broken or down.broken else verdict
        yield Case(cloud="this machine", command="resume", fault=f"{name}: {damage}", verdict=verdict, text=text)


PARTS: dict[str, Callable[[Path], Iterator[Case]]] = {
    "simulated": simulated,
    "clock": clock,
    "rivals": rivals,
    "disk": disk,
    "files": files,
    "resume": resume,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=PARTS, action="append", help="repeat this part")
    parser.add_argument("--fresh", action="store_true", help="forget what was found before")
    options = parser.parse_args()
    STATE.parent.mkdir(exist_ok=True)
    if options.fresh:
        STATE.unlink(missing_ok=True)
    commit = commit_of_checkout()
    kept: dict[str, Any] = json.loads(STATE.read_text()) if STATE.exists() else {}
    found = {name: part for name, part in kept.items() if same_files(part["commit"], commit)}
    for name in options.only or [part for part in PARTS if part not in found]:
        begun, cases = time.monotonic(), []
        with tempfile.TemporaryDirectory(prefix="sailor-faults-") as folder, without_waiting():
            for case in PARTS[name](Path(folder)):
                cases.append(case)
                print(f"{name}: {case.cloud} {case.command} {case.fault}: {case.verdict}", flush=True)
                if not case.verdict.good:
                    print(case.text, file=sys.stderr, flush=True)
        times = os.times()
        spent = {"seconds": time.monotonic() - begun, "cpu_s": sum(times[:4]) - found.get("_cpu_s", 0.0)}
        found[name] = {"commit": commit, "cases": [_row(case) for case in cases], **spent}
        STATE.write_text(json.dumps({key: value for key, value in found.items() if key != "_cpu_s"}))
        found["_cpu_s"] = sum(times[:4])
    found.pop("_cpu_s", None)
    if commit_of_checkout() != commit:
        print(f"the checkout is {commit} no longer: what was tried is unknown", file=sys.stderr)
        return 1
    RESULTS.write_text(report(found))
    bad = [case for part in found.values() for case in part["cases"] if not Verdict(case["verdict"]).good]
    total = sum(len(part["cases"]) for part in found.values())
    print(f"{total} faults, {len(bad)} of them with a wrong end; {RESULTS}")
    return 1 if bad else 0


def _row(case: Case) -> dict[str, str]:
    return {name: str(value) for name, value in asdict(case).items() if name != "text"}


_TITLES = {
    "files": "Damaged files before `down` and `reap`",
    "disk": "The disk fills up at a write of `up` or `down`, and stays full",
    "simulated": "Every write of a controller fails from one on, in simulated time",
    "resume": "A damaged run is resumed, then torn down",
    "rivals": "Two commands at once",
    "clock": "The clock of this machine is wrong",
}


def report(found: dict[str, Any]) -> str:
    cases = [case for part in found.values() for case in part["cases"]]
    verdicts = Counter(case["verdict"] for case in cases)
    wrong = {verdict: verdicts.get(verdict.value, 0) for verdict in Verdict if not verdict.good}
    lines = [
        "# Faults of the disk, the clock and other controllers",
        "",
        f"`make chaos` (`benchmarks/chaos/storage.py`), {datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} processor cores "
        f"({platform.machine()}) shared with other work, Python {platform.python_version()}; "
        f"{sum(part['cpu_s'] for part in found.values()):.0f} CPU seconds.",
        "",
        "Each case begins with a run on an emulated Google Cloud or AWS, bought by the real Terraform. The run has two "
        "nodes in two zones, and a bucket with a checkpoint that nobody has fetched. The case breaks one thing and "
        "runs the command. The command's claims are compared with what the cloud still has. Where it says that "
        "something is not confirmed, `down` is run again with `--project` and `--region`, as its message says. A full "
        "disk is a tmpfs of 64 MiB that a file fills up; in simulated time, and only there, its own writes fail with "
        "ENOSPC.",
        "",
        f"{len(cases)} faults: " + ", ".join(f"{count} {verdict.value}" for verdict, count in wrong.items()) + ".",
        "",
        "| what happened | times |",
        "|---|---|",
        *(f"| {verdict} | {count} |" for verdict, count in sorted(verdicts.items())),
        "",
        "| part | faults | commit | CPU seconds |",
        "|---|---|---|---|",
        *(
            f"| {title} | {len(found[name]['cases'])} | {found[name]['commit']} | {found[name]['cpu_s']:.0f} |"
            for name, title in _TITLES.items()
            if name in found
        ),
        "",
    ]
    for name, title in _TITLES.items():
        if name in found:
            lines += [f"## {title}", "", *_table(found[name]["cases"], tried=name), ""]
    lines += [
        "## What this does not show",
        "",
        "- The clouds are stand-ins: they answer at once and consistently. Lists that lag behind are not tried.",
        f"- The disk fills up at every {STRIDE}th write of the controller, and at moments of Terraform's own only as "
        "they fall between those.",
        "- Faults are one at a time, but for files that are lost together. A disk that returns wrong data later is not "
        "tried; Terraform's own files are damaged as a group, and states and variables one by one as well.",
        "- A run without plan and journal is not confirmed until a place of each cloud is known or named. On AWS that "
        "is a region: of what was bought in others, only the ledger tells then.",
        "- Two machines that share no disk don't lock each other out. `reap` leaves the runs of others alone until "
        "they expire.",
        "",
    ]
    return "\n".join(lines)


def _table(cases: list[dict[str, str]], *, tried: str) -> list[str]:
    if tried in ("disk", "simulated"):
        groups = Counter((case["cloud"], case["command"], case["verdict"]) for case in cases)
        rows = [f"| {cloud} | {command} | {count} | {verdict} |" for (cloud, command, verdict), count in groups.items()]
        return ["| cloud | command | writes tried | what happened |", "|---|---|---|---|", *rows]
    merged: dict[tuple[str, str, str], list[str]] = {}
    for case in cases:
        merged.setdefault((case["command"], case["fault"], case["verdict"]), []).append(case["cloud"])
    rows = [f"| {c} | {fault} | {', '.join(clouds)} | {verdict} |" for (c, fault, verdict), clouds in merged.items()]
    return ["| command | fault | clouds | what happened |", "|---|---|---|---|", *rows]


if __name__ == "__main__":
    sys.exit(main())
