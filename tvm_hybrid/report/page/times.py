"""The time of each call of a kernel in a run, from the events of a profile."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from ...explain.profile import Profile


def between_kernels(profile: Profile, functions: Sequence[str]) -> float | None:
    """Microseconds of a run that are spent outside of kernels.

    In the same run, so that nothing else that the machine does lies between two measurements; but
    less than runs without the instrument leave, which takes time there itself. None if that cannot
    be told.
    """
    known = frozenset(functions)
    count, rest = divmod(len(profile.events), profile.repeat)
    if rest or not count:
        return None
    found = []
    for first in range(0, len(profile.events), count):
        run = profile.events[first : first + count]
        inside = sum(each.end_ns - each.start_ns for each in run if each.function in known)
        found.append((run[-1].end_ns - run[0].start_ns - inside) / 1e3)
    return statistics.median(found)


def call_times(profile: Profile | None, functions: Sequence[str]) -> list[float | None]:
    """Median microseconds of each call.

    Parameters
    ----------
    profile : Profile or None
        None: nothing was run.
    functions : sequence of str
        The kernels, in the order in which a run calls them. If runs do not do so, as where a
        branch is taken, each call gets the mean of its kernel's; None if that was not called.
    """
    if profile is None:
        return [None] * len(functions)
    known = frozenset(functions)
    events = [event for event in profile.events if event.function in known]
    count = len(functions)
    if [event.function for event in events] == [*functions] * profile.repeat:
        spans = [(event.end_ns - event.start_ns) / 1e3 for event in events]
        return [statistics.median(spans[place::count]) for place in range(count)]
    totals = {row.function: row.microseconds for row in profile.rows}
    return [totals[name] / functions.count(name) if name in totals else None for name in functions]
