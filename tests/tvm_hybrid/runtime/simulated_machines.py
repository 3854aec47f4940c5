"""Simulated machines: file trees as Linux has them under /sys and /proc."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tvm_hybrid.runtime.topology import Topology, format_cpus, read_topology


def machine(
    root: Path,
    sockets: Mapping[int, Sequence[Sequence[int]]],
    *,
    nodes: Mapping[int, Iterable[int]] | None = None,
    caches: Sequence[Iterable[int]] = (),
    offline: Iterable[int] = (),
    memory: str | None = None,
    permitted: str | None = None,
    allowed: Iterable[int] | None = None,
    files: Mapping[str, str] | None = None,
) -> Topology:
    """Writes the files that describe a machine.

    Parameters
    ----------
    root : Path
        An empty folder.
    sockets : mapping
        Socket -> the CPUs of each of its cores.
    nodes : mapping or None
        Node -> CPUs; None if Linux reports no nodes.
    caches : sequence
        The CPUs that share each last-level cache.
    offline : iterable of int
        CPUs that Linux has switched off.
    memory, permitted : str or None
        Nodes with memory, and nodes that a cpuset permits.
    allowed : iterable of int or None
        The CPUs of the process; None for all.
    files : mapping or None
        Other files, such as those of control groups.
    """
    for path, text in (files or {}).items():
        _write(root / path, text)
    off = set(offline)
    cores = {socket: [set(core) - off for core in cores] for socket, cores in sockets.items()}
    online = {cpu for each in cores.values() for core in each for cpu in core}
    cpus = root / "sys/devices/system/cpu"
    _write(cpus / "online", format_cpus(online))
    for socket, each in cores.items():
        for core in each:
            for cpu in core:
                _write(cpus / f"cpu{cpu}/topology/physical_package_id", socket)
                _write(cpus / f"cpu{cpu}/topology/thread_siblings_list", format_cpus(core))
                for index, shared in enumerate((core, *(c for c in caches if cpu in c))):
                    _write(
                        cpus / f"cpu{cpu}/cache/index{index}/shared_cpu_list",
                        format_cpus(set(shared) - off),
                    )
    for cpu in off:
        (cpus / f"cpu{cpu}").mkdir(parents=True)
    folder = root / "sys/devices/system/node"
    for node, of in (nodes or {}).items():
        _write(folder / f"node{node}/cpulist", format_cpus(set(of) - off))
    if memory is not None:
        _write(folder / "has_memory", memory)
    if permitted is not None:
        _write(root / "proc/self/status", f"Name:\tx\nMems_allowed_list:\t{permitted}")
    return read_topology(root, online if allowed is None else allowed)


def two_sockets(root: Path, **changes: object) -> Topology:
    """Two sockets of two cores with two CPUs each, numbered like Xeons; one node per socket."""
    settings: dict[str, object] = {
        "nodes": {0: [0, 1, 4, 5], 1: [2, 3, 6, 7]},
        "caches": [[0, 1, 4, 5], [2, 3, 6, 7]],
    }
    return machine(root, {0: [(0, 4), (1, 5)], 1: [(2, 6), (3, 7)]}, **settings | changes)  # type: ignore[arg-type]


def _write(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{value}\n")
