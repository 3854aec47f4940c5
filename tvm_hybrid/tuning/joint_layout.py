"""The joint stage: chooses layouts of activations and weights together with loops.

    for every labelling that the walk proposes:             ALT, arXiv 2210.12415: joint stage
        regions of the model in these layouts               new regions get a few trials
        kernels of the model in these layouts               each timed once, conversions too
        sum of calls * microseconds                         the labelling's cost
    the best against the cheapest cut, the whole model, in turns
    then the layouts are frozen, and only loops are searched        loop-only stage

How a weight is stored (its panels, vectors and their order) is part of every region's
configuration, so the search for loops chooses it together with the blocks. For activations, the
choice is which axis of a tensor comes last. That decides which kernels are possible: pools,
reductions, concatenations and the like in either layout, 1x1 convolutions as pixels times weights
or as weights times planes. A conversion is a kernel of its own or becomes part of a neighbouring
kernel; either way the sum contains it.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tvm import IRModule

from microkernels.base.logs import logger
from relay_passes.layout.minimum_cut import FIRST, LAST
from relay_passes.layout.search_space import ChooseLabels, Labels, LayoutChoice, LayoutProblem
from relay_passes.lower_module import count_regions, layout_problems, lower_module
from relay_passes.pipeline_options import PipelineOptions
from tir_schedules.core.region import Region

from ..records.choice_record import LayoutRecord
from ..records.record_lookup import RecordLookup
from ..records.record_store import RecordStore
from .measuring.kernel_clock import Clock, total_us
from .measuring.model_race import Program, Race, program_kernels
from .measuring.sampling import is_faster

TRIES = 24
ROUNDS = 8
SHARE = 0.4
"""Most of a run's trials and time for the joint stage: 8,000 of 20,000 trials in the paper."""

Loops = Callable[[Sequence[tuple[Region, int]], int, float], Mapping[str, int]]
"""(regions and how often each runs, trials of each, seconds for all) -> measurements made, by
region key; writes records."""

RunRace = Callable[[Program, Program], Race]


@dataclass(frozen=True)
class JointPlan:
    """Limits of the joint stage.

    Attributes
    ----------
    tries : int
        Labellings to try, the cheapest cut included.
    rounds : int
        Configurations of each region, the default and those already known included.
    trials : int or None
        Most measurements of configurations.
    time_limit : float or None
        Seconds; a measurement that has begun is finished.
    seed : int
        Seed of the walk.
    resume : bool
        Whether layouts from the store are used without a new search.
    """

    tries: int = TRIES
    rounds: int = ROUNDS
    trials: int | None = None
    time_limit: float | None = None
    seed: int = 0
    resume: bool = True


@dataclass(frozen=True)
class JointResult:
    """The outcome of the joint stage.

    Attributes
    ----------
    choices : int
        Number of operators whose layout was searched for.
    changed : tuple of str
        Operators with another layout than in the cheapest cut; empty if the cheapest cut is best.
    default_us, best_us : float
        Sum of all kernels' times with the cheapest cut, and with the best labels.
    steps : tuple of TriedLabelling
        Every labelling that was tried.
    times_us, default_times_us : tuple of float
        Times of the whole model with both, sampled in turns; empty if they were not compared.
    chosen : bool
        Whether the labels are used: the model was significantly faster with them.
    measured : dict
        Key of a region -> measurements of its configurations.
    source : str
        "FILE:LINE" of the labels if they were known; else empty.
    """

    choices: int
    changed: tuple[str, ...] = ()
    default_us: float = 0.0
    best_us: float = 0.0
    steps: tuple[TriedLabelling, ...] = ()
    times_us: tuple[float, ...] = ()
    default_times_us: tuple[float, ...] = ()
    chosen: bool = False
    measured: Mapping[str, int] = field(default_factory=dict)
    source: str = ""

    @property
    def speedup(self) -> float | None:
        """How many times faster the whole model is than with the cheapest cut; None if unknown."""
        pairs = list(zip(self.default_times_us, self.times_us, strict=True))
        return statistics.median(other / mine for other, mine in pairs) if pairs else None

    def to_dict(self) -> dict[str, Any]:
        """All fields and the speedup, for JSON."""
        return {**asdict(self), "speedup": self.speedup}

    def __str__(self) -> str:
        if self.source:
            return f"layouts: known, {self.source}"
        if not self.choices:
            return "layouts: there is no choice"
        text = (
            f"layouts: {len(self.steps)} tried for {self.choices} operators with a choice, "
            f"{self.default_us:.1f} us -> {self.best_us:.1f} us"
        )
        if not self.changed:
            return f"{text}; the fewest bytes are the best"
        state = "used" if self.chosen else "not significantly faster, not used"
        speedup = "" if self.speedup is None else f", the model {self.speedup:.3f}x as fast"
        return f"{text}{speedup}; {len(self.changed)} changed, {state}"


@dataclass
class JointStage:
    """The joint stage of one model.

    Parameters
    ----------
    mod : IRModule
        The imported model.
    options : PipelineOptions
        How to compile it; `lookup` and `layouts` are replaced.
    store : RecordStore
        Holds known configurations; layouts are written to it.
    loops : callable
        Measures configurations of regions.
    clock : Clock
        Times kernels.
    race : callable
        Compares two whole programs.
    """

    mod: IRModule
    options: PipelineOptions
    store: RecordStore
    loops: Loops
    clock: Clock
    race: RunRace

    def __post_init__(self) -> None:
        self.options = replace(self.options, layouts=None, strict=False, dump_ir=None)
        self.measured: dict[str, int] = {}

    def run(self, plan: JointPlan) -> JointResult:
        """Searches for layouts, and writes them if they are significantly better."""
        found_problems = layout_problems(self.mod, self.options)
        problems = list({each.key: each for each in found_problems}.values())
        choices = sum(operator.leads for each in problems for operator in each.operators)
        if not choices:
            return JointResult(choices)
        files = self.store.files
        known = [LayoutRecord.find(files, each.key, self.options) for each in problems]
        if plan.resume and any(known):
            places = [place for _, place in filter(None, known)]
            return JointResult(choices, source=", ".join(places))
        end = math.inf if plan.time_limit is None else time.monotonic() + plan.time_limit

        def cost(labelling: Labelling) -> float:
            return self.cost(labelling, plan, max(0.0, end - time.monotonic()))

        walk = Walk(problems, cost, plan.seed)
        found = walk.run(plan.tries, lambda: time.monotonic() >= end)
        us, made = (found.default_us, found.best_us), dict(self.measured)
        result = JointResult(choices, (), *us, found.steps, measured=made)
        if not found.is_default:
            result = self._compared(problems, found, result)
        if not result.chosen:  # overwrites recorded layouts that did not win again
            for problem, record in zip(problems, known, strict=True):
                if record is not None:
                    self._append(problem.key, problem.default, [], [])
        logger.info("%s", result)
        return result

    def cost(self, labelling: Labelling, plan: JointPlan, seconds: float = math.inf) -> float:
        """Measures new regions, then returns the microseconds of all kernels in these layouts.

        Every region uses its best known configuration. A labelling gets at most half of the
        remaining trials and seconds; regions without trials use their default configurations.
        """
        options = replace(self.options, layouts=chooser(labelling, "the joint stage"))
        counted = count_regions(self.mod, options)
        fresh = [(region, count) for region, count in counted if region.key not in self.measured]
        left = math.inf if plan.trials is None else plan.trials - sum(self.measured.values())
        rounds = int(min(plan.rounds, left / 2 / len(fresh))) if fresh else 0
        if rounds > 0 and seconds > 0:
            made = self.loops(fresh, rounds, seconds / 2)
            self.measured |= {region.key: made.get(region.key, 0) for region, _ in fresh}
        lowered = lower_module(self.mod, replace(options, lookup=RecordLookup(self.store)))
        return total_us(self.clock, program_kernels(lowered))

    def _compared(
        self, problems: Sequence[LayoutProblem], found: WalkResult, result: JointResult
    ) -> JointResult:
        """Runs the best labelling against the cheapest cut, and records it if it is faster."""
        options = replace(self.options, lookup=RecordLookup(self.store))
        chosen = replace(options, layouts=chooser(found.best, "the joint stage"))
        times, default_times, same = self.race((self.mod, chosen), (self.mod, options))
        if not same:
            logger.warning("the model's results differ in other layouts, which are not used")
        changed = {each.key: each.differences(found.best[each.key]) for each in problems}
        faster = same and is_faster(times, default_times)
        if faster:
            for key, names in changed.items():
                if names:
                    self._append(key, found.best[key], times, default_times)
        operators = tuple(itertools.chain.from_iterable(changed.values()))
        result = replace(result, times_us=tuple(times), default_times_us=tuple(default_times))
        return replace(result, changed=operators, chosen=faster)

    def _append(
        self, key: str, labels: Mapping[str, int], times: list[float], default_times: list[float]
    ) -> None:
        """Writes a record of the labels of a block."""
        names, trials = LayoutRecord.names_of(labels), sum(self.measured.values())
        fields = {"graph": key, "labels": names, "trials": trials}
        self.store.append(LayoutRecord.made(self.options, times, default_times, **fields))


def chooser(labelling: Labelling, source: str) -> ChooseLabels:
    """Makes a function that looks up the labels of a block in a labelling."""

    def choose(problem: LayoutProblem) -> LayoutChoice | None:
        labels = labelling.get(problem.key)
        return None if labels is None else LayoutChoice(labels, source)

    return choose


# The walk of the joint stage: which layouts of a model are tried next.
#
# ALT (arXiv 2210.12415) has two actors take turns: one proposes a layout, the other searches loops
# for it for some rounds, and the best time is the layout's reward. This walk works likewise, but
# seeded annealing (Kirkpatrick, Gelatt and Vecchi, 1983) replaces the layout actor's network, which
# a few dozen proposals could not train. A state maps leading operators to the layouts they are
# asked to use; the operators between them follow by the cheapest cut
# (`relay_passes.layout.search_space`). A move changes the layout of one leading operator, or of
# several connected ones: a layout may pay only if neighbours use it too.


Labelling = Mapping[str, Labels]
"""Key of a block -> its labels."""

Cost = Callable[[Labelling], float]
"""Microseconds of the whole model in these layouts; infinite if it cannot be measured."""

HOTTEST = 0.05  # relative slowdown that is at first accepted with probability 1/e
_Leader = tuple[str, str]  # key of the block, name of the operator
_State = dict[_Leader, int]


@dataclass(frozen=True)
class TriedLabelling:
    """A labelling that was tried.

    Attributes
    ----------
    changed : tuple of str
        Operators with another layout than in the cheapest cut.
    us : float
        Microseconds of the whole model; infinite if it cannot be measured.
    """

    changed: tuple[str, ...]
    us: float


@dataclass(frozen=True)
class WalkResult:
    """The outcome of a walk.

    Attributes
    ----------
    best : Labelling
        Labels of all blocks of the fastest labelling.
    best_us, default_us : float
        Time of the fastest labelling, and of the cheapest cut.
    steps : tuple of TriedLabelling
        Every labelling that was tried, the cheapest cut first.
    """

    best: Labelling
    best_us: float
    default_us: float
    steps: tuple[TriedLabelling, ...]

    @property
    def is_default(self) -> bool:
        """Whether no labelling is better than the cheapest cut."""
        return self.best_us >= self.default_us


class Walk:
    """Tries labellings of a model by simulated annealing.

    Parameters
    ----------
    problems : sequence of LayoutProblem
        Blocks with a choice; their keys differ.
    cost : callable
        Measures a labelling; called at most once for each.
    seed : int
        Equal seeds and equal costs make equal walks.
    """

    def __init__(self, problems: Sequence[LayoutProblem], cost: Cost, seed: int = 0) -> None:
        self.problems = {problem.key: problem for problem in problems}
        self.cost, self.generator = cost, random.Random(seed)
        self.around: dict[_Leader, list[_Leader]] = {
            (key, each.name): [(key, name) for name in each.neighbours]
            for key, problem in self.problems.items()
            for each in problem.operators
            if each.leads
        }
        self.default = {key: problem.default for key, problem in self.problems.items()}
        self.known: set[tuple[int, ...]] = set()
        self.steps: list[TriedLabelling] = []
        self.best: Labelling = self.default

    def run(self, tries: int, stop: Callable[[], bool] = lambda: False) -> WalkResult:
        """Tries up to `tries` labellings, the cheapest cut included; ends early if `stop()`."""
        default_us = best_us = current_us = self.measure(self.default)
        current: _State = {}
        proposals = self.beginnings()
        while len(self.steps) < tries and self.around and math.isfinite(default_us) and not stop():
            state = next(proposals, None) or self.move(current)
            if state is None:
                break
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
        self.known.add(self.signature(labelling))
        problems = self.problems.items()
        changed = (name for key, each in problems for name in each.differences(labelling[key]))
        self.steps.append(TriedLabelling(tuple(changed), microseconds))
        return microseconds

    def signature(self, labelling: Labelling) -> tuple[int, ...]:
        operators = (
            (key, each.name) for key, one in self.problems.items() for each in one.operators
        )
        return tuple(labelling[key][name] for key, name in operators)

    def labelling(self, state: _State) -> Labelling | None:
        """Labels of all blocks with the state's layouts; None if they are not possible."""
        found: dict[str, Labels] = {}
        for key, problem in self.problems.items():
            wanted = {name: label for (block, name), label in state.items() if block == key}
            labels = problem.cheapest(wanted) if wanted else problem.default
            if labels is None:
                return None
            found[key] = labels
        return found

    def beginnings(self) -> Iterator[_State]:
        """First states: all channels first, all channels last, then single operators changed.

        Operators at the ends of a model come first: reorders are there.
        """
        for label in (FIRST, LAST):
            yield dict.fromkeys(self.around, label)
        ends = [one for one in self.around if len(self.around[one]) < 2]
        rest = [one for one in self.around if len(self.around[one]) >= 2]
        self.generator.shuffle(rest)
        for one in (*reversed(ends), *rest[: len(rest) // 4]):
            yield {one: self.other_label(one, {})}

    def move(self, state: _State) -> _State | None:
        """Returns an untried neighbour of a state; None if 64 attempts find none."""
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
        """Connected operators: one, and another with probability 1/2 each time."""
        group = [start]
        while self.generator.random() < 0.5:
            border = sorted({other for one in group for other in self.around[one]} - set(group))
            if not border:
                break
            group.append(self.generator.choice(border))
        return group

    def other_label(self, leader: _Leader, state: _State) -> int:
        """The layout that an operator does not have in a state."""
        key, name = leader
        now = (self.labelling(state) or self.default)[key][name]
        return FIRST if now == LAST else LAST
