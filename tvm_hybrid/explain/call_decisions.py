"""Which decision is about which call of a program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from relay_passes.ir.decisions import Decision

from .origin_text import together
from .program_graph import KernelCall


def decisions_of(
    calls: Sequence[KernelCall], decisions: Sequence[Decision]
) -> list[Decision | None]:
    """The decision about each call: by variable, else the next about the same kernel."""
    about = by_function(decisions)
    count = Counter(call.function for call in calls)
    named = {(each.node, each.function): each for each in reversed(decisions)}
    seen: Counter[str] = Counter()
    found: list[Decision | None] = []
    for call in calls:
        mine = about.get(call.function, [])
        position = seen[call.function]
        seen[call.function] += 1
        same = named.get((call.node, call.function))
        if len(mine) == count[call.function] or same is None:
            found.append(mine[min(position, len(mine) - 1)] if mine else None)
        else:
            found.append(same)
    return found


def by_function(decisions: Sequence[Decision]) -> dict[str, list[Decision]]:
    """The decisions about each kernel, in the order of its calls."""
    found: dict[str, list[Decision]] = {}
    for each in decisions:
        if each.function:
            found.setdefault(each.function, []).append(each)
    return found


def origins_in_run(
    functions: Sequence[str], about: Mapping[str, Sequence[Decision]]
) -> list[tuple[str, ...]]:
    """The nodes of a model that each call of a run comes from.

    Parameters
    ----------
    functions : sequence of str
        The kernels that a run called, in order.
    about : mapping
        As `by_function` makes it. A kernel that was not called once for each of its decisions, as
        where a branch was taken, has the nodes of all of them in each call.
    """
    count, seen = Counter(functions), Counter[str]()
    found = []
    for name in functions:
        mine = about.get(name, ())
        if len(mine) == count[name]:
            mine = mine[seen[name] : seen[name] + 1]
        seen[name] += 1
        found.append(together(mine))
    return found
