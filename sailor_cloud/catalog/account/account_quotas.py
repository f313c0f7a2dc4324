"""An account's last known limits, in a file of this user, so that planning needs no credentials."""

from __future__ import annotations

import csv
import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from sailor_cloud import resources
from sailor_cloud.catalog import providers
from sailor_cloud.catalog.account.quotas import QuotaLimit, QuotaRule, QuotaStatus
from sailor_cloud.catalog.files.tables import RowParser, records
from sailor_cloud.durable import replaced
from sailor_cloud.errors import DataError
from sailor_cloud.model.offer import Provider

if TYPE_CHECKING:
    from sailor_cloud.model.job import Cloud

FILE_NAME = "account_quotas.csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownQuota:
    """A quota of an account; `project` is empty for the account of the credentials.

    `region` is empty for a quota of the whole project; `used` is None if the provider does not report it.
    """

    provider: Provider
    project: str
    region: str
    quota: str
    limit: float
    used: float | None
    read_on: date


_ROW = RowParser(KnownQuota)


def own_file() -> Path:
    """Return the file with the limits of this user's accounts."""
    return resources.home() / FILE_NAME


def read(path: Path) -> tuple[KnownQuota, ...]:
    """Return the quotas of a file. Raises DataError that says how to do without it."""
    try:
        return tuple(records(path, _ROW.columns, _held))
    except DataError as error:
        raise DataError(f"{error}; delete {path} to plan without the account's quotas") from error


def store_limits(statuses: Iterable[QuotaStatus], *, cloud: Cloud, read_on: date) -> Path:
    """Add limits to the kept ones and return the file. Raises DataError.

    `cloud` names the accounts of the limits if the credentials alone do not.
    """
    path = own_file()
    known = {_key(row): row for row in (read(path) if path.is_file() else ())}
    for status in statuses:
        need = status.need
        if status.limit is not None:
            row = KnownQuota(
                provider=need.provider,
                project=providers.of(need.provider).account_of(cloud),
                region=need.region,
                quota=need.quota,
                limit=status.limit,
                used=status.used,
                read_on=read_on,
            )
            known[_key(row)] = row
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _replace(path, [known[key] for key in sorted(known)])
    except OSError as error:
        raise DataError(f"can't keep the account's quotas in {path}: {error}") from error
    return path


def known(held: Iterable[KnownQuota], rules: Iterable[QuotaRule]) -> tuple[KnownQuota, ...]:
    """Return the quotas that have a rule; another version of this program may have kept others."""
    names = {(rule.provider, rule.quota) for rule in rules}
    return tuple(row for row in held if (row.provider, row.quota) in names)


def limits(held: Iterable[KnownQuota], rules: Iterable[QuotaRule]) -> tuple[QuotaLimit, ...]:
    """Return the limits of an account's quotas; `rules` say which quota applies to which purchase.

    Raises DataError for a quota without a rule, which would limit nothing.
    """
    by_name: dict[tuple[Provider, str], list[QuotaRule]] = {}
    for rule in rules:
        by_name.setdefault((rule.provider, rule.quota), []).append(rule)
    held = sorted(held, key=_key)
    for row in held:
        if (row.provider, row.quota) not in by_name:
            raise DataError(_unknown(row, sorted(quota for provider, quota in by_name if provider == row.provider)))
    return tuple(
        QuotaLimit(
            provider=row.provider,
            project=row.project,
            region=row.region,
            quota=row.quota,
            counts=found[0].counts,
            covers=frozenset((rule.accelerator, rule.instance_prefix, rule.market) for rule in found),
            limit=row.limit,
            used=row.used or 0.0,
            read_on=row.read_on,
        )
        for row in held
        for found in (by_name[row.provider, row.quota],)
    )


def _unknown(row: KnownQuota, known: list[str]) -> str:
    close = difflib.get_close_matches(row.quota, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"one of {', '.join(known)}"
    return f"{FILE_NAME}: {row.quota!r} is no quota of {row.provider} for accelerators, so it limits nothing; {hint}"


def _key(row: KnownQuota) -> tuple[str, str, str, str]:
    return (row.provider, row.project, row.region, row.quota)


def _replace(path: Path, rows: Iterable[KnownQuota]) -> None:
    with replaced(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_ROW.columns)
        for row in rows:
            used = "" if row.used is None else f"{row.used:g}"
            limit, day = f"{row.limit:g}", row.read_on.isoformat()
            writer.writerow((row.provider, row.project, row.region, row.quota, limit, used, day))


def _held(*values: str) -> KnownQuota:
    found = _ROW(*values)
    if not (0.0 <= found.limit < float("inf")) or not (0.0 <= (found.used or 0.0) < float("inf")):
        raise ValueError(f"quota {found.quota} has limit {values[4]!r} and use {values[5]!r}; both must be 0 or more")
    return found
