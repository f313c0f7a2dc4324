"""Single moves from plans on the Pareto frontier of money and time to other plans on it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from sailor_cloud.planner.evaluate.assess import Shape
from sailor_cloud.planner.evaluate.pareto import Money, behind, figures, of_run, trade, unbeaten
from sailor_cloud.planner.improvement import Improver, Neighbour, Neighbourhood
from sailor_cloud.planner.space.draft import Draft, significant
from sailor_cloud.planner.space.effort import Effort
from sailor_cloud.planner.space.goals import TIE, Figure, Target
from sailor_cloud.planner.space.space import Space

# Limits: the plans judged in all; the factor up to which a start may be behind others; the starts at a time; the moves
# from each start at a time.
MOST_JUDGED = 1200
_NEAR = 1.03
_AT_ONCE, _STEPS = 16, 4


@dataclass(slots=True)
class _Start:
    """A plan from which moves start, their number so far, and the factor by which another plan beats it in both."""

    draft: Draft
    steps: Iterator[Neighbour]
    behind: float
    taken: int = 0


@dataclass(slots=True)
class Explorer:
    """Moves from plans of the space's ZeRO stage; `money` and time compare them."""

    space: Space
    target: Target
    effort: Effort
    money: Money = of_run
    _front: list[Draft] = field(default_factory=list)
    _starts: list[_Start] = field(default_factory=list)
    _seen: set[Neighbour] = field(default_factory=set)

    def run(self, drafts: Iterable[Draft], *, most: int = MOST_JUDGED) -> list[Draft]:
        """Return the unbeaten results of moves from the best of some drafts; at most `most` plans are judged."""
        found: list[Draft] = []
        self._begin(sorted(drafts, key=Draft.order))
        improver = Improver(self.space, self.target)
        judged = 0
        while judged < most and self._starts:
            wanted = [step for start in self._next() for step in self._steps(start)][: most - judged]
            drawn = [improver.made(step, self.space.zero_stage) for step in wanted]
            judged += len(wanted)
            self.effort.tell(judged / most)
            found += self._enter([draft for draft in drawn if draft is not None])
        return found

    def _begin(self, drafts: Sequence[Draft]) -> None:
        values = [tuple(significant(value) for value in trade(draft, self.money)) for draft in drafts]
        different = dict(zip(reversed(values), reversed(drafts), strict=True))
        every = list(different.values())[::-1]
        self._front = [every[index] for index in unbeaten(*figures(every, self.money))]
        self._starts = [_Start(draft, self._all_steps(draft), 1.0) for draft in every]
        self._drop_dominated()

    def _enter(self, drafts: Sequence[Draft]) -> list[Draft]:
        """Add the results of moves, and return those that no other plan beats."""
        most = self.space.scenario.job.constraints.max_nodes
        every = [*self._front, *(draft for draft in drafts if most is None or draft.figures[Figure.NODES] <= most)]
        front = unbeaten(*figures(every, self.money))
        found = [every[index] for index in front if index >= len(self._front)]
        self._front = [every[index] for index in front]
        self._starts += [_Start(draft, self._all_steps(draft), 1.0) for draft in found]
        if found:
            self._drop_dominated()
        return found

    def _drop_dominated(self) -> None:
        """Stop moves from plans that others beat by far."""
        every = [*self._front, *(start.draft for start in self._starts)]
        ahead = len(self._front)
        values = behind(*figures(every, self.money), list(range(ahead)), range(ahead, len(every)))
        for start, value in zip(self._starts, values.tolist(), strict=True):
            start.behind = value
        self._starts = [start for start in self._starts if start.behind <= _NEAR]

    def _next(self) -> list[_Start]:
        """Return the next starts: unbeaten plans first, among them those with the fewest moves so far."""
        order = sorted(self._starts, key=lambda start: (start.behind > 1.0 + TIE, start.taken, start.behind))
        return order[:_AT_ONCE]

    def _steps(self, start: _Start) -> list[Neighbour]:
        """Return the next plans that are one move away; a start without any left is dropped."""
        found: list[Neighbour] = []
        for shapes, microbatches in start.steps:
            ordered = Neighbour(tuple(sorted(shapes, key=_in_order)), microbatches)
            if ordered not in self._seen:
                self._seen.add(ordered)
                found.append(ordered)
            if len(found) == _STEPS:
                break
        else:
            self._starts.remove(start)
        start.taken += _STEPS
        return found

    def _all_steps(self, draft: Draft) -> Iterator[Neighbour]:
        """Yield the neighbours of a draft, one of each kind of moves after the other."""
        kinds = deque(kind() for kind in Neighbourhood(self.space).kinds(draft))
        while kinds:
            neighbour = next(kinds[0], None)
            if neighbour is None:
                kinds.popleft()
            else:
                yield neighbour
                kinds.rotate(-1)


def _in_order(shape: Shape) -> tuple[object, ...]:
    return shape.slots, shape.cut, shape.microbatch_size
