"""`make mutants`: injects faults one by one into the code that guards money; writes results/mutants.md.

The faults are mutmut's, in constants of modules too: another number, operator, comparison, branch or truth value. One
is added: a call whose result is unused is left out. Not injected are other texts, None for a value and missing
arguments: mypy --strict finds most of them. Each fault meets only its module's own tests, in a separate process; no
file is changed. A fault in a function is first tried in a fork of a process that has imported the package. What
passes there, and a fault elsewhere, is tried in one that imports the package with the fault. What was noticed once is
kept in the state file while the module stays as it is, so that an interrupted run continues; `--fresh` forgets it.
What survived is tried again. `--report` writes what was found so far.
"""

from __future__ import annotations

import argparse
import difflib
import gc
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import io
import json
import math
import os
import platform
import random
import signal
import sys
import tempfile
import time
import tomllib
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, TypeGuard

import libcst
from mutmut.mutation import mutators

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
from commit import commit as commit_of_checkout  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "mutants.md"
STATE = ROOT / "build" / "mutants.jsonl"
EXPLAINED = Path(__file__).with_name("survivors.toml")

# What is judged by which tests, all of them beside it.
TARGETS = {
    "sailor_cloud/launch/watch/spending_guard.py": [
        "tests/launch/watch/test_launch_budget.py",
        "tests/launch/watch/test_launch_spending_guard.py",
    ],
    "sailor_cloud/launch/spend": ["tests/launch/spend"],
    "sailor_cloud/run/ledger.py": ["tests/run/test_run_ledger.py"],
    "sailor_cloud/run/budgets.py": ["tests/run/test_run_budgets.py", "tests/launch/spend/test_launch_budgets.py"],
    "sailor_cloud/provision/cleanup/teardown.py": ["tests/provision/cleanup/test_provision_teardown_by_hand.py"],
    "sailor_cloud/provision/cleanup/leftovers.py": [
        "tests/provision/cleanup/test_provision_leftovers_by_hand.py",
        "tests/provision/cleanup/test_provision_teardown_by_hand.py",
    ],
    "sailor_cloud/provision/cleanup/reap.py": ["tests/provision/cleanup/test_provision_reap_by_hand.py"],
    "sailor_cloud/launch/teardown.py": ["tests/launch/test_launch_closing_books.py"],
    "sailor_cloud/simulator/bill.py": [
        "tests/simulator/test_simulator_money.py",
        "tests/simulator/test_simulator_bill_by_hand.py",
        "tests/simulator/test_simulator_shared_cores.py",
    ],
    "sailor_cloud/simulator/lifetime.py": ["tests/simulator/test_simulator_lifetime.py"],
    "sailor_cloud/simulator/money.py": [
        "tests/simulator/test_simulator_money.py",
        "tests/simulator/test_simulator_bill_by_hand.py",
        "tests/simulator/test_simulator_shared_cores.py",
        "tests/simulator/test_simulator_start_by_hand.py",
    ],
}
LEFT_OUT = (
    mutators.operator_string,
    mutators.operator_arg_removal,
    mutators.operator_dict_arguments,
    mutators.operator_assignment,
)
OPERATORS = [(kind, operator) for kind, operator in mutators.mutation_operators if operator not in LEFT_OUT]
PYTEST = [
    "-x",
    "-q",
    "--assert=plain",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:xdist",
    "--timeout=0",
    "--hypothesis-profile=ci",
]
# Packages of the checkout, which a child imports again if the fault is in what runs at import.
_OWN = ("sailor_cloud", "sailor_runtime", "factories")
# What a child ends with where this program is wrong; pytest ends with less.
BROKEN = 70
SEED = 24
# A fault may make the tests so many times slower before it counts as one that never ends.
PATIENCE = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A module with one fault: the lines that were, and what stands there now."""

    path: str
    line: int
    was: str
    now: str
    text: str

    @property
    def key(self) -> str:
        """What the fault is known by in the state file: the module with the fault in it."""
        return f"{self.path} {hashlib.sha256(self.text.encode()).hexdigest()}"


@dataclass(slots=True, kw_only=True)
class Tally:
    """What became of the faults of one module."""

    planted: int = 0
    killed: int = 0
    timed_out: int = 0
    survived: list[Mutant] = field(default_factory=list)

    def add(self, *, late: bool) -> None:
        """Count a fault that was noticed, by a test that failed or by tests that don't end."""
        self.timed_out += late
        self.killed += not late

    @property
    def total(self) -> int:
        return self.killed + self.timed_out + len(self.survived)


class _Planter(libcst.CSTVisitor):
    """Collects each node with its replacement; not in annotations, imports and decorators, which do nothing."""

    METADATA_DEPENDENCIES = (libcst.metadata.PositionProvider,)

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[libcst.CSTNode, libcst.CSTNode, int]] = []

    def on_visit(self, node: libcst.CSTNode) -> bool:
        if isinstance(node, libcst.Annotation | libcst.Import | libcst.ImportFrom | libcst.Decorator):
            return False
        changes: list[libcst.CSTNode] = [
            new for kind, change in OPERATORS if isinstance(node, kind) for new in change(node)
        ]
        if isinstance(node, libcst.Expr) and isinstance(node.value, libcst.Call | libcst.Await):
            changes.append(libcst.Pass())
        if changes:
            line = self.get_metadata(libcst.metadata.PositionProvider, node).start.line
            self.found += [(node, change, line) for change in changes]
        return True


def mutants(path: str) -> Iterator[Mutant]:
    """Yield every fault of a module that still compiles."""
    text = (ROOT / path).read_text()
    wrapped = libcst.metadata.MetadataWrapper(libcst.parse_module(text))
    planter = _Planter()
    wrapped.visit(planter)
    for node, change, line in planter.found:
        changed = wrapped.module.deep_replace(node, change)
        assert isinstance(changed, libcst.Module)
        try:
            compile(changed.code, path, "exec")
        except SyntaxError:
            continue
        was, now = _difference(text, changed.code)
        yield Mutant(path=path, line=line, was=was, now=now, text=changed.code)


def _difference(before: str, after: str) -> tuple[str, str]:
    lines = list(difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm=""))[3:]
    return tuple(" ".join(line[1:].strip() for line in lines if line[0] == sign) for sign in "-+")  # type: ignore[return-value]


class _Planted(SourceFileLoader):
    """Gives a module's text with the fault in it, and is asked before all other finders."""

    def __init__(self, name: str, path: Path, text: str) -> None:
        super().__init__(name, str(path))
        self._text = text

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._text, self.path, "exec", dont_inherit=True)

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        return importlib.util.spec_from_file_location(fullname, self.path, loader=self)


Functions = dict[tuple[str, str, int], list[FunctionType]]


def _forked(
    tests: Sequence[str],
    mutant: Mutant | None,
    listing: str | None = None,
    swaps: Sequence[tuple[FunctionType, CodeType]] = (),
) -> int:
    """Start the tests in a child and return its process id; `listing` is where it lists the modules that it imported.

    Functions get other code by `swaps`; without any, the child imports the package itself, with the mutant's fault.
    """
    child = os.fork()
    if child:
        return child
    code = BROKEN
    try:
        os.setsid()
        os.chdir(ROOT)
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        sys.stdout, sys.stderr = io.TextIOWrapper(os.fdopen(1, "wb")), io.TextIOWrapper(os.fdopen(2, "wb"))
        for function, code_with_fault in swaps:
            function.__code__ = code_with_fault
        if mutant is not None and not swaps:
            for loaded in [name for name in sys.modules if name.partition(".")[0] in _OWN]:
                del sys.modules[loaded]
            name = mutant.path.removesuffix(".py").replace("/", ".")
            sys.meta_path.insert(0, _Planted(name, ROOT / mutant.path, mutant.text))
        import pytest

        code = int(pytest.main([*PYTEST, *tests]))
        if listing is not None:
            Path(listing).write_text("\n".join(_libraries()))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _libraries() -> list[str]:
    """Return what was imported, but for tests and for plugins of pytest, which imports them itself."""
    return [
        name
        for name, module in sys.modules.items()
        if ("site-packages" in str(getattr(module, "__file__", "")) or name.partition(".")[0] in _OWN)
        and "plugin" not in name
    ]


def functions(paths: Iterable[str]) -> Functions:
    """Return the functions of imported modules by path, qualified name and first line."""
    files = {str(ROOT / path): path for path in paths}
    found: Functions = {}
    for thing in gc.get_objects():
        if type(thing) is FunctionType and thing.__code__.co_filename in files:
            code = thing.__code__
            key = (files[code.co_filename], code.co_qualname, code.co_firstlineno)
            found.setdefault(key, []).append(thing)
    return found


def _swaps(mutant: Mutant, known: Functions) -> list[tuple[FunctionType, CodeType]]:
    """Return the functions that the fault changes with their code; none where it is in what runs at import."""
    found: list[tuple[FunctionType, CodeType]] = []

    def collect(before: CodeType, after: CodeType) -> bool:
        """Tell whether all that differs is in functions that are known."""
        if before.co_flags & inspect.CO_OPTIMIZED and before.co_name != "<lambda>":
            if _same(before, after):
                return True
            those = known.get((mutant.path, before.co_qualname, before.co_firstlineno), [])
            found.extend((function, after) for function in those)
            return bool(those) and before.co_freevars == after.co_freevars
        inner = [[each for each in code.co_consts if isinstance(each, CodeType)] for code in (before, after)]
        return (
            len(inner[0]) == len(inner[1])
            and _own(before) == _own(after)
            and all(collect(*pair) for pair in zip(*inner, strict=True))
        )

    file = str(ROOT / mutant.path)
    text = (ROOT / mutant.path).read_text()
    whole = [compile(each, file, "exec", dont_inherit=True) for each in (text, mutant.text)]
    return found if collect(*whole) else []


def _own(code: CodeType) -> tuple[object, ...]:
    """Return what code does, without its place in the file and without the code within it."""
    constants = [(type(each), repr(each)) for each in code.co_consts if not isinstance(each, CodeType)]
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    return (code.co_code, constants, names, code.co_flags, code.co_argcount, code.co_exceptiontable)


def _same(before: CodeType, after: CodeType) -> bool:
    inner = [[each for each in code.co_consts if isinstance(each, CodeType)] for code in (before, after)]
    return (
        len(inner[0]) == len(inner[1])
        and _own(before) == _own(after)
        and all(_same(*pair) for pair in zip(*inner, strict=True))
    )


def _warm_up(tests: Sequence[str]) -> float:
    """Import here what the tests need; return the seconds that they take. They must pass."""
    with tempfile.NamedTemporaryFile("r") as listing:
        _, status = os.waitpid(_forked(tests, None, listing.name), 0)
        if status:
            raise SystemExit(f"{' '.join(tests)} fail without a fault")
        names = listing.read().splitlines()
    for name in names:
        importlib.import_module(name)
    # What is imported stays: collecting it again and again takes longer than planting the faults.
    gc.freeze()
    began = time.monotonic()
    _, status = os.waitpid(_forked(tests, None), 0)
    if status:
        raise SystemExit(f"{' '.join(tests)} fail without a fault once libraries are imported before")
    return time.monotonic() - began


def judge(faults: Sequence[Mutant], tests: Sequence[str], *, jobs: int) -> dict[str, Tally]:
    """Run the tests against every fault, `jobs` at a time."""
    limit_s = PATIENCE * _warm_up(tests) + 10.0
    known_functions = functions({mutant.path for mutant in faults})
    tallies: dict[str, Tally] = {mutant.path: Tally() for mutant in faults}
    known = found()
    for mutant in faults:
        tallies[mutant.path].planted += 1
        if _noticed(row := known.get(mutant.key)):
            tallies[mutant.path].add(late=row["late"])
    faults = [mutant for mutant in faults if not _noticed(known.get(mutant.key))]
    left = [(mutant, _swaps(mutant, known_functions)) for mutant in reversed(faults)]
    running: dict[int, tuple[Mutant, bool, float]] = {}
    while left or running:
        while left and len(running) < jobs:
            mutant, swaps = left.pop()
            running[_forked(tests, mutant, swaps=swaps)] = (mutant, bool(swaps), time.monotonic() + limit_s)
        time.sleep(0.02)
        for child, (mutant, swapped, until) in list(running.items()):
            ended, status = os.waitpid(child, os.WNOHANG)
            late = not ended and time.monotonic() > until
            if late:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
            if ended or late:
                del running[child]
                tally = tallies[mutant.path]
                if swapped and not late and os.waitstatus_to_exitcode(status) in (0, BROKEN):
                    left.append((mutant, []))
                    continue
                if not late and os.waitstatus_to_exitcode(status) == BROKEN:
                    raise SystemExit(f"{mutant.path}:{mutant.line} could not be tried")
                with STATE.open("a") as state:
                    state.write(json.dumps({"key": mutant.key, "late": late, "survived": not (late or status)}) + "\n")
                if late or status:
                    tally.add(late=late)
                else:
                    tally.survived.append(mutant)
                    print(f"survived: {mutant.path}:{mutant.line}\n  - {mutant.was}\n  + {mutant.now}", flush=True)
    return tallies


def found() -> dict[str, dict[str, Any]]:
    """Return what became of the faults so far, by their key; of one that was tried again, what came last."""
    rows = map(json.loads, STATE.read_text().splitlines()) if STATE.exists() else ()
    return {row["key"]: row for row in rows}


def _noticed(row: dict[str, Any] | None) -> TypeGuard[dict[str, Any]]:
    return row is not None and not row.get("survived")


def tried_so_far() -> dict[str, Tally]:
    """Return what became of the faults of every module that were tried as it is now."""
    known, tallies = found(), dict[str, Tally]()
    for paths, _ in modules(""):
        for path in paths:
            tally = tallies[path] = Tally()
            for mutant in mutants(path):
                tally.planted += 1
                row = known.get(mutant.key)
                if _noticed(row):
                    tally.add(late=row["late"])
                elif row is not None:
                    tally.survived.append(mutant)
    return tallies


def explanations() -> dict[tuple[str, str, str], str]:
    rows = tomllib.loads(EXPLAINED.read_text())["survivor"] if EXPLAINED.exists() else []
    return {(row["path"], row["was"], row["now"]): row["why"] for row in rows}


def modules(only: str) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the modules of each row of TARGETS whose paths hold a text, with the tests beside them."""
    for target, tests in TARGETS.items():
        place = ROOT / target
        files = [place] if place.is_file() else sorted(place.glob("*.py"))
        paths = [str(path.relative_to(ROOT)) for path in files]
        if wanted := [path for path in paths if only in path]:
            yield wanted, tests


def drawn(faults: list[Mutant], percent: float) -> list[Mutant]:
    """Return a share of a module's faults in an order of chance; a larger share holds the smaller one."""
    shuffled = sorted(faults, key=lambda fault: fault.key)
    random.Random(SEED).shuffle(shuffled)
    return shuffled[: math.ceil(len(shuffled) * percent / 100)]


def interval(hits: int, tries: int) -> tuple[float, float]:
    """Return the 95 % confidence interval of a share. Source: Wilson, JASA 22 (1927), the score interval."""
    z = 1.96
    centre, width = hits + z * z / 2, z * math.sqrt(hits * (tries - hits) / tries + z * z / 4)
    return (centre - width) / (tries + z * z), (centre + width) / (tries + z * z)


def table(tallies: dict[str, Tally]) -> Iterable[str]:
    yield "| module | faults | tried | killed | without an end | survived |"
    yield "|---|---|---|---|---|---|"
    rows = {p: (t.planted, t.total, t.killed, t.timed_out, len(t.survived)) for p, t in tallies.items()}
    for path, row in rows.items():
        yield f"| {path} | {' | '.join(map(str, row))} |"
    totals = [sum(column) for column in zip(*rows.values(), strict=True)]
    yield f"| all | {' | '.join(str(total) for total in totals)} |"


def results(tallies: dict[str, Tally]) -> str:
    noticed = sum(tally.killed + tally.timed_out for tally in tallies.values())
    tried, planted = (sum(getattr(tally, name) for tally in tallies.values()) for name in ("total", "planted"))
    low, high = interval(noticed, tried)
    known = explanations()
    lines = [
        "# Faults injected into the code that guards money",
        "",
        f"`make mutants`, {datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} processor cores shared with other work, "
        f"Python {platform.python_version()}, mutmut {importlib.metadata.version('mutmut')}; at commit "
        f"{commit_of_checkout()}.",
        "",
        f"{100 * noticed / tried:.1f} % of the faults that were tried are noticed by the tests beside their module. "
        + (
            f"Tried were {tried} of {planted}, in each module in an order of chance (seed {SEED}). As a sample of such "
            f"faults, they say with a confidence of 95 % that between {100 * low:.1f} and {100 * high:.1f} % are "
            "noticed. " * (tried < planted)
        )
        + " ".join(str(__doc__).partition("\n\n")[2].split()),
        "",
        *table(tallies),
        "",
        "## Survivors",
        "",
    ]
    for tally in tallies.values():
        for mutant in tally.survived:
            why = known.get((mutant.path, mutant.was, mutant.now), "not explained")
            lines.append(f"- {mutant.path}: `{mutant.was}` becomes `{mutant.now}`: {why}")
    return "\n".join([*lines, ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, help="faults at once")
    parser.add_argument("--only", default="", help="modules whose path holds this text; the results are only shown")
    parser.add_argument("--sample", type=float, default=100.0, metavar="PERCENT", help="try a share of each module's")
    parser.add_argument("--fresh", action="store_true", help="forget what was noticed")
    parser.add_argument("--report", action="store_true", help="try nothing; write what was found so far")
    options = parser.parse_args()
    sys.path[:0] = [str(ROOT), str(ROOT / "runtime"), str(ROOT / "tests")]
    STATE.parent.mkdir(exist_ok=True)
    if options.fresh:
        STATE.unlink(missing_ok=True)
    os.environ |= {"OPENBLAS_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    for paths, tests in () if options.report else modules(options.only):
        faults = [fault for path in paths for fault in drawn(list(mutants(path)), options.sample)]
        print("\n".join(table(judge(faults, tests, jobs=options.jobs))), flush=True)
    if not options.only:
        RESULTS.write_text(results(tried_so_far()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
