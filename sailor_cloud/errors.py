"""The expected errors of sailor-cloud; each has the exit code of a command that ends with it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

# Characters that move the cursor, change colours, break lines or reverse text instead of being shown (Unicode's
# categories Cc, Cs, Zl and Zp without line feed and tab, and its property Bidi_Control).
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_MOST_SHOWN = 50


def is_control(character: str) -> bool:
    """Return whether a character moves the cursor, changes colours or reverses text instead of being shown."""
    return _CONTROL.match(character) is not None


def printable(text: str) -> str:
    """Return a text of a file or a cloud that is safe for a terminal: control characters become escapes.

    JSON text stays the same JSON.
    """
    return _CONTROL.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    return repr(character)[1:-1] if character < "\x7f" else f"\\u{ord(character):04x}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One fault in an input file: its place, the fault and a remedy."""

    path: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        place = f"{self.path}: " if self.path else ""
        return f"{place}{self.message}" + (f" ({self.hint})" if self.hint else "")


def of_system(error: OSError) -> str:
    """Return the operating system's message about a file, in our wording."""
    return f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")


class SailorError(Exception):
    """An expected failure; its text states the fault with its values, and the next step."""

    exit_code = 1

    def __str__(self) -> str:
        return printable(super().__str__())


class RequestError(SailorError):
    """Wrong input. All problems of one file are reported together; the message shows the first 50."""

    exit_code = 2

    def __init__(self, problems: Sequence[Problem] | str) -> None:
        self.problems = (Problem(path="", message=problems),) if isinstance(problems, str) else tuple(problems)
        shown = [str(problem) for problem in self.problems[:_MOST_SHOWN]]
        more = len(self.problems) - len(shown)
        super().__init__("\n".join([*shown, f"and {more} problems more"] if more else shown))


class DataError(SailorError):
    """Price, bandwidth or profile data that is missing or can't be trusted."""


class MissingPriceError(DataError):
    """A price is unknown; nothing is ever priced at 0 instead."""


class StalePriceError(DataError):
    """A price is too old to spend money on."""


class DoubtfulPriceError(DataError):
    """A price is too doubtful to spend money on."""


class ProfileMissingError(DataError):
    """An accelerator has neither a compute profile nor datasheet figures."""


class ProvisionError(SailorError):
    """Resources could not be created or removed."""


class TerraformError(ProvisionError):
    """Terraform failed; `diagnostics` are its own error summaries."""

    def __init__(self, message: str, diagnostics: Sequence[str] = ()) -> None:
        self.diagnostics = tuple(diagnostics)
        super().__init__(message)


class StockoutError(ProvisionError):
    """The provider has no capacity for an instance type in a zone; `offers` are the ids of those refused, if known."""

    def __init__(self, message: str, offers: Sequence[str] = ()) -> None:
        self.offers = tuple(offers)
        super().__init__(message)


class NotSoldError(StockoutError):
    """The provider does not sell an instance type in a zone at all."""


class QuotaError(ProvisionError):
    """The account may not buy as much as the plan needs; `offers` are the ids of those refused, if known.

    In `regions` the quota refuses all instance types, as those on disks and addresses do.
    """

    def __init__(self, message: str, offers: Sequence[str] = (), *, regions: Sequence[str] = ()) -> None:
        self.offers = tuple(offers)
        self.regions = tuple(regions)
        super().__init__(message)


class CredentialsError(ProvisionError):
    """The credentials are missing or the provider refused them."""


class MissingPackageError(CredentialsError):
    """A Python module with which a cloud is asked is not installed: a retry would not help."""

    def __init__(self, module: str, extra: str) -> None:
        super().__init__(f"the Python module {module} is not installed; run pip install 'sailor-cloud[{extra}]'")


class LaunchError(SailorError):
    """A node or a rank could not be reached, started or kept running."""
