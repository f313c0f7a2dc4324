"""The controller of one run: provision, start generations until one finishes, tear down whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from sailor_cloud.errors import LaunchError, SailorError, of_system
from sailor_cloud.launch import takeover
from sailor_cloud.launch.context import RunContext
from sailor_cloud.launch.fleet import code
from sailor_cloud.launch.fleet.command_spec import build_command_spec
from sailor_cloud.launch.fleet.fleet import UnreachableError
from sailor_cloud.launch.fleet.run_spec import build_spec, must_use_sockets, plan_hash
from sailor_cloud.launch.generation import End, Generation, Result
from sailor_cloud.launch.recovery import fallback, nodes
from sailor_cloud.launch.recovery.growth import Growth
from sailor_cloud.launch.recovery.measured_rate import MeasuredRate
from sailor_cloud.launch.recovery.slow_links import SlowLinks, known_slow_links
from sailor_cloud.launch.replanning.replan import same_shape
from sailor_cloud.launch.results import Fetch
from sailor_cloud.launch.stopping import Stopped
from sailor_cloud.launch.teardown import close_books
from sailor_cloud.launch.telemetry.generation_log import generations, new_monitor, recorded_generations, write_plan
from sailor_cloud.launch.telemetry.monitor import Monitor
from sailor_cloud.launch.telemetry.notify import Notice
from sailor_cloud.launch.watch.announce import announce, remaining_work_note
from sailor_cloud.launch.watch.clock_watch import ClockWatch
from sailor_cloud.launch.watch.price_watch import PriceWatch
from sailor_cloud.launch.watch.spending_guard import BudgetGuard, SpendingWatch
from sailor_cloud.model.plan import Plan
from sailor_cloud.run.journal import Event, Journal
from sailor_cloud.run.options import Ending, Outcome
from sailor_cloud.units import usd_text
from sailor_runtime.spec import CommandSpec, RunSpec

_ENDING_EVENTS = {Ending.FAILED: Event.TRAINING_FAILED, Ending.INTERRUPTED: Event.INTERRUPTED}

# A command that fails twice this soon after its start will fail again.
SOON_S = 60.0

# Another process took the port after it was found free; the next attempt uses another port.
_PORT_TAKEN = "EADDRINUSE"


@dataclass(slots=True)
class Controller:
    """Carries out one run. `request_stop` may be called from a signal handler at any time."""

    context: RunContext
    _retries: int = 0
    _soon: int = 0
    _last_failure: tuple[tuple[str, ...], int, int] = ((), 0, 0)
    _failed_at: int = -1
    _recoveries: int = 0
    _checked: Plan | None = None
    # The node of the last failure, if a broken device may be its cause.
    _suspect: str | None = None

    def request_stop(self) -> None:
        """Stop the training and tear down."""
        self.context.stop.request(Ending.INTERRUPTED)

    async def run(self) -> Outcome:
        """Train to the end of the job and tear down, whatever happens in between."""
        context = self.context
        ending, message, bug = Ending.FAILED, "", None
        try:
            async with self._watched():
                ending = await self._train()
        except Stopped as stopped:
            ending = stopped.ending
        except nodes.ShortfallError as shortfall:
            ending, message = shortfall.ending, str(shortfall)
        except SailorError as error:
            # An interrupted Terraform reports an error of its own, but the interrupt is the cause. If the budget guard
            # crashed, its own error is reported.
            if context.stop.ending not in (None, Ending.FAILED):
                ending = context.stop.ending
            else:
                message = str(error)
        except OSError as error:
            message = _failed_write(error)
        except Exception as error:
            # Whatever the error is, resources are removed before it is reported.
            bug, message = error, f"{type(error).__name__}: {error}"
        if ending in (Ending.BUDGET, Ending.DEADLINE):
            message = f"{message}; {remaining_work_note(context)}" if message else remaining_work_note(context)
        elif ending is Ending.INTERRUPTED and context.saved_step > 0:
            context.observer.note(remaining_work_note(context, limited=False))
        # From here on a failed write must not keep nodes alive.
        Journal.of(context.folder, context.clock, or_keep=True).append(
            _ENDING_EVENTS.get(ending, Event.TRAINING_FINISHED), outcome=ending.value, message=message
        )
        outcome = await self._tear_down(ending, message)
        if bug is not None:
            raise bug
        return outcome

    @contextlib.asynccontextmanager
    async def _watched(self) -> AsyncIterator[None]:
        context = self.context
        guard = BudgetGuard.of(
            context.job_document, started_at=context.started_at, reserve_s=context.options.teardown_reserve_s
        )
        prices = asyncio.ensure_future(PriceWatch(context).run())
        times = asyncio.ensure_future(ClockWatch(context.clock, context.options.watch_s).run())
        spending = asyncio.ensure_future(SpendingWatch(context, guard, context.options.watch_s).run())
        spending.add_done_callback(self._unguarded)
        try:
            yield
        finally:
            prices.cancel()
            times.cancel()
            spending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await spending

    def _unguarded(self, guard: asyncio.Future[None]) -> None:
        """Stop the run if the budget guard has crashed: no run may spend without it."""
        if not guard.cancelled():
            self.context.stop.request(Ending.FAILED)

    async def _tear_down(self, ending: Ending, message: str) -> Outcome:
        context = self.context
        for link in context.links.values():
            await link.close()
        try:
            context.show("tearing down")
        except (SailorError, OSError) as error:
            # This display shows the spend; an error in it must not keep nodes alive.
            context.observer.note(f"tearing down; what is spent can't be computed: {error}")
        fetch = Fetch(
            folder=context.folder,
            document=context.job_document,
            clock=context.clock,
            prices=context.prices,
            say=context.observer.note,
        )
        destroyed = await context.fleet.destroy(context.on_resource, fetch if ending is Ending.COMPLETED else None)
        receipt = close_books(
            context.folder,
            context.job_document,
            destroyed,
            clock=context.clock,
            prices=context.prices,
            ending=ending,
        )
        outcome = Outcome(ending=ending, receipt=receipt, message=message)
        notice = Notice.FINISHED if ending is Ending.COMPLETED else Notice.FAILED
        text = f"{ending.value}; {usd_text(receipt.spent_usd)} USD spent" + (f": {message}" if message else "")
        context.notifier.notify(notice, run=context.folder.run_id, text=text, outcome=ending.value)
        context.notifier.close()
        context.trackers.close()
        return outcome

    async def _train(self) -> Ending:
        """Run generations until the training has reached its end or can't continue."""
        context = self.context
        if context.search is not None and (slow := known_slow_links(context)):
            context.search.update_link_speeds(slow)
        first = not generations(context.folder)
        running_generation, idle = await takeover.running_generation(context), False
        if running_generation is None:
            await fallback.obtain_nodes(context, await takeover.initial_plan(context))
            generation = await self._started()
        else:
            generation = self._followed(running_generation)
            # An earlier controller may have died while it bought more nodes.
            idle = nodes.has_extra(context, context.document)
        if first:
            context.notifier.notify(Notice.STARTED, run=context.folder.run_id, text="training started")
        while True:
            growth, links, idle = Growth(context, generation, idle=idle), SlowLinks(context, generation), False
            rate = MeasuredRate(context, generation)
            async with growth.watching(), links.watching(), rate.watching():
                result = await generation.follow()
            context.journal.append(
                Event.GENERATION_ENDED, generation=generation.number, step=result.step, end=result.end.value
            )
            if result.end is not End.FAILED:
                self._suspect = None
            match result.end:
                case End.FINISHED:
                    await self._fetch_logs()
                    context.observer.note(
                        _command_ended(context)
                        if context.runs_command
                        else f"the trained model is saved as step {max(result.step, context.saved_step)} in "
                        f"{context.checkpoints_dir}"
                    )
                    return Ending.COMPLETED
                case End.STOPPED:
                    await self._fetch_logs()
                    context.stop.check()
                    if running_generation is None or generation.number > running_generation.generation:
                        raise LaunchError("another process asked the agents to stop; see the run's journal")
                    context.observer.note(
                        f"an earlier controller had asked the ranks to stop; continuing from step {context.saved_step}"
                    )
                case End.HANDED_OVER:
                    wanted = growth.document or links.document or rate.document
                    assert wanted is not None
                    await fallback.obtain_nodes(context, wanted)
                case End.NODES_LOST:
                    await self._recover(result.lost, result.why, broken=not result.taken_back)
                case End.FAILED:
                    await self._retry(result)
            generation = await self._started()

    async def _recover(self, lost: tuple[str, ...], why: str, *, broken: bool = True) -> None:
        """Continue without lost nodes, under a new plan or on new nodes; not on their machines if these are broken."""
        context = self.context
        context.stop.check()
        self._recoveries += 1
        nodes.report_lost_nodes(context, lost, why)
        if self._recoveries > context.options.most_recoveries:
            raise LaunchError(f"nodes were lost {self._recoveries} times; {why}")
        for name in lost:
            context.fleet.lose(name, broken=broken)
        await nodes.disconnect(context, lost)
        document = await fallback.next_plan(context, context.document, without=lost)
        await fallback.obtain_nodes(context, document)

    async def _retry(self, result: Result) -> None:
        """Try again after a failure of the job itself, as long as each attempt gets further than the last.

        Code that fails at the same step again, or before the first one, would fail until the budget is spent. A node
        with two CUDA errors in a row, which a broken device may cause, is replaced.
        """
        context = self.context
        await self._fetch_logs()
        before, self._suspect = self._suspect, result.suspect
        if not result.final and self._suspect is not None and self._suspect == before:
            await self._recover((before,), f"node {before} may have a broken device: {result.why}")
            return
        self._retries += 1
        if context.runs_command:
            self._retry_command(result)
            return
        stuck = (result.step <= self._failed_at or result.step == 0) and _PORT_TAKEN not in result.why
        if result.final or stuck or self._retries > context.options.most_retries:
            times = f"failed {self._retries} times without progress; " if self._retries > 1 else ""
            raise LaunchError(f"{times}{result.why}\nall logs: {context.folder.logs_dir}")
        self._failed_at = result.step
        context.observer.note(f"step {result.step}: {result.why}\ntrying again from step {context.saved_step}")

    def _retry_command(self, result: Result) -> None:
        """Restart a failed command, unless it fails right after each start, the same way, or without a checkpoint."""
        context, saved = self.context, self.context.saved_step
        logs = f"all logs: {context.folder.logs_dir}"
        failure = result.failure
        # `ran_s` is 0 if the command hung or its supervisor was killed.
        died_early = failure is not None and failure.what and 0.0 < failure.ran_s < SOON_S
        quick = died_early and _PORT_TAKEN not in result.why
        self._soon = self._soon + 1 if quick else 0
        if result.final:
            raise LaunchError(f"{result.why}\n{logs}")
        if self._soon > 1:
            raise LaunchError(
                f"failed twice in a row within {SOON_S:.0f} s of its start, not restarted: {result.why}\n{logs}"
            )
        (errors, step, kept), self._last_failure = self._last_failure, (result.errors, result.step, saved)
        same = result.errors and result.errors == errors and _PORT_TAKEN not in result.why
        if same and result.step <= step and saved <= kept:
            raise LaunchError(
                f"failed twice in a row with the same error and got no further, not restarted: {result.why}\n{logs}"
            )
        if saved > self._failed_at:
            self._retries, self._failed_at = 1, saved
        if self._retries > context.options.most_retries:
            raise LaunchError(f"failed {self._retries} times without a new checkpoint: {result.why}\n{logs}")
        context.observer.note(f"{result.why}\nstarting the command again")

    async def _started(self) -> Generation:
        """Start a new generation; plan again if nodes are lost before it begins."""
        context = self.context
        while True:
            try:
                return await self._next_generation()
            except UnreachableError as error:
                if lost := await nodes.find_lost_nodes(context, context.document):
                    await self._recover(lost, f"{error}; lost before training began: {', '.join(lost)}")
                    continue
                self._recoveries += 1
                if self._recoveries > context.options.most_recoveries:
                    raise
                context.observer.note(f"{error}; it answers again")

    async def _next_generation(self) -> Generation:
        """Start a new generation of ranks on the connected nodes."""
        context = self.context
        number = max(generations(context.folder), default=0) + 1
        document = context.document
        assert document.plan is not None
        kept = {"plan_sha256": write_plan(context.folder, number, document)} if number > 1 else {}
        digest = plan_hash(document.plan)
        context.calibrated_s = None
        context.begin_leg(new_monitor(context.job_document, number))
        await context.stop.unless_stopped(self._start(number, digest, kept))
        return self._generation(number, digest)

    async def _start(self, number: int, digest: str, kept: dict[str, str]) -> None:
        context, document = self.context, self.context.document
        assert document.plan is not None
        links = context.links
        await nodes.all_done(link.ensure_agent() for link in links.values())
        port = await links[document.plan.pipelines[0].stages[0].node].free_port(self._port_choice(number))
        packed = code.stored_code(context.folder)
        if packed is not None:
            context.show("copying the code")
            await nodes.all_done(link.upload_code(packed) for link in links.values())
        spec = self._spec(number, port, None if packed is None else packed.sha256)
        context.journal.append(Event.GENERATION_STARTED, generation=number, spec=spec.sha256, **kept)
        path, content = f"generations/{number}/spec.json", spec.to_json().encode()
        await nodes.all_done(link.write(path, content) for link in links.values())
        # The folder's name can differ from the node's id, so the command names the node.
        await nodes.all_done(
            link.command("start", generation=number, plan_hash=digest, spec=path, node=name)
            for name, link in links.items()
        )
        context.show("starting the command" if context.runs_command else "starting ranks")

    def _spec(self, number: int, port: int, code_sha256: str | None) -> RunSpec | CommandSpec:
        """Return the spec with which agents run the ranks or the job's command."""
        context, plan = self.context, self.context.document.plan
        nodes = {name: link.node for name, link in context.links.items()}
        common: Any = {
            "run_id": context.folder.run_id,
            "generation": number,
            "master_port": port,
            "checkpoint_directory": str(context.checkpoints_dir),
            "expires_at": context.expires_at,
            "code_sha256": code_sha256,
            "sockets": must_use_sockets(nodes.values()),
        }
        if context.runs_command:
            return build_command_spec(context.document, nodes, **common)
        assert plan is not None
        assert context.decoder is not None
        check = self._checked is None or not same_shape(self._checked, plan)
        common |= {"steps": context.steps, "saved_step": context.saved_step, "check": check}
        spec = build_spec(context.document, context.decoder, nodes, **common)
        self._checked = plan
        return spec

    def _port_choice(self, number: int) -> int:
        """Return the first port to try; it differs between runs that start together on one machine."""
        return zlib.crc32(self.context.folder.run_id.encode()) + number

    def _generation(self, number: int, digest: str) -> Generation:
        context = self.context
        assert context.monitor is not None
        return Generation(
            number=number,
            digest=digest,
            document=context.document,
            links=tuple(context.links.values()),
            fleet=context.fleet,
            monitor=context.monitor,
            record=context.record,
            clock=context.clock,
            options=context.options,
            stop=context.stop,
            on_event=lambda event, monitor: announce(context, event, monitor),
            on_poll=lambda: context.observer.progress(context.progress()),
        )

    def _followed(self, monitor: Monitor) -> Generation:
        """Return a generation that runs already, to follow it."""
        context = self.context
        context.begin_leg(monitor)
        assert context.document.plan is not None
        self._checked = context.document.plan
        context.show("running" if context.runs_command else "training")
        context.observer.note(f"took over generation {monitor.generation} at step {monitor.step}")
        return self._generation(monitor.generation, plan_hash(context.document.plan))

    async def _fetch_logs(self) -> None:
        context = self.context
        context.show("fetching logs")
        for name, link in context.links.items():
            target = context.folder.logs_dir / name
            target.mkdir(mode=0o700, exist_ok=True)
            try:
                await link.fetch_logs(target)
            except LaunchError as error:
                context.observer.note(f"the logs of node {name} could not be fetched: {error}")
        context.journal.append(Event.RESULTS_FETCHED)


def _command_ended(context: RunContext) -> str:
    monitors = [leg.monitor for leg in recorded_generations(context.folder)]
    saved = any(monitor.checkpoints for monitor in monitors)
    kept = f"its checkpoints are in {context.checkpoints_dir}" if saved else "it has saved no checkpoint"
    if any(monitor.steps_done for monitor in monitors):
        return f"the command has ended; {kept}"
    how = 'its pace and cost per step are unknown: print lines such as {"step": 20}'
    return f"the command has ended; {kept}. It has reported no step, so {how}"


def _failed_write(error: OSError) -> str:
    if error.errno != errno.ENOSPC:
        return of_system(error)
    where = "there" if error.filename else "on this machine's disks"
    return f"{of_system(error)}; free space {where}, then start the job again"
