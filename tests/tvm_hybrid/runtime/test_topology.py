"""The topology read from simulated machines, and from this one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tvm_hybrid.runtime.topology import (
    cores_of,
    format_cpus,
    host_topology,
    parse_cpus,
    read_topology,
)

from .simulated_machines import machine, two_sockets


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0", (0,)), ("0-3,8", (0, 1, 2, 3, 8)), ("8, 2-2", (8, 2)), ("", ()), ("\n", ())],
)
def test_lists_are_read(text: str, cpus: tuple[int, ...]) -> None:
    assert parse_cpus(text) == cpus
    assert parse_cpus(format_cpus(cpus)) == tuple(sorted(cpus))


@pytest.mark.parametrize("text", ["a", "1-", "-1", "3-1", "1,,2", "1;2", "0-99999999", "²"])
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no number|counts down"):
        parse_cpus(text)


def test_lists_are_as_short_as_can_be() -> None:
    assert format_cpus([9, 0, 1, 2, 7]) == "0-2,7,9"
    assert format_cpus([]) == ""


def test_two_sockets_with_siblings(tmp_path: Path) -> None:
    found = two_sockets(tmp_path, memory="0-1")
    assert [cpu.number for cpu in found.usable] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert [cpu.core for cpu in found.usable] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert found.groups(lambda cpu: cpu.socket) == {0: (0, 1, 4, 5), 1: (2, 3, 6, 7)}
    assert found.groups(lambda cpu: cpu.cluster) == {0: (0, 1, 4, 5), 2: (2, 3, 6, 7)}
    assert found.memory_nodes == (0, 1)
    assert cores_of(found.usable) == 4


def test_clusters_of_a_socket_are_nodes_of_their_own(tmp_path: Path) -> None:
    # SNC-2: each half of a socket is a node; the cache is the socket's. CPUs alternate.
    found = machine(
        tmp_path, {0: [(0,), (1,), (2,), (3,)]}, nodes={0: [0, 2], 1: [1, 3]}, caches=[[0, 1, 2, 3]]
    )
    assert [cpu.number for cpu in found.usable] == [0, 2, 1, 3]  # nodes one after the other
    assert found.groups(lambda cpu: cpu.node) == {0: (0, 2), 1: (1, 3)}
    assert found.groups(lambda cpu: cpu.cluster) == {0: (0, 1, 2, 3)}


def test_cpus_that_are_offline_do_not_count(tmp_path: Path) -> None:
    found = two_sockets(tmp_path, offline=[0, 3, 7])
    # CPU 4 is now the only CPU of its core.
    assert [cpu.number for cpu in found.usable] == [1, 4, 2, 5, 6]
    assert found.usable[1].core == 4
    assert cores_of(found.usable) == 3


def test_a_cpuset_leaves_some_cpus_and_some_memory(tmp_path: Path) -> None:
    found = two_sockets(tmp_path, allowed=[2, 6, 7, 99], memory="0-1", permitted="1")
    assert [cpu.number for cpu in found.usable] == [2, 7, 6]
    assert found.memory_nodes == (1,)


def test_a_node_without_cpus_has_memory(tmp_path: Path) -> None:
    found = two_sockets(
        tmp_path, nodes={0: [0, 1, 4, 5], 1: [2, 3, 6, 7], 2: []}, memory="0-2", permitted="0-2"
    )
    assert set(found.groups(lambda cpu: cpu.node)) == {0, 1}
    assert found.memory_nodes == (0, 1, 2)


def test_what_linux_does_not_tell_is_one_socket_and_one_node(tmp_path: Path) -> None:
    found = read_topology(tmp_path, [3, 1])
    assert [(cpu.number, cpu.core, cpu.socket, cpu.node) for cpu in found.usable] == [
        (1, 1, 0, 0),
        (3, 3, 0, 0),
    ]
    assert found.memory_nodes == (0,)


def test_a_socket_without_a_number_is_the_first(tmp_path: Path) -> None:
    found = machine(tmp_path, {-1: [(0,), (1,)]})
    assert found.groups(lambda cpu: cpu.socket) == {0: (0, 1)}


def test_this_machine_has_the_cpus_that_this_process_may_use() -> None:
    found = host_topology()
    assert {cpu.number for cpu in found.usable} <= os.sched_getaffinity(0)
    assert 1 <= cores_of(found.usable) <= len(found.usable)
    assert found.memory_nodes
