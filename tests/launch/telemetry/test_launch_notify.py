from __future__ import annotations

from contextlib import nullcontext

import pytest

from factories.webhooks import listener
from sailor_cloud.launch.telemetry.notify import TOKEN_VARIABLE, URL_VARIABLE, NoNotifier, Notice, notifier_from


@pytest.mark.parametrize("refuse", [0, 2])
def test_a_notice_reaches_the_webhook_with_the_token_also_at_a_later_attempt(refuse: int) -> None:
    with listener(refuse=refuse) as (url, got):
        notifier = notifier_from({URL_VARIABLE: url, TOKEN_VARIABLE: "t0ken"})
        notifier.notify(Notice.PREEMPTED, run="r1", text="node n1 lost", nodes=["n1"])
        notifier.close()
    assert got == [("Bearer t0ken", {"event": "preempted", "run": "r1", "text": "node n1 lost", "nodes": ["n1"]})]


def test_a_redirect_gets_neither_the_token_nor_the_notice(caplog: pytest.LogCaptureFixture) -> None:
    with listener() as (elsewhere, got), listener(redirect=elsewhere) as (url, _):
        notifier = notifier_from({URL_VARIABLE: url, TOKEN_VARIABLE: "t0ken"})
        notifier.notify(Notice.FAILED, run="r1", text="failed")
        notifier.close()
    assert got == []
    assert "webhook, notice failed, attempt 3: HTTPError" in caplog.text


def test_a_webhook_that_never_answers_breaks_nothing_and_its_address_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    notifier = notifier_from({URL_VARIABLE: "http://127.0.0.1:9/s3cret"})
    notifier.notify(Notice.FAILED, run="r1", text="failed")
    notifier.close()
    assert "webhook, notice failed" in caplog.text
    assert "s3cret" not in caplog.text


def test_without_an_address_no_notice_is_sent() -> None:
    assert isinstance(notifier_from({}), NoNotifier)
    assert isinstance(notifier_from({URL_VARIABLE: "file:///etc/passwd"}), NoNotifier)


def test_slack_gets_a_text_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []
    monkeypatch.setattr(
        "urllib.request.OpenerDirector.open", lambda self, request, timeout: sent.append(request.data) or nullcontext()
    )
    notifier = notifier_from({URL_VARIABLE: "https://hooks.slack.com/services/T0/B0/x"})
    notifier.notify(Notice.PREEMPTED, run="r1", text="node n1 lost", nodes=["n1"])
    notifier.close()
    assert sent == [b'{"text": "r1: node n1 lost"}']
