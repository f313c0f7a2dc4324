"""What was answered already: the same is asked beside a plan as well as for it."""

from __future__ import annotations

from dataclasses import dataclass

from sailor_cloud.planner.answer import Answer
from sailor_cloud.planner.goals import Target
from sailor_cloud.planner.space import Space


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The best `keep` drafts for a target, and a bound on all plans where it is to be `bounded`."""

    space: Space
    target: Target
    keep: int
    bounded: bool

    def covers(self, other: Question) -> bool:
        """Return whether its answer is one to the other question, too."""
        here, there = self.space, other.space
        return (
            here.scenario is there.scenario
            and (here.numbers, here.zero_stage) == (there.numbers, there.zero_stage)
            and here.even_layers == there.even_layers
            and here.candidates == there.candidates
            and (self.target, self.keep) == (other.target, other.keep)
            and self.bounded >= other.bounded
        )

    def known(self) -> Answer | None:
        """Return the answer if there is one."""
        return next((answer for question, answer in self._answers if question.covers(self)), None)

    def answered(self, answer: Answer) -> Answer:
        """Keep an answer, and return it."""
        self._answers.append((self, answer))
        return answer

    @property
    def _answers(self) -> list[tuple[Question, Answer]]:
        kept: list[tuple[Question, Answer]] = self.space.known.searches.setdefault("even answers", [])
        return kept
