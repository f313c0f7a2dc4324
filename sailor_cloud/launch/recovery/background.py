"""Work that continues beside a block of code and ends with it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any


@contextlib.asynccontextmanager
async def beside(
    work: Coroutine[Any, Any, None], *, ends_itself: Callable[[], bool] = lambda: False
) -> AsyncIterator[None]:
    """Do some work beside a block and give it up at the block's end; wait for it where `ends_itself` says so then."""
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        if not ends_itself():
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
