"""Logs that leave a node as events: bounded, in order, and written to the same place when they are read again."""

from __future__ import annotations

import json

from sailor_cloud.launch.fleet.job_fleet import _write_at
from sailor_runtime.agent import journal
from sailor_runtime.agent.journal import LogEcho


def test_logs_are_sent_in_whole_lines_up_to_a_bound_and_read_again_make_the_same_file(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(journal, "MOST_LOG_BYTES", 2000)
    monkeypatch.setattr(LogEcho, "_EVERY_S", 0.0)
    node, kept = tmp_path / "g1-rank0.log", tmp_path / "kept.log"
    (tmp_path / "g2-rank0.log").write_text("another generation\n")
    echo = LogEcho(tmp_path)
    node.write_bytes("erste Zeile: größer\nzwei".encode())
    echo.send(generation=1)
    assert [event["text"] for event in told(capfd)] == ["erste Zeile: größer\n"]
    with node.open("ab") as file:
        file.write(b"te\n\xff\n" + b"x" * 1900)
    echo.send(generation=1)
    echo.send(generation=1, last=True)
    with node.open("ab") as file:
        file.write(b"much more\n" * 1000)
    echo.send(generation=1, last=True)
    echo.send(generation=1, last=True)
    events = told(capfd)
    assert events[-1]["text"].endswith("[more than 2000 bytes; what follows is not sent]\n")
    # The first event is lost, the second is read twice.
    for event in (events[0], *events):
        _write_at(kept, event["offset"], event["text"].encode())
    assert kept.read_bytes().lstrip(b"\n").startswith(b"[lost]\nzweite\n\xef\xbf\xbd\nxxx")
    assert kept.stat().st_size == events[-1]["offset"] + len(events[-1]["text"].encode())


def told(capfd):
    return [json.loads(line) for line in capfd.readouterr().out.splitlines()]
