"""TaskScheduler: decides which region of a model gets the next measurements, and when to stop.

The gradient of Ansor (Zheng et al., arXiv 2006.06762, section 6), for the sum over regions of how
often a region occurs times its best time. Time is counted in batches. The next batch of a region is
expected to gain, per occurrence,

    0.2 * (mean gain of its last three batches) + 0.8 * min(g / (2 (t + 1)), g - g')

with its best time g after t batches. In Ansor g' is what similar regions reach; here it is the time
that the strategy expects of the best untried configuration. A strategy without an expectation
counts as random: the excess of its best sqrt(n) scores over the next one is taken for exponential,
so that the largest of n + b draws exceeds that of n by the mean excess times log(1 + b / n). During
the first two batches g' is ignored. Ansor has g / t instead of half of it: but no kernel takes no
time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

ALPHA = 0.2
WINDOW = 3
BELIEVED_FROM = 2  # batches after which g' counts
GIVE_UP = 3  # batches without a configuration that ran
ALL_TRIED = "every configuration was tried"


@dataclass(frozen=True)
class TaskState:
    """What is known of one region.

    Attributes
    ----------
    weight : int
        How often the model runs it.
    size : int
        Configurations of its space.
    scores : tuple of float
        Speed of each measured configuration, in order, the default first: a multiple of that of
        `reference_us`; 0.0 for failures.
    reference_us : float or None
        Time of a score of 1; None while nothing ran.
    predicted : float or None
        Best score that the strategy expects of untried configurations.
    ended : str
        Why there is nothing more to measure; empty while there is.
    """

    weight: int
    size: int
    scores: tuple[float, ...] = ()
    reference_us: float | None = None
    predicted: float | None = None
    ended: str = ""

    @property
    def best_us(self) -> float | None:
        """Time of the best score; None while nothing ran."""
        best = max(self.scores, default=0.0)
        return self.reference_us / best if self.reference_us and best else None


@dataclass(frozen=True)
class Batch:
    """The scheduler's decision to measure `count` configurations of a task."""

    task: int
    count: int


@dataclass(frozen=True)
class Halt:
    """The scheduler's decision to end the search."""

    reason: str


@dataclass(frozen=True)
class TaskScheduler:
    """Spends a budget of measurements.

    Parameters
    ----------
    trials : int or None
        Most measurements of all tasks together, earlier ones included; None: no limit.
    trials_per_region : int or None
        Most measurements of each task; None: no limit.
    batch : int
        Measurements in one decision.
    min_gain : float
        The search ends when it is expected to shorten the model's time by less than this share. A
        task stops when its next batch is expected to gain less than `min_gain` divided by the
        number of tasks. 0: never.
    """

    trials: int | None = None
    trials_per_region: int | None = None
    batch: int = 8
    min_gain: float = 0.005

    def next(self, states: Sequence[TaskState]) -> Batch | Halt:
        """Decides the next measurements, from the states alone.

        First comes every task's default, then always the task with the largest expected gain.
        """
        left = math.inf
        if self.trials is not None:
            left = self.trials - sum(len(state.scores) for state in states)
            if left <= 0:
                return Halt(f"all {self.trials} trials are made")
        for task, state in enumerate(states):
            if not state.scores and not state.ended:
                return Batch(task, 1)
        reasons = self.stopped(states)
        going_on = [task for task, reason in enumerate(reasons) if reason is None]
        if not going_on:
            told = dict.fromkeys(reason for reason in reasons if reason)
            return Halt("; ".join(told) or "there is no region to tune")
        chosen = max(going_on, key=lambda task: (self.gain_us(states[task]), -task))
        if self.trials_per_region is not None:
            left = min(left, self.trials_per_region - len(states[chosen].scores))
        return Batch(chosen, int(min(left, self.batch)))

    def stopped(self, states: Sequence[TaskState]) -> list[str | None]:
        """Why each task gets no more trials; None for tasks that go on."""
        least = self.min_gain / len(states) * model_us(states) if states else 0.0
        return [self._why_stopped(state, least) for state in states]

    def _why_stopped(self, state: TaskState, least_us: float) -> str | None:
        if state.ended:
            return state.ended
        if len(state.scores) >= state.size:
            return ALL_TRIED
        if self.trials_per_region is not None and len(state.scores) >= self.trials_per_region:
            return f"{self.trials_per_region} trials of a region are made"
        if not state.scores:
            return None
        if state.best_us is None:
            tried = len(state.scores) - 1
            return f"none of {tried + 1} ran" if tried >= GIVE_UP * self.batch else None
        if self.gain_us(state) < least_us:
            return f"the model is expected to gain less than {self.min_gain:.1%}"
        return None

    def gain_us(self, state: TaskState) -> float:
        """Microseconds by which the next batch is expected to shorten one run of the model."""
        best = state.best_us
        if best is None:
            return math.inf  # without this region the model does not run at all
        # Best times: of the default, then after each batch, from the first that ran.
        assert state.reference_us is not None
        bests = list(itertools.accumulate(state.scores, max))
        ends = [0, *range(self.batch, len(bests), self.batch)]
        if ends[-1] != len(bests) - 1:
            ends.append(len(bests) - 1)
        curve = [state.reference_us / bests[end] for end in ends if bests[end]]
        batches = len(curve) - 1
        forward = best / (2 * (batches + 1))
        expected = state.predicted or expected_best(state.scores, min(self.batch, state.size))
        if batches >= BELIEVED_FROM and expected and state.reference_us:
            forward = min(forward, best - state.reference_us / expected)
        forward = max(0.0, forward)
        window = min(WINDOW, batches)
        if not window:
            return state.weight * forward
        backward = (curve[-1 - window] - curve[-1]) / window
        return state.weight * (ALPHA * backward + (1 - ALPHA) * forward)


def model_us(states: Sequence[TaskState]) -> float:
    """Time of the model's regions that run."""
    return sum(state.weight * (state.best_us or 0.0) for state in states)


def expected_best(scores: Sequence[float], batch: int) -> float | None:
    """Best score expected after `batch` more random draws; None from fewer than four scores."""
    ran = sorted((score for score in scores if score), reverse=True)
    if len(ran) < 4:
        return None
    upper = max(2, math.isqrt(len(ran)))
    excess = sum(ran[:upper]) / upper - ran[upper]
    return ran[0] + excess * math.log1p(batch / len(ran))
