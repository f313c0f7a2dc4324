from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

from factories.documents import document
from sailor_cloud.clock import FixedClock
from sailor_cloud.errors import RequestError
from sailor_cloud.launch.watch.event_text import event_text
from sailor_cloud.launch.watch.log_reader import Selection, show_logs
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.journal import Entry, Event, Journal


@pytest.mark.parametrize("empty", [False, True])
def test_logs_show_the_controllers_events_before_the_first_rank_writes(tmp_path: Path, empty: bool) -> None:
    clock = FixedClock(datetime(2026, 11, 21, tzinfo=UTC))
    folder = RunFolder.create("run-1", root=tmp_path)
    folder.write_text("plan.json", document().to_json())
    journal = Journal.of(folder, clock)
    journal.append(Event.RUN_CREATED)
    journal.append(Event.CREATE_INTENDED, resource="node", key="n0")
    lines: list[str] = []
    if empty:
        (folder.logs_dir / "gone").mkdir()
        (folder.logs_dir / "gone" / "g1-rank0.log").touch()
        with pytest.raises(RequestError, match=r"the matching logs of run .* are empty: gone/g1-rank0\.log"):
            asyncio.run(show_logs(folder, Selection(rank=0), lambda *line: None, follow=False))

    asyncio.run(show_logs(folder, Selection(), lambda *line: lines.append(" ".join(line)), follow=False))

    assert lines == ["run controller.log run created", "run controller.log creating node n0"]


@pytest.mark.parametrize("event", Event)
def test_every_event_has_words_even_without_its_figures(event: Event) -> None:
    entry = Entry(seq=1, ts=datetime(2026, 11, 21, tzinfo=UTC), event=event, resource="object_store", key="b-1")
    text = event_text(entry)
    assert text
    assert "_" not in text
    assert "{" not in text
