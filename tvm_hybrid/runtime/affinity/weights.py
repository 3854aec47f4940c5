"""On which memory nodes the weights of a program lie.

Linux puts a page where the thread runs that writes to it first: for weights the one that compiles
or loads. Threads next to other nodes read it more slowly. Every program has weights of its own,
whether compiled or loaded, so programs that are bound to different sockets are replicas.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable

import numpy as np
from tvm.runtime import Tensor

from microkernels.base.errors import Argument, TargetError
from microkernels.base.logs import logger
from relay_passes.ir.constants import bytes_of

from .cpu_list import format_cpus
from .memory import PAGE, LinuxCalls, MemoryCalls
from .pool_setting import PoolSetting
from .topology import Topology

WEIGHTS = ("first-touch", "interleave", "replicate")

Nodes = tuple[int, ...]


def nodes_for(weights: str | None, setting: PoolSetting, topology: Topology) -> Nodes:
    """The nodes that weights are to be spread over; none where they stay as they are.

    Parameters
    ----------
    weights : {"first-touch", "interleave", "replicate"} or None
        "first-touch": they stay. "interleave": pages go in turns to the nodes of the CPUs that
        threads run on. "replicate": the same, within one socket; programs that are bound to other
        sockets have weights of their own there. None: "replicate" for threads that are bound to
        one socket, else "first-touch".
    setting : PoolSetting
        Where threads run.
    topology : Topology
        The machine.

    Raises
    ------
    TargetError
        If there is no such choice, or threads of several sockets are to have replicas.
    """
    if weights not in (None, *WEIGHTS):
        known = ", ".join(map(repr, WEIGHTS))
        raise TargetError(Argument("weights"), f" must be None or one of {known}, not {weights!r}")
    bound = [cpu for cpu in topology.usable if cpu.number in setting.cpus]
    cpus = bound or topology.usable
    sockets = {cpu.socket for cpu in cpus}
    if weights == "replicate" and len(sockets) > 1:
        raise TargetError(
            Argument("weights", value="replicate"),
            " needs threads that are bound to one socket, such as ",
            Argument("threads", value="socket:0"),
            ": make one session for each socket",
        )
    if weights is None:
        weights = "replicate" if bound and len(sockets) == 1 else "first-touch"
    nodes = tuple(sorted({cpu.node for cpu in cpus}.intersection(topology.memory_nodes)))
    if weights == "first-touch":
        return ()
    if len(topology.memory_nodes) == 1:
        logger.info("this machine has one memory node: weights stay where they are")
        return ()
    if not nodes:
        numbers = format_cpus(cpu.number for cpu in cpus)
        logger.warning("no memory is next to CPUs %s: weights stay where they are", numbers)
    return nodes


def place_weights(tensors: Iterable[Tensor], nodes: Nodes, calls: MemoryCalls | None = None) -> int:
    """Moves the whole pages of tensors to nodes, in turns, and keeps them there.

    Returns
    -------
    int
        Bytes that lie there. A refusal of Linux is a warning, and no byte is placed after it.
    """
    calls, placed = calls or LinuxCalls(), 0
    ranges = {(tensor.data_ptr(), bytes_of(tensor)) for tensor in tensors}
    for start, size in sorted(ranges) if nodes else ():
        first, last = -(-start // PAGE) * PAGE, (start + size) // PAGE * PAGE
        if first >= last:
            continue
        try:
            placed += calls.place(first, last - first, nodes)
        except OSError as error:
            _warn(nodes, error)
            return placed
    if nodes:
        logger.info("%d bytes of weights are on memory nodes %s", placed, _listed(nodes))
    return placed


def refusal(nodes: Nodes, calls: MemoryCalls | None = None) -> str:
    """Why Linux places no memory for this process; empty if it does."""
    page = mmap.mmap(-1, PAGE)
    try:
        (calls or LinuxCalls()).place(np.frombuffer(page, np.uint8).ctypes.data, PAGE, nodes)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _warn(nodes: Nodes, error: OSError) -> None:
    logger.warning(
        "Linux refuses to put weights on memory nodes %s (%s); they stay where they were first "
        "touched; a container may need the capability SYS_NICE",
        _listed(nodes),
        error.strerror,
    )


def _listed(nodes: Nodes) -> str:
    return ", ".join(map(str, nodes))
