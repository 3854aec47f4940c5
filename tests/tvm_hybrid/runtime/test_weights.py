"""The nodes on which weights are placed, with a simulated operating system and this one."""

from __future__ import annotations

import errno
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import tvm

from tvm_hybrid.errors import TargetError
from tvm_hybrid.runtime.threads import resolve_setting
from tvm_hybrid.runtime.topology import host_topology
from tvm_hybrid.runtime.weights import PAGE, LinuxCalls, nodes_for, place_weights, refusal

from .simulated_machines import machine, two_sockets


class Recorded:
    """Records calls, or refuses them after a given number."""

    def __init__(self, most: int = 1000) -> None:
        self.most = most
        self.placed: list[tuple[int, int, tuple[int, ...]]] = []

    def place(self, start: int, size: int, nodes: Sequence[int]) -> int:
        if len(self.placed) >= self.most:
            raise OSError(errno.EPERM, "Operation not permitted")
        self.placed.append((start, size, tuple(nodes)))
        return size


@pytest.mark.parametrize(
    ("threads", "weights", "nodes"),
    [
        (2, None, ()),
        (2, "first-touch", ()),
        (2, "interleave", (0, 1)),
        ("all", None, ()),
        ("all", "interleave", (0, 1)),
        ("socket:1", None, (1,)),
        ("socket:1", "first-touch", ()),
        ("socket:1", "interleave", (1,)),
        ("socket:1", "replicate", (1,)),
        ("0,2", None, ()),
        ("0,2", "interleave", (0, 1)),
    ],
)
def test_the_nodes_of_two_sockets(
    threads: int | str, weights: str | None, nodes: tuple[int, ...], tmp_path: Path
) -> None:
    topology = two_sockets(tmp_path)
    setting = resolve_setting(threads, None, topology=topology)
    assert nodes_for(weights, setting, topology) == nodes


@pytest.mark.parametrize("threads", [2, "all", "0,2"])
def test_replicas_need_threads_of_one_socket(threads: int | str, tmp_path: Path) -> None:
    topology = two_sockets(tmp_path)
    setting = resolve_setting(threads, None, topology=topology)
    with pytest.raises(TargetError, match=r"'replicate' needs threads .*one socket"):
        nodes_for("replicate", setting, topology)
    with pytest.raises(TargetError, match="'elsewhere'"):
        nodes_for("elsewhere", setting, topology)


def test_a_socket_of_several_nodes_spreads_its_weights(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topology = machine(
        tmp_path,
        {0: [(0,), (1,)], 1: [(2,), (3,)]},
        nodes={0: [0], 1: [1], 2: [2], 3: [3], 4: []},
        memory="0-2,4",
    )
    socket = resolve_setting("socket:0", None, topology=topology)
    assert nodes_for(None, socket, topology) == (0, 1)
    everywhere = resolve_setting("all", None, topology=topology)
    # Node 3 has no memory, node 4 no CPUs.
    assert nodes_for("interleave", everywhere, topology) == (0, 1, 2)
    node = resolve_setting("node:3", None, topology=topology)
    assert nodes_for(None, node, topology) == ()
    assert "no memory is next to CPUs 3" in caplog.text


def test_one_node_leaves_nothing_to_place(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    topology = machine(tmp_path, {0: [(0,), (1,)]}, nodes={0: [0, 1]})
    setting = resolve_setting("socket:0", None, topology=topology)
    caplog.set_level(logging.INFO, "tvm_hybrid")
    for weights in ("interleave", "replicate", None):
        caplog.clear()
        assert nodes_for(weights, setting, topology) == ()
        assert "one memory node" in caplog.text
    caplog.clear()
    assert nodes_for(None, resolve_setting(1, None), topology) == ()
    assert not caplog.text


def tensor(count: int) -> tvm.runtime.Tensor:
    return tvm.runtime.tensor(np.ones(count, np.float32))


def test_whole_pages_of_large_tensors_are_placed() -> None:
    large, small = tensor(3 * PAGE), tensor(4)
    calls = Recorded()
    placed = place_weights([small, large, large], (0, 1), calls)
    ((start, size, nodes),) = calls.placed
    assert nodes == (0, 1) and size == placed
    assert start % PAGE == 0 and size % PAGE == 0
    assert large.data_ptr() <= start < large.data_ptr() + PAGE
    end = large.data_ptr() + 12 * PAGE
    assert end - PAGE < start + size <= end
    assert place_weights([large], (), calls) == 0 and len(calls.placed) == 1


def test_a_refusal_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    tensors = [tensor(3 * PAGE) for _ in range(3)]
    calls = Recorded(most=1)
    assert 0 < place_weights(tensors, (1,), calls) == calls.placed[0][1]
    (warning,) = caplog.records
    assert warning.levelno == logging.WARNING
    assert "nodes 1 (Operation not permitted)" in warning.getMessage()
    assert refusal((0, 1), calls) == "Operation not permitted"
    assert refusal((0, 1), Recorded()) == ""


def test_this_machine_places_pages_on_its_first_node(caplog: pytest.LogCaptureFixture) -> None:
    large, linux = tensor(3 * PAGE), LinuxCalls()
    (node, *_) = host_topology().memory_nodes
    first = -(-large.data_ptr() // PAGE) * PAGE
    placed = place_weights([large], (node,))
    if not placed:  # a container may forbid it and then says so
        assert "Linux refuses" in caplog.text and refusal((node,))
        return
    assert not refusal((node,))
    assert not caplog.records
    assert set(linux.nodes_of(first, 11 * PAGE)) == {node}
    np.testing.assert_array_equal(np.from_dlpack(large), 1)


def test_a_node_that_is_not_there_is_an_error_of_linux() -> None:
    large = tensor(3 * PAGE)
    first = -(-large.data_ptr() // PAGE) * PAGE
    for nodes in ((1000,), (999, 1000)):
        with pytest.raises(OSError, match=r"Invalid argument|not permitted"):
            LinuxCalls().place(first, PAGE, nodes)
