from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import obstore
import obstore.exceptions
import pytest
from obstore.store import MemoryStore

from factories.cloud_plans import gcp_document
from factories.documents import document
from sailor_cloud.errors import DataError, RequestError
from sailor_cloud.model.job import StateBackend
from sailor_cloud.run import budgets
from sailor_cloud.run.budgets import (
    Allowance,
    Book,
    BucketBook,
    Budgets,
    Entries,
    LocalBook,
    bucket_book,
    read_allowances,
)
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.testing.moto_server import moto_server

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)
ME = Allowance(owner="me@example.org", project=None, month="*", usd=100.0)
# Ten lists, each of ten times the one before.
BOMB = "- &a0 [x]\n" + "".join(f"- &a{n + 1} [{', '.join([f'*a{n}'] * 10)}]\n" for n in range(10))
OURS = Allowance(owner=None, project="our-project", month="2026-11", usd=150.0)


def bucket(_: Path) -> Book:
    return BucketBook(store=MemoryStore(), prefix="team")


def local(tmp_path: Path) -> Book:
    return LocalBook(folder=tmp_path / "budgets")


@pytest.fixture(params=[local, bucket])
def book(request: pytest.FixtureRequest, tmp_path: Path) -> Book:
    make: Callable[[Path], Book] = request.param
    return make(tmp_path)


def mine(book: Book, *allowances: Allowance, owner: str = "me@example.org") -> Budgets:
    return Budgets(books=((book, allowances or (ME,)),), owner=owner, project="our-project")


def released(book: Book, run_id: str, spent_usd: float) -> None:
    def update(before: Entries) -> Entries:
        return tuple(budgets.replace(one, spent_usd=spent_usd) if one.run_id == run_id else one for one in before)

    book.change("2026-11", update)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAILOR_CLOUD_HOME", str(tmp_path))


def test_a_run_reserves_what_it_may_cost_and_the_next_is_refused_beyond(book: Book) -> None:
    assert len(mine(book).reserve("run-1", 70.0, NOW)) == 1
    with pytest.raises(RequestError) as caught:
        mine(book).reserve("run-2", 40.0, NOW)
    assert str(caught.value) == (
        "the budget has too little left: 2026-11 owner me@example.org: 0.00 spent and 70.00 reserved of 100.00 USD, so "
        "30.00 USD, and this run may cost 40.00; give a lower --budget, raise it in budgets.yaml, or end one of run-1; "
        f"no folder here is of run-1: if it runs nowhere else, delete its entry in {book.name('2026-11')}"
    )
    RunFolder.create("run-1")
    with pytest.raises(RequestError, match=r"or end one of run-1$"):
        mine(book).reserve("run-2", 40.0, NOW)
    mine(book).reserve("run-3", 30.0, NOW)


def test_a_receipt_replaces_what_was_reserved_by_what_was_spent(book: Book) -> None:
    mine(book).reserve("run-1", 70.0, NOW)
    released(book, "run-1", 12.5)
    note = mine(book).reserve("run-2", 87.5, NOW)[0]
    assert note.startswith("budget 2026-11 owner me@example.org: 12.50 spent and 0.00 reserved of 100.00 USD")


def test_every_budget_that_holds_for_a_run_must_have_enough_left(book: Book) -> None:
    mine(book, ME, OURS, owner="you@example.org").reserve("run-1", 100.0, NOW)
    assert len(mine(book, ME, OURS).reserve("run-2", 50.0, NOW)) == 2
    with pytest.raises(RequestError, match="project our-project"):
        mine(book, ME, OURS).reserve("run-3", 10.0, NOW)


def test_another_month_has_its_own_money_and_asking_reserves_nothing(book: Book) -> None:
    mine(book).reserve("run-0", 100.0, NOW, only_ask=True)
    mine(book).reserve("run-1", 100.0, NOW)
    mine(book).reserve("run-2", 100.0, NOW.replace(month=12))
    assert mine(book, OURS).reserve("run-3", 999.0, NOW.replace(month=12)) == ()


def test_only_as_many_concurrent_runs_begin_as_the_budget_allows(book: Book) -> None:
    def begin(number: int) -> bool:
        try:
            mine(book).reserve(f"run-{number}", 30.0, NOW)
        except RequestError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(begin, range(12))) == 3


def test_conditional_writes_to_s3_keep_two_runs_from_the_last_dollar(monkeypatch: pytest.MonkeyPatch) -> None:
    boto3 = pytest.importorskip("boto3")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with moto_server() as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="team")
        book = bucket_book(StateBackend(bucket="s3://team", region="us-east-1"))
        assert book.budgets_file() == ("sailor-cloud/budgets.yaml", b"[]")

        def begin(number: int) -> bool:
            try:
                mine(book).reserve(f"run-{number}", 30.0, NOW)
            except RequestError:
                return False
            return True

        with ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(begin, range(8))) == 3


def test_a_book_that_others_change_all_the_time_is_abandoned_with_a_message() -> None:
    book = BucketBook(store=MemoryStore(), prefix="team")

    def update(before: Entries) -> Entries:
        obstore.put(book.store, "team/budgets/2026-11.json", b'{"reservations": []}')
        return (*before, budgets.Reservation(run_id="x", owner=None, project=None, month="2026-11", reserved_usd=1.0))

    with pytest.raises(DataError, match="was changed by others 20 times"):
        book.change("2026-11", update)


def test_a_reservation_that_arrived_although_its_answer_was_lost_counts_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    book, put, lost = BucketBook(store=MemoryStore(), prefix="team"), obstore.put, []

    def losing(*arguments: Any, **options: Any) -> Any:
        put(*arguments, **options)
        if not lost:
            lost.append(1)
            raise obstore.exceptions.AlreadyExistsError("the retry of a request whose answer was lost")

    monkeypatch.setattr(obstore, "put", losing)
    mine(book).reserve("run-1", 60.0, NOW)
    assert lost
    assert "60.00 reserved of 100.00" in mine(book).reserve("run-2", 40.0, NOW)[0]


@pytest.mark.parametrize(
    ("bucket", "name"), [("gs://team", "GOOGLE_APPLICATION_CREDENTIALS"), ("s3://team", "AWS_PROFILE")]
)
def test_credentials_that_are_missing_are_one_error(
    bucket: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "damaged.json").write_text("{")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv(name, str(tmp_path / "damaged.json"))
    region = "us-east-1" if bucket.startswith("s3") else None
    with pytest.raises(DataError, match=bucket):
        bucket_book(StateBackend(bucket=bucket, region=region))


def test_a_damaged_book_stops_a_run(tmp_path: Path) -> None:
    book = LocalBook(folder=tmp_path)
    (tmp_path / "2026-11.json").write_text('{"reservations": [{"run_id": 1}]}')
    with pytest.raises(DataError, match="is damaged, so what is reserved is unknown"):
        mine(book).reserve("run-1", 1.0, NOW)


def test_an_object_in_the_place_of_a_small_file_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "_MOST_BYTES_IN_BUCKET", 100)
    book = BucketBook(store=MemoryStore(), prefix="team")
    for name in ("budgets.yaml", "budgets/2026-11.json"):
        obstore.put(book.store, f"team/{name}", b" " * 101)
    with pytest.raises(DataError, match=r"team/budgets\.yaml has 101 bytes, and no such file has more than 100"):
        book.budgets_file()
    with pytest.raises(DataError, match="has 101 bytes"):
        mine(book).reserve("run-1", 1.0, NOW)


@pytest.mark.parametrize("usd", ["NaN", "-70.0", "Infinity", '"70"'])
def test_a_reservation_that_is_no_amount_of_money_is_not_believed(tmp_path: Path, usd: str) -> None:
    row = f'{{"run_id": "r", "owner": "me@example.org", "project": null, "month": "2026-11", "reserved_usd": {usd}}}'
    (tmp_path / "2026-11.json").write_text(f'{{"reservations": [{row}]}}')
    with pytest.raises(DataError, match="is damaged, so what is reserved is unknown"):
        mine(LocalBook(folder=tmp_path)).reserve("run-1", 1.0, NOW)


def test_runs_with_and_without_shared_states_take_from_one_budget(tmp_path: Path) -> None:
    here, shared = local(tmp_path), bucket(tmp_path)
    both = Budgets(books=((here, (ME,)), (shared, (ME,))), owner="me@example.org", project=None)
    assert len(both.reserve("run-1", 70.0, NOW)) == 1
    with pytest.raises(RequestError, match="or end one of run-1"):
        mine(here).reserve("run-2", 40.0, NOW)
    mine(shared).reserve("run-3", 30.0, NOW)
    with pytest.raises(RequestError, match="run-3"):
        both.reserve("run-4", 10.0, NOW)
    # What the second book refuses is not held in the first.
    mine(here).reserve("run-5", 30.0, NOW)


def test_without_shared_states_a_note_says_that_other_machines_are_not_counted(tmp_path: Path) -> None:
    assert "other machines are not counted" in mine(local(tmp_path)).reserve("run-1", 1.0, NOW)[0]
    assert "other machines" not in mine(bucket(tmp_path)).reserve("run-1", 1.0, NOW)[0]


def test_budgets_are_read_from_a_file_and_a_missing_one_has_none(tmp_path: Path) -> None:
    file = tmp_path / "budgets.yaml"
    assert read_allowances(file) == ()
    file.write_text(
        '- {owner: me@example.org, month: "*", usd: 100}\n- {project: our-project, month: 2026-11, usd: 150}'
    )
    assert read_allowances(file) == (ME, OURS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("owner: me", "must be a list of budgets"),
        ("- [", "is not YAML"),
        ('- {owner: a, project: b, month: "*", usd: 1}', "needs either an owner or a project"),
        ("- {owner: a, month: November, usd: 1}", "month must be as in '2026-11'"),
        ("- {owner: a, month: 2026-13-01, usd: 1}", "is not YAML: month must be in 1..12"),
        ("[" * 5000, "is nested more than 50 deep"),
        (BOMB, "holds more than 10,000 values"),
        ('- {owner: "a\\e[2J", month: "*", usd: 1}', "holds control characters"),
        ('- {owner: a, month: "*", usd: -1}', "usd must be an amount of money, not -1"),
        ('- {owner: a, month: "*", usd: .inf}', "is inf; it must be a finite number"),
        ('- {owner: a, month: "*", eur: 1}', "holds owner or project, month and usd"),
        ("- a word", "0: holds owner or project, month and usd, not 'a word'"),
        ('- {month: "*", usd: 1}', "0: needs either an owner or a project$"),
        ('- {owner: 7, month: "*", usd: 1}', "0: needs either an owner or a project$"),
        ("- {owner: a, usd: 1}", r"month must be as in '2026-11', or '\*' for every month, not None"),
        ('- {owner: a, month: "*", usd: true}', "usd must be an amount of money, not True"),
        ('- {owner: a, month: "*", usd: much}', "usd must be an amount of money, not 'much'"),
        ('- {owner: a, month: "*"}', "usd must be an amount of money, not None"),
    ],
)
def test_a_wrong_file_of_budgets_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "budgets.yaml").write_text(text)
    with pytest.raises(RequestError, match=message):
        read_allowances(tmp_path / "budgets.yaml")


def test_all_faults_of_a_file_of_budgets_are_reported_together(tmp_path: Path) -> None:
    file = tmp_path / "budgets.yaml"
    file.write_text('- {owner: a, month: x, usd: -1}\n- {owner: a, month: "*", usd: 0.5}\n- {month: "*", usd: y}')
    with pytest.raises(RequestError) as caught:
        read_allowances(file)
    assert [(problem.path.rpartition(" ")[2], problem.message[:5]) for problem in caught.value.problems] == [
        ("0", "month"),
        ("0", "usd m"),
        ("2", "needs"),
        ("2", "usd m"),
    ]
    file.write_text('- {project: p, month: "*", usd: 0}\n- {owner: a, month: "*", usd: 0.5}')
    assert [one.usd for one in read_allowances(file)] == [0.0, 0.5]


@pytest.mark.parametrize(("more", "message"), [(0, "must be a list of budgets"), (1, "is larger than 1,024 KiB")])
def test_a_file_of_budgets_has_a_mebibyte_at_most(tmp_path: Path, more: int, message: str) -> None:
    (tmp_path / "budgets.yaml").write_bytes(b"#" * (1_048_576 + more))
    with pytest.raises(RequestError, match=message):
        read_allowances(tmp_path / "budgets.yaml")


def test_an_object_next_to_states_has_sixteen_mebibytes_at_most() -> None:
    book = BucketBook(store=MemoryStore(), prefix="team")
    obstore.put(book.store, "team/budgets.yaml", b" " * 16_777_216)
    assert len(book.budgets_file()[1]) == 16_777_216
    obstore.put(book.store, "team/budgets.yaml", b" " * 16_777_217)
    with pytest.raises(DataError, match="has 16,777,217 bytes, and no such file has more than 16,777,216"):
        book.budgets_file()


def test_a_book_is_written_as_others_read_it(tmp_path: Path) -> None:
    mine(local(tmp_path)).reserve("run-1", 70.0, NOW)
    assert (tmp_path / "budgets" / "2026-11.json").read_text() == (
        '{\n  "schema_version": 1,\n  "reservations": [\n    {\n      "run_id": "run-1",\n'
        '      "owner": "me@example.org",\n      "project": "our-project",\n      "month": "2026-11",\n'
        '      "reserved_usd": 70.0,\n      "spent_usd": null\n    }\n  ]\n}\n'
    )
    assert (tmp_path / "budgets" / "lock").stat().st_mode & 0o777 == 0o600


def test_a_budget_may_be_used_to_its_last_cent_and_nothing_is_left_below_zero(book: Book) -> None:
    mine(book).reserve("run-1", 0.0, NOW)
    mine(book).reserve("run-2", 99.5, NOW)
    with pytest.raises(RequestError, match=r"so 0\.500 USD, and this run may cost 0\.510"):
        mine(book).reserve("run-3", 0.51, NOW)
    mine(book).reserve("run-3", 0.5, NOW)
    released(book, "run-3", 10.0)
    with pytest.raises(RequestError, match=r"so 0\.00 USD, and .* or end one of run-1, run-2; no folder"):
        mine(book).reserve("run-4", 0.0, NOW)
    for run in ("run-1", "run-2"):
        released(book, run, 100.0)
    with pytest.raises(RequestError, match=r"raise it in budgets\.yaml$"):
        mine(book).reserve("run-4", 1.0, NOW)


def test_each_books_notes_are_reported(tmp_path: Path) -> None:
    both = Budgets(books=((local(tmp_path), (ME,)), (bucket(tmp_path), (OURS,))), owner=ME.owner, project=OURS.project)
    assert [note[:25] for note in both.reserve("run-1", 1.0, NOW)] == [
        "budget 2026-11 owner me@e",
        "budget 2026-11 project ou",
    ]


def test_the_highest_cost_of_a_run_is_its_budget_else_its_worst_case() -> None:
    base = document()
    assert base.cost is not None
    unlimited = replace(base, constraints=base.constraints.model_copy(update={"budget_usd": None}))
    worst = replace(unlimited, cost=replace(base.cost, worst_case_usd=3.0, total_usd=2.0))
    assert budgets.most_usd(replace(worst, constraints=base.constraints)) == 1.0
    assert budgets.most_usd(worst) == 3.0
    assert budgets.most_usd(replace(unlimited, cost=replace(base.cost, worst_case_usd=None, total_usd=2.0))) == 2.0
    assert budgets.most_usd(replace(unlimited, cost=None)) is None


def test_a_receipt_counts_here_and_next_to_shared_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, shared = local(tmp_path), bucket(tmp_path)
    monkeypatch.setattr(budgets, "bucket_book", lambda state: shared)
    for book in (here, shared):
        mine(book).reserve("run-1", 50.0, NOW)
        mine(book).reserve("run-2", 50.0, NOW)
    budgets.release(StateBackend(bucket="gs://team"), tmp_path, "run-1", "2026-11", 12.5)
    for book in (here, shared):
        assert "12.50 spent and 50.00 reserved" in mine(book).reserve("run-3", 1.0, NOW)[0]


def test_the_job_determines_which_budgets_apply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = gcp_document().job.cloud
    assert cloud.gcp is not None
    found = budgets.budgets_of(cloud, tmp_path)
    assert (found.owner, found.project, found.unread) == (cloud.owner, cloud.gcp.project, "")
    assert budgets.budgets_of(cloud.model_copy(update={"gcp": None}), tmp_path).project is None
    store = MemoryStore()
    obstore.put(store, "sailor-cloud/budgets.yaml", b'- {project: p, month: "*", usd: 7}')
    monkeypatch.setattr(budgets, "bucket_book", lambda state: BucketBook(store=store, prefix=state.prefix))
    shared = cloud.model_copy(update={"state": StateBackend(bucket="gs://team")})
    (tmp_path / "budgets.yaml").write_text('- {owner: me@example.org, month: "*", usd: 100}')
    theirs = Allowance(owner=None, project="p", month="*", usd=7.0)
    assert [allowances for _, allowances in budgets.budgets_of(shared, tmp_path).books] == [(ME,), (ME, theirs)]


@pytest.mark.parametrize(("long", "told"), [(301, 300), (10, 10)])
def test_only_the_beginning_of_a_stores_error_is_reported(
    long: int, told: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any, **options: Any) -> Any:
        raise obstore.exceptions.BaseError("x" * long + "\na trace\nof many lines")

    monkeypatch.setattr(obstore, "get", refuse)
    with pytest.raises(DataError) as caught:
        BucketBook(store=MemoryStore(), prefix="team").budgets_file()
    assert str(caught.value) == f"team/budgets.yaml can't be read: {'x' * told}"
