"""Follows a run: a live panel on a terminal, plain lines anywhere else."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sailor_cloud.clock import Clock
from sailor_cloud.report import text
from sailor_cloud.run.progress import ResourceNews, RunProgress

PLAIN_STEP_INTERVAL_S = 5.0
RESOURCES_SHOWN = 4


class LivePanel:
    """A panel that is redrawn in place; notes scroll above it."""

    def __init__(self, console: Console, clock: Clock) -> None:
        self._console = console
        self._clock = clock
        self._latest: RunProgress | None = None
        self._resources: dict[str, ResourceNews] = {}
        self._live = Live(console=console, refresh_per_second=8, get_renderable=self._render, transient=True)
        self._live.start()

    def note(self, text_line: str) -> None:
        self._console.print(Text(text_line))

    def resource(self, news: ResourceNews) -> None:
        # The newest comes last, and each resource once.
        self._resources.pop(news.key, None)
        self._resources[news.key] = news

    def progress(self, progress: RunProgress) -> None:
        if self._latest is not None and progress.activity != self._latest.activity:
            self._resources.clear()
        self._latest = progress

    def step(self, progress: RunProgress) -> None:
        self._latest = progress

    def close(self) -> None:
        self._live.stop()

    def _render(self) -> RenderableType:
        if self._latest is None:
            return Text("starting")
        rows = progress_rows(self._latest, self._clock.now())
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="bold")
        grid.add_column()
        for name, value in rows:
            grid.add_row(name, value)
        done, of = self._share(self._latest)
        if of:
            grid.add_row(f"{100 * done / of:3.0f} %", ProgressBar(total=of, completed=done, width=40))
        parts: list[RenderableType] = [Text(self._latest.activity, style="bold cyan"), grid]
        newest = list(self._resources.values())[-RESOURCES_SHOWN:]
        parts.extend(Text(str(news), style="dim") for news in newest)
        return Group(*parts)

    def _share(self, latest: RunProgress) -> tuple[int, int | None]:
        """Return the number done and the total: resources while some change, otherwise steps."""
        ready = sum(news.done for news in self._resources.values())
        if ready < len(self._resources):
            return ready, len(self._resources)
        return latest.step, latest.steps


class PlainLines:
    """One line for each event, and for a step every few seconds."""

    def __init__(self, write: Callable[[str], None], clock: Clock) -> None:
        self._write = write
        self._clock = clock
        self._activity = ""
        self._last_step_at: datetime | None = None

    def note(self, text_line: str) -> None:
        self._write(text_line)

    def resource(self, news: ResourceNews) -> None:
        self._write(str(news))

    def progress(self, progress: RunProgress) -> None:
        if progress.activity != self._activity:
            self._activity = progress.activity
            self._write(progress.activity)

    def step(self, progress: RunProgress) -> None:
        now = self._clock.now()
        due = self._last_step_at is None or (now - self._last_step_at).total_seconds() >= PLAIN_STEP_INTERVAL_S
        if due or progress.step == progress.steps:
            self._last_step_at = now
            self._write(", ".join(f"{name} {value}" for name, value in progress_rows(progress, now)))

    def close(self) -> None:
        pass


def progress_rows(progress: RunProgress, now: datetime) -> list[tuple[str, str]]:
    """Return the rows of the display; a row without a value yet is left out."""
    rows = []
    if progress.steps or progress.step:
        rows.append(("step", f"{progress.step}/{progress.steps}" if progress.steps else str(progress.step)))
    if progress.loss is not None:
        entropy = progress.unigram_entropy
        entropy_note = f" (unigram entropy {entropy:.2f})" if entropy is not None else ""
        rows.append(("loss", f"{progress.loss:.3f}{entropy_note}"))
    if progress.tokens_per_s is not None:
        rows.append(("tokens/s", f"{progress.tokens_per_s:,.0f}"))
    if iteration := _iteration(progress):
        rows.append(("iteration", iteration))
    if progress.nodes:
        budget = f" of {text.usd(progress.budget_usd)}" if progress.budget_usd else ""
        rows.append(("spent", f"{text.usd(progress.spent_usd)}{budget} USD"))
    if progress.expires_at is not None:
        rows.append(("TTL in", text.seconds(max(0.0, round((progress.expires_at - now).total_seconds())))))
    return rows


def _iteration(progress: RunProgress) -> str:
    parts = []
    if progress.measured_iteration_s is not None:
        parts.append(f"{text.seconds(progress.measured_iteration_s)} measured")
    if progress.calibrated_iteration_s is not None:
        parts.append(f"{text.seconds(progress.calibrated_iteration_s)} calibrated")
    if progress.planned_iteration_s is not None:
        parts.append(f"{text.seconds(progress.planned_iteration_s)} planned")
    return " / ".join(parts)
