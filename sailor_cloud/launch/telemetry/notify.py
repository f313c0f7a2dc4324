"""Sends a webhook the events of a run. Address and token come from the environment or a file."""

from __future__ import annotations

import json
import logging
import os
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

logger = logging.getLogger(__name__)

URL_VARIABLE = "SAILOR_CLOUD_WEBHOOK_URL"
TOKEN_VARIABLE = "SAILOR_CLOUD_WEBHOOK_TOKEN"
TIMEOUT_S = 10.0
ATTEMPTS = 3


class Notice(StrEnum):
    """The events that a webhook gets."""

    STARTED = "started"
    BUDGET_50 = "budget-50"
    BUDGET_80 = "budget-80"
    BUDGET_100 = "budget-100"
    PREEMPTED = "preempted"
    FINISHED = "finished"
    FAILED = "failed"


class Notifier(Protocol):
    def notify(self, notice: Notice, *, run: str, text: str, **details: Any) -> None:
        """Send a notice; never fails and never waits."""

    def close(self) -> None:
        """Wait briefly for pending notices."""


class NoNotifier:
    """Sends nothing."""

    def notify(self, notice: Notice, *, run: str, text: str, **details: Any) -> None:
        pass

    def close(self) -> None:
        pass


@dataclass(slots=True)
class Webhook:
    """Posts {event, run, text, ...} as JSON; chat services show `text`. Slack gets only a text."""

    url: str
    token: str | None = None
    _threads: list[threading.Thread] = field(default_factory=list)

    def notify(self, notice: Notice, *, run: str, text: str, **details: Any) -> None:
        slack = urllib.parse.urlsplit(self.url).hostname == "hooks.slack.com"
        payload = {"text": f"{run}: {text}"} if slack else {"event": notice.value, "run": run, "text": text, **details}
        body = json.dumps(payload).encode()
        thread = threading.Thread(target=self._post, args=(body, notice), daemon=True)
        thread.start()
        self._threads.append(thread)

    def close(self) -> None:
        for thread in self._threads:
            thread.join(TIMEOUT_S)

    def _post(self, body: bytes, notice: Notice) -> None:
        headers = {"Content-Type": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        request = urllib.request.Request(self.url, data=body, headers=headers, method="POST")
        opener = urllib.request.build_opener(_NoRedirect())
        for attempt in range(1, ATTEMPTS + 1):
            try:
                with opener.open(request, timeout=TIMEOUT_S):
                    return
            except (urllib.error.URLError, OSError, ValueError) as error:
                # The address may contain a secret, so it is not logged.
                logger.warning("webhook, notice %s, attempt %d: %s", notice, attempt, type(error).__name__)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirects: the target would get the token, and a GET without the notice."""

    def redirect_request(self, *details: Any, **more: Any) -> None:
        return None


def secret(name: str, environment: Mapping[str, str] | None = None) -> str | None:
    """Return an environment variable's value, else the content of the file that NAME_FILE names, else None."""
    variables = os.environ if environment is None else environment
    path = variables.get(f"{name}_FILE")
    if variables.get(name) or not path:
        return variables.get(name) or None
    try:
        return Path(path).read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError) as error:
        logger.warning("%s_FILE can't be read: %s", name, type(error).__name__)
        return None


def notifier_from(environment: Mapping[str, str] | None = None) -> Notifier:
    """Return the webhook that the environment or a file names, or a notifier that sends nothing."""
    url = secret(URL_VARIABLE, environment) or ""
    if not url.startswith(("https://", "http://")):
        if url:
            logger.warning("%s is not an http address; no notices are sent", URL_VARIABLE)
        return NoNotifier()
    return Webhook(url, secret(TOKEN_VARIABLE, environment))
