"""The CPUs of a machine as Linux describes them: cores, sockets, memory nodes, shared caches."""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from microkernels.base.cpu_quota import Quota, read_quota, text_of

_CPUS = "sys/devices/system/cpu"
_NODES = "sys/devices/system/node"
_STATUS = "proc/self/status"

# Read at import, because other code may narrow the calling thread's affinity later.
ALLOWED_CPUS = frozenset(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Cpu:
    """A logical CPU that is online.

    Attributes
    ----------
    number : int
        Number in Linux.
    core : int
        Lowest CPU number on its core.
    socket : int
        Linux's number of the package.
    node : int
        The nearest memory node.
    cluster : int
        Lowest CPU number among those that share its last-level cache.
    """

    number: int
    core: int
    socket: int
    node: int
    cluster: int


@dataclass(frozen=True)
class Topology:
    """The CPUs and memory nodes of a machine, and those that this process may use.

    Attributes
    ----------
    cpus : tuple of Cpu
        CPUs that are online, in rising order.
    allowed : frozenset of int
        CPUs that this process may run on.
    memory_nodes : tuple of int
        Memory nodes that this process may use, in rising order.
    quota : Quota or None
        Smallest CPU-time quota of the process's control groups; None without a quota.
    """

    cpus: tuple[Cpu, ...]
    allowed: frozenset[int]
    memory_nodes: tuple[int, ...]
    quota: Quota | None = None

    @functools.cached_property
    def usable(self) -> tuple[Cpu, ...]:
        """CPUs that are online and allowed: first one of each core, then the second of each.

        Within that order, CPUs of one socket, node and cache are neighbours.
        """
        mine = [cpu for cpu in self.cpus if cpu.number in self.allowed]
        return cores_first(sorted(mine, key=lambda c: (c.socket, c.node, c.cluster, c.number)))

    def groups(self, of: Callable[[Cpu], int]) -> dict[int, tuple[int, ...]]:
        """Groups the usable CPUs by socket, node or another key that `of` returns."""
        found: dict[int, list[int]] = {}
        for cpu in sorted(self.usable, key=lambda cpu: cpu.number):
            found.setdefault(of(cpu), []).append(cpu.number)
        return {name: tuple(found[name]) for name in sorted(found)}


def cores_first(cpus: Iterable[Cpu]) -> tuple[Cpu, ...]:
    """Orders CPUs: one of each core, then the second of each, and so on; stable otherwise."""
    seen: Counter[int] = Counter()
    ranked: list[tuple[int, Cpu]] = []
    for cpu in cpus:
        ranked.append((seen[cpu.core], cpu))
        seen[cpu.core] += 1
    return tuple(cpu for _, cpu in sorted(ranked, key=lambda item: item[0]))


def cores_of(cpus: Iterable[Cpu]) -> int:
    """Number of cores that these CPUs belong to."""
    return len({cpu.core for cpu in cpus})


@functools.cache
def host_topology() -> Topology:
    """The topology of this machine at the first call."""
    return read_topology(Path("/"), ALLOWED_CPUS)


def read_topology(root: Path, allowed: Iterable[int]) -> Topology:
    """Reads a topology from the folders `sys` and `proc`.

    Missing information, as in some containers, counts as one socket, one node, and a core for each
    CPU.

    Parameters
    ----------
    root : Path
        The folder that contains `sys` and `proc`.
    allowed : iterable of int
        CPUs that the process may run on.
    """
    allowed = frozenset(allowed)
    online = _listed(root / _CPUS / "online") or tuple(sorted(allowed))
    nodes = {
        int(path.name.removeprefix("node")): _listed(path / "cpulist")
        for path in (root / _NODES).glob("node[0-9]*")
    }
    node_of = {cpu: node for node, cpus in nodes.items() for cpu in cpus}
    with_memory = _listed(root / _NODES / "has_memory") or tuple(sorted(nodes)) or (0,)
    # Memory nodes that a cpuset allows, if Linux lists them.
    key = "Mems_allowed_list:"
    told = [line for line in text_of(root / _STATUS).splitlines() if line.startswith(key)]
    permitted = parse_cpus(told[0].removeprefix(key)) if told else with_memory
    return Topology(
        tuple(_cpu(root / _CPUS / f"cpu{number}", number, node_of) for number in sorted(online)),
        allowed,
        tuple(node for node in with_memory if node in permitted),
        read_quota(root),
    )


def _cpu(folder: Path, number: int, node_of: dict[int, int]) -> Cpu:
    socket = _number(folder / "topology/physical_package_id")
    last = max((folder / "cache").glob("index*"), default=folder)  # numbered by level
    siblings = _listed(folder / "topology/thread_siblings_list")
    return Cpu(
        number,
        core=min(siblings or (number,)),
        socket=socket,
        node=node_of.get(number, 0),
        cluster=min(_listed(last / "shared_cpu_list") or (number,)),
    )


def _listed(path: Path) -> tuple[int, ...]:
    try:
        return parse_cpus(text_of(path))
    except ValueError:
        return ()


def _number(path: Path) -> int:
    """Reads a number; 0 if the file is missing, or has -1, which means that there is none."""
    text = text_of(path).strip()
    return int(text) if text.isdigit() else 0


_MOST = 1 << 16  # more than any CPU number of Linux: a larger number is a typing error


def parse_cpus(text: str) -> tuple[int, ...]:
    """Parses a list of CPUs, and keeps its order.

    Raises
    ------
    ValueError
        If the text has another form.
    """
    found: list[int] = []
    for part in text.strip().split(",") if text.strip() else ():
        first, dash, last = part.strip().partition("-")
        low, high = _number_list(first), _number_list(last if dash else first)
        if high < low:
            raise ValueError(f"{part!r} counts down")
        found += range(low, high + 1)
    return tuple(found)


def format_cpus(cpus: Iterable[int]) -> str:
    """Formats numbers in rising order as the shortest list."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def _number_list(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) >= _MOST:
        raise ValueError(f"{text!r} is no number of a CPU")
    return int(text)
