"""Background work that ends with a block of code."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any


@contextlib.asynccontextmanager
async def background_task(
    work: Coroutine[Any, Any, None], *, ends_itself: Callable[[], bool] = lambda: False
) -> AsyncIterator[None]:
    """Run work alongside a block and cancel it at the block's end; wait for it instead if `ends_itself` is True."""
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        if not ends_itself():
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
