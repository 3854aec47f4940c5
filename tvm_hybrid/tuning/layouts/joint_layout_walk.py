"""The walk of the joint stage: which layouts of a model are tried next.

ALT (arXiv 2210.12415) has two actors take turns: one proposes a layout, the other searches
loops for it for some rounds, and the best time that was found is the layout's reward. So it is
here, with a seeded annealing walk (Kirkpatrick, Gelatt and Vecchi, 1983) in place of the layout
actor's network, which a few dozen proposals could not train. A state is what operators that lead
are asked to run in; those in between follow by the cheapest cut
(`relay_passes.layout.search_space`). A move changes the layout of one such operator, or of
several connected ones: a layout may pay only if neighbours have it too.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from relay_passes.layout.minimum_cut import FIRST, LAST
from relay_passes.layout.search_space import Labels, LayoutProblem

Labelling = Mapping[str, Labels]
"""Key of a block -> its labels."""

Cost = Callable[[Labelling], float]
"""Microseconds of the whole model in these layouts; infinite if it cannot be measured."""

HOTTEST = 0.05  # a walk begins by accepting what takes that much longer, one time in e
_Leader = tuple[str, str]  # key of the block, name of the operator
_State = dict[_Leader, int]


@dataclass(frozen=True)
class Step:
    """One labelling that was tried.

    Attributes
    ----------
    changed : tuple of str
        Operators that run in another layout than by the cheapest cut.
    us : float
        Microseconds of the whole model; infinite if it cannot be measured.
    """

    changed: tuple[str, ...]
    us: float


@dataclass(frozen=True)
class WalkResult:
    """What a walk found.

    Attributes
    ----------
    best : Labelling
        The labels of all blocks with which the model is fastest.
    best_us, default_us : float
        Its time, and that of the cheapest cut.
    steps : tuple of Step
        Everything that was tried, the cheapest cut first.
    """

    best: Labelling
    best_us: float
    default_us: float
    steps: tuple[Step, ...]

    @property
    def is_default(self) -> bool:
        """Whether nothing is better than the cheapest cut."""
        return self.best_us >= self.default_us


def walk(
    problems: Sequence[LayoutProblem],
    cost: Cost,
    tries: int,
    seed: int = 0,
    stop: Callable[[], bool] = lambda: False,
) -> WalkResult:
    """Tries labellings of a model, the better ones' relatives more often.

    Parameters
    ----------
    problems : sequence of LayoutProblem
        The blocks that have a choice, with different keys.
    cost : callable
        Measures a labelling; asked about each at most once.
    tries : int
        Labellings to try, the cheapest cut included.
    seed : int
        Equal seeds and equal costs make equal walks.
    stop : callable
        Asked between tries whether it is enough.
    """
    return _Walk(problems, cost, random.Random(seed)).run(tries, stop)


class _Walk:
    def __init__(
        self, problems: Sequence[LayoutProblem], cost: Cost, generator: random.Random
    ) -> None:
        self.problems = {problem.key: problem for problem in problems}
        self.cost, self.generator = cost, generator
        self.around: dict[_Leader, list[_Leader]] = {
            (key, each.name): [(key, name) for name in each.neighbours]
            for key, problem in self.problems.items()
            for each in problem.operators
            if each.leads
        }
        self.default = {key: problem.default for key, problem in self.problems.items()}
        self.known: dict[tuple[int, ...], float] = {}
        self.steps: list[Step] = []
        self.best: Labelling = self.default

    def run(self, tries: int, stop: Callable[[], bool]) -> WalkResult:
        default_us = best_us = current_us = self.measure(self.default)
        current: _State = {}
        proposals = self.beginnings()
        beginning = True
        while len(self.steps) < tries and self.around and math.isfinite(default_us) and not stop():
            state = next(proposals, None) if beginning else self.move(current)
            if state is None:
                if not beginning:
                    break
                beginning = False
                continue
            labelling = self.labelling(state)
            if labelling is None or self.signature(labelling) in self.known:
                continue
            microseconds = self.measure(labelling)
            if microseconds < best_us:
                self.best, best_us = labelling, microseconds
            warmth = HOTTEST * (1 - len(self.steps) / tries)
            if microseconds <= current_us or self.generator.random() < math.exp(
                (current_us - microseconds) / (max(warmth, 1e-6) * current_us)
            ):
                current, current_us = state, microseconds
        return WalkResult(self.best, best_us, default_us, tuple(self.steps))

    def measure(self, labelling: Labelling) -> float:
        microseconds = self.cost(labelling)
        self.known[self.signature(labelling)] = microseconds
        changed = tuple(
            name
            for key, problem in self.problems.items()
            for name in problem.differences(labelling[key])
        )
        self.steps.append(Step(changed, microseconds))
        return microseconds

    def signature(self, labelling: Labelling) -> tuple[int, ...]:
        return tuple(
            labelling[key][each.name]
            for key, problem in self.problems.items()
            for each in problem.operators
        )

    def labelling(self, state: _State) -> Labelling | None:
        """The labels of all blocks where some operators have theirs; None if that cannot be."""
        found: dict[str, Labels] = {}
        for key, problem in self.problems.items():
            wanted = {name: label for (block, name), label in state.items() if block == key}
            labels = problem.cheapest(wanted) if wanted else problem.default
            if labels is None:
                return None
            found[key] = labels
        return found

    def beginnings(self) -> Iterator[_State]:
        """Everything that can be channels first, everything last, then each in its other layout.

        Those next to the ends of a model come first: there is where reorders are.
        """
        for label in (FIRST, LAST):
            yield dict.fromkeys(self.around, label)
        ends = [one for one in self.around if len(self.around[one]) < 2]
        rest = [one for one in self.around if len(self.around[one]) >= 2]
        self.generator.shuffle(rest)
        for one in (*reversed(ends), *rest[: len(rest) // 4]):
            yield {one: self.other_label(one, {})}

    def move(self, state: _State) -> _State | None:
        """A state next to this one that was not tried; None if there seems to be none."""
        leaders = list(self.around)
        for _ in range(64):
            group = self.group(self.generator.choice(leaders))
            moved = {**state, group[0]: self.other_label(group[0], state)}
            moved.update(dict.fromkeys(group, moved[group[0]]))
            labelling = self.labelling(moved)
            if labelling is not None and self.signature(labelling) not in self.known:
                return moved
        return None

    def group(self, start: _Leader) -> list[_Leader]:
        """One operator, or with each further one half as often, connected ones."""
        group = [start]
        while self.generator.random() < 0.5:
            border = sorted({other for one in group for other in self.around[one]} - set(group))
            if not border:
                break
            group.append(self.generator.choice(border))
        return group

    def other_label(self, leader: _Leader, state: _State) -> int:
        """The label that an operator does not have in a state."""
        key, name = leader
        labelling = self.labelling(state)
        now = (labelling or self.default)[key][name]
        return FIRST if now == LAST else LAST
