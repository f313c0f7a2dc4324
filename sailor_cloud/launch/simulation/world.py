"""Simulated nodes, agents and ranks: their actions are computed from the elapsed time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sailor_cloud.launch.simulation.market import Place, Trace
from sailor_cloud.launch.simulation.time import SimulatedClock
from sailor_cloud.launch.telemetry.events import AgentEvent
from sailor_cloud.model.offer import Market, Offer
from sailor_cloud.simulator import startup_s, teardown_s

# The share of the planner's start-up time that is over once a node answers; the rest is installing, joining and
# checking. The parts are listed next to the figure in simulator.money.
BOOT_SHARE = 0.25


@dataclass(slots=True, kw_only=True)
class SimulatedNode:
    """A node that exists from `created_s` until `gone_s`."""

    id: str
    offer: Offer
    devices: int
    created_s: float
    gone_s: float | None = None
    notice_s: float | None = None
    slowness: float = 1.0

    def alive(self, at_s: float) -> bool:
        return self.gone_s is None or at_s < self.gone_s

    @property
    def place(self) -> Place:
        return Place(self.offer.zone, self.offer.accelerator)


@dataclass(slots=True, kw_only=True)
class Training:
    """One generation: it steps at a steady pace from `first_step_s` until its end or the loss of a node."""

    generation: int
    nodes: tuple[str, ...]
    first_step: int
    last_step: int
    first_step_s: float
    iteration_s: float
    every_s: float
    saved_step: int
    saved_at_s: float
    reported_step: int
    ended: bool = False

    def step_at(self, at_s: float) -> int:
        done = int(max(0.0, at_s - self.first_step_s) / self.iteration_s + 1e-9)
        return min(self.last_step, self.first_step + done)


@dataclass(slots=True, kw_only=True)
class World:
    """Everything outside the controller; it outlives controllers."""

    clock: SimulatedClock
    trace: Trace
    expires_s: float | None = None
    notice_s: float = 0.0
    checkpoint_step: int = 0
    nodes: dict[str, SimulatedNode] = field(default_factory=dict)
    training: Training | None = None
    events: dict[str, list[AgentEvent]] = field(default_factory=dict)
    slowness_of: Callable[[str], float] = lambda node: 1.0
    # Preflight results in bytes/s from one zone to another; other pairs are not measured.
    links: Mapping[tuple[str, str], float] = field(default_factory=dict)
    # Steps that were done and lost, per event that ended a generation.
    lost_steps: list[tuple[int, float]] = field(default_factory=list)
    preemptions: int = 0
    _checked_s: float = 0.0

    @property
    def now_s(self) -> float:
        return self.clock.elapsed_s

    def running(self) -> dict[str, SimulatedNode]:
        self.advance()
        return {name: node for name, node in self.nodes.items() if node.alive(self.now_s)}

    def has_room(self, order: SimulatedNode) -> bool:
        if not self._limited(order):
            return True
        there = [node for node in self.running().values() if node.place == order.place and self._limited(node)]
        held = sum(node.devices for node in there)
        return self.trace.available(order.place, self.now_s) - held >= order.devices

    def _limited(self, node: SimulatedNode) -> bool:
        return node.offer.market is Market.SPOT or not self.trace.spot_only

    def add(self, name: str, offer: Offer, devices: int) -> None:
        slowness = self.slowness_of(name)
        self.nodes[name] = SimulatedNode(id=name, offer=offer, devices=devices, created_s=self.now_s, slowness=slowness)

    def remove(self, name: str) -> None:
        node = self.nodes.get(name)
        if node is not None and node.alive(self.now_s):
            node.gone_s = self.now_s

    def boot_s(self, offer: Offer) -> float:
        return startup_s(offer.provider) * BOOT_SHARE

    def removal_s(self) -> float:
        return max((teardown_s(node.offer.provider) for node in self.running().values()), default=0.0)

    def begin(self, generation: int, nodes: tuple[str, ...], *, steps: int, iteration_s: float, every_s: float) -> None:
        """Start a generation; this ends the previous one."""
        self.advance()
        self.training = Training(
            generation=generation,
            nodes=nodes,
            first_step=self.checkpoint_step,
            last_step=steps,
            first_step_s=self.now_s + max(self._joining_s(name) for name in nodes),
            iteration_s=iteration_s * max(self.nodes[name].slowness for name in nodes),
            every_s=every_s,
            saved_step=self.checkpoint_step,
            saved_at_s=self.now_s,
            reported_step=self.checkpoint_step,
        )
        for name in nodes:
            self._emit(name, "generation_started", generation=generation)
        self._emit(nodes[0], "preflight", generation=generation, devices=[], links=self._measured(nodes))

    def stop(self) -> None:
        """Save a checkpoint and end the generation."""
        self.advance()
        training = self.training
        if training is None or training.ended:
            return
        self._report(self.now_s)
        self._save(training.step_at(self.now_s))
        self._end("finished" if training.reported_step >= training.last_step else "requested", training.nodes)

    def advance(self) -> None:
        """Process all events until now, in order."""
        moments = [moment for moment in self.trace.times_s if self._checked_s < moment <= self.now_s]
        if self.expires_s is not None and self._checked_s < self.expires_s <= self.now_s:
            moments.append(self.expires_s)
        for moment in sorted(moments):
            self._checked_s = moment
            self._preempt_excess(moment)
        self._checked_s = self.now_s
        self._train_until(self.now_s)

    def _measured(self, nodes: tuple[str, ...]) -> list[dict[str, object]]:
        zones = {name: self.nodes[name].offer.zone for name in nodes}
        return [
            {"src_node": src, "dst_node": dst, "bytes_per_s": self.links[zones[src], zones[dst]]}
            for src in nodes
            for dst in nodes
            if (zones[src], zones[dst]) in self.links
        ]

    def _joining_s(self, name: str) -> float:
        return startup_s(self.nodes[name].offer.provider) * (1.0 - BOOT_SHARE)

    def _preempt_excess(self, at_s: float) -> None:
        """End nodes that exceed the capacity, the newest spot nodes first; at expiry, end all nodes."""
        expired = self.expires_s is not None and at_s >= self.expires_s
        alive = [node for node in self.nodes.values() if node.alive(at_s) and node.created_s <= at_s]
        alive = [node for node in alive if expired or self._limited(node)]
        for node in sorted(alive, key=lambda node: (node.offer.market is not Market.SPOT, -node.created_s, node.id)):
            held = sum(other.devices for other in alive if other.alive(at_s) and other.place == node.place)
            if expired:
                node.gone_s = at_s
            elif held > self.trace.available(node.place, at_s):
                self.preemptions += 1
                node.gone_s = at_s + self.notice_s
                node.notice_s = at_s
                if self.notice_s:
                    self._emit(node.id, "preempt_notice")

    def _train_until(self, at_s: float) -> None:
        training = self.training
        if training is None or training.ended:
            return
        gone = [
            node.gone_s
            for name in training.nodes
            if (node := self.nodes[name]).gone_s is not None and node.gone_s <= at_s
        ]
        end_s = min(gone, default=at_s)
        self._report(end_s)
        if training.reported_step >= training.last_step:
            self._save(training.last_step)
            self._end("finished", training.nodes)
        elif gone:
            step = training.step_at(end_s)
            self.lost_steps.append((step - training.saved_step, end_s - training.saved_at_s))
            survivors = tuple(name for name in training.nodes if self.nodes[name].alive(end_s))
            for name in survivors:
                tail = "Connection closed by peer"
                self._emit(name, "rank_dead", generation=training.generation, rank=0, exit_code=1, tail=tail)
            self._end("failed", survivors)

    def _report(self, until_s: float) -> None:
        """Report the steps up to a moment, and the checkpoints among them."""
        training = self.training
        assert training is not None
        while (due_s := training.saved_at_s + training.every_s) <= until_s:
            step = training.step_at(due_s)
            self._emit_steps(step)
            training.saved_at_s = due_s
            if step > training.saved_step and step < training.last_step:
                self._save(step)
        self._emit_steps(training.step_at(until_s))

    def _emit_steps(self, step: int) -> None:
        training = self.training
        assert training is not None
        done = step - training.reported_step
        if done > 0:
            training.reported_step = step
            self._emit(
                training.nodes[0],
                "step",
                generation=training.generation,
                step=step,
                loss=1.0 + 10.0 / (1.0 + step),
                iteration_s=training.iteration_s,
                iterations=done,
            )

    def _save(self, step: int) -> None:
        training = self.training
        assert training is not None
        self.checkpoint_step = training.saved_step = step
        self._emit(training.nodes[0], "checkpoint", generation=training.generation, step=step, path=f"step-{step}")

    def _end(self, reason: str, nodes: tuple[str, ...]) -> None:
        training = self.training
        assert training is not None
        training.ended = True
        for name in nodes:
            self._emit(name, "stopped", generation=training.generation, reason=reason, step=training.reported_step)

    def _emit(self, node: str, event: str, **fields: object) -> None:
        events = self.events.setdefault(node, [])
        events.append({"seq": len(events) + 1, "ts": self._checked_s, "event": event, **fields})
