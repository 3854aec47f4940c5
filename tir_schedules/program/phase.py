"""The time of a kernel in named parts: phases, and what takes them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from .parts import Part

NEAR, SHARED, FAR, FOREIGN = "L2", "L3", "memory", "another core"
COMPUTE, IMBALANCE = "compute", "imbalance"
LEAST_LOSS = 0.1  # of the time, to be called the limit


@dataclass(frozen=True)
class Phase:
    """A parallel loop, or what one thread does before, between and after those.

    Attributes
    ----------
    threads : int
        Threads that have something to do; 1 if nothing is parallel.
    parallel : bool
        Whether it is forked.
    compute : float
        Microseconds in which the busiest thread computes from its first cache.
    mean : float
        The same, if work were divided equally among all threads.
    bytes : dict
        What the busiest thread fetches, by level.
    transfer : dict
        Microseconds that this takes, by level.
    fork : float
        Microseconds of forking and joining.
    sharing : float
        Microseconds of waiting for lines that another thread writes too.
    first_pass : float
        Microseconds of `transfer` in which a loop fetches what it then reads again and again.
    overlap : float
        How much of the shorter of computing and moving hides behind the longer, 0 to 1.
    """

    threads: int
    parallel: bool
    compute: float
    mean: float
    bytes: Mapping[str, float]
    transfer: Mapping[str, float]
    fork: float
    sharing: float = 0.0
    first_pass: float = 0.0
    overlap: float = 1.0

    @property
    def named(self) -> dict[str, float]:
        """Microseconds by what takes them; together the time."""
        found = {COMPUTE: self.mean, IMBALANCE: self.compute - self.mean, "forks": self.fork}
        found["shared lines"] = self.sharing
        rest = self.time - sum(found.values())
        moving = sum(self.transfer.values())
        for level, time in self.transfer.items():
            found[level] = rest * time / moving if moving else 0.0
        return {name: time for name, time in found.items() if time > 0}

    @property
    def beyond(self) -> float:
        """Microseconds that fetching from beyond L2 takes."""
        return sum(time for level, time in self.transfer.items() if level in (SHARED, FAR))

    @property
    def time(self) -> float:
        """Microseconds."""
        moving = max(self.transfer[NEAR], self.beyond - self.first_pass)
        longer, shorter = max(self.compute, moving), min(self.compute, moving)
        waiting = self.transfer[FOREIGN] + self.sharing + self.first_pass
        return longer + (1 - self.overlap) * shorter + waiting + self.fork


@dataclass(frozen=True)
class KernelTime:
    """One call of a kernel.

    Attributes
    ----------
    phases : tuple of Phase
        One after the other.
    call : float
        Microseconds of the call.
    counts : Counter of str
        Instructions of all threads, by kind.
    parts : mapping from int to Part
        What the busiest thread touches of each parameter, in the last phase that does.
    """

    phases: tuple[Phase, ...]
    call: float
    counts: Counter[str] = field(default_factory=Counter)
    parts: Mapping[int, Part] = field(default_factory=dict)

    @property
    def time(self) -> float:
        """Microseconds."""
        return self.call + sum(phase.time for phase in self.phases)

    @property
    def named(self) -> dict[str, float]:
        """Microseconds by what takes them; together the time."""
        found: dict[str, float] = defaultdict(float)
        found["call"] += self.call
        parallel = any(phase.parallel for phase in self.phases)
        for phase in self.phases:
            for name, time in phase.named.items():
                serial = parallel and not phase.parallel
                found["serial part" if serial else name] += time
        return dict(found)

    @property
    def limit(self) -> str:
        """What takes the most beyond an equal share of computing; that, if little does."""
        named = self.named
        losses = {name: time for name, time in named.items() if name != COMPUTE}
        worst = max(losses, key=lambda name: losses[name], default=COMPUTE)
        return worst if losses and sum(losses.values()) > LEAST_LOSS * self.time else COMPUTE

    @property
    def busy(self) -> int:
        """Threads that have something to do in the longest phase."""
        return max(self.phases, key=lambda phase: phase.time).threads if self.phases else 1
