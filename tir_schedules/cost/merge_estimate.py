"""MergeEstimate: whether one kernel in place of several is worth it; the same rule for all merges.

An estimate cannot tell ways that are nearly alike. So a merge has to save a share of the time of
what it merges, or a number of microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from .cost import Cost


@dataclass(frozen=True)
class Least:
    """What a merge has to save: more than `share` of the time before and than `us` microseconds."""

    share: float = 0.0
    us: float = 0.0

    def reached(self, saved: float, before: float) -> bool:
        """Whether so many microseconds of so many are enough."""
        return saved > max(self.share * before, self.us)


CHAIN = Least(share=0.0005)
# Where the weights of a whole model come from memory, the estimate knows too little about what
# hides that (BERT, 32 rows, two threads, is 5% slower with merges that should save 1% to 4%).
CHAIN_FROM_MEMORY = Least(share=0.05)
DEPTHWISE_POINTWISE = Least(share=0.02)
SIDE_BY_SIDE = Least(us=1.0)
# Where several threads share each kernel, the estimates of both ways err apart: Llama's three
# products of an input on 28 threads should save 13%, and are predicted 16% slower.
SIDE_BY_SIDE_SHARED = Least(share=0.15, us=1.0)


@dataclass(frozen=True, kw_only=True)
class MergeEstimate:
    """Both ways, in microseconds.

    Attributes
    ----------
    separate, merged : Cost
        Of a kernel for each part, and of one kernel.
    how : str
        How the one kernel computes, for `explain`.
    least : Least
        What merging has to save.
    """

    separate: Cost
    merged: Cost
    how: str
    least: Least

    @property
    def saved(self) -> float:
        """Microseconds that merging saves; negative if it costs time."""
        return self.separate.total - self.merged.total

    @property
    def pays(self) -> bool:
        """Whether merging saves more than the estimate's noise."""
        return self.least.reached(self.saved, self.separate.total)

    def __str__(self) -> str:
        before, after = self.separate.total, self.merged.total
        changes = self.merged.changes(self.separate)
        return f"{self.how} an estimated {after:.1f} us instead of {before:.1f} ({changes})"


def on_threads(threads: int) -> str:
    """The number of threads in words."""
    return "on 1 thread" if threads == 1 else f"on {threads} threads"
