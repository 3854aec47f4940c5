"""The CPUs that a place means, and places that are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tvm_hybrid.errors import TargetError
from tvm_hybrid.runtime.places import PoolSetting
from tvm_hybrid.runtime.threads import resolve_setting, resolve_threads

from .simulated_machines import machine, two_sockets


@pytest.mark.parametrize(
    ("threads", "num_threads", "cpus"),
    [
        ("all", None, (0, 1, 2, 3)),
        ("all", 2, (0, 1)),
        ("all", 6, (0, 1, 2, 3, 4, 5)),
        ("socket:0", None, (0, 1)),
        ("socket:1", None, (2, 3)),
        ("socket:1", 1, (2,)),
        ("socket:1", 4, (2, 3, 6, 7)),
        ("node:1", None, (2, 3)),
        ("0-7", None, (0, 1, 2, 3)),
        ("3,1", None, (3, 1)),
        ("5-5", None, (5,)),
        ([3, 1, 7, 2], None, (3, 1, 2)),
        ([3, 1, 7, 2], 4, (3, 1, 2, 7)),
        ((4,), None, (4,)),
        (range(2, 4), None, (2, 3)),
        (np.arange(2, 4), None, (2, 3)),
    ],
)
def test_one_thread_a_core(
    threads: Any, num_threads: int | None, cpus: tuple[int, ...], tmp_path: Path
) -> None:
    setting = resolve_setting(threads, num_threads, topology=two_sockets(tmp_path))
    assert setting is PoolSetting.of(len(cpus), cpus)


def test_sub_clusters_are_nodes_of_a_socket(tmp_path: Path) -> None:
    topology = machine(
        tmp_path,
        {0: [(0,), (1,), (2,), (3,)], 1: [(4,), (5,), (6,), (7,)]},
        nodes={0: [0, 1], 1: [2, 3], 2: [4, 5], 3: [6, 7]},
    )
    assert resolve_setting("node:2", None, topology=topology).cpus == (4, 5)
    assert resolve_setting("socket:1", None, topology=topology).cpus == (4, 5, 6, 7)


@pytest.mark.parametrize(
    ("threads", "num_threads", "words"),
    [
        ("socket:2", None, r"no socket:2 .*socket:0 \(CPUs 0-1,4-5\), socket:1 \(CPUs 2-3,6-7\)"),
        ("socket:", None, "no socket: "),
        ("node:-1", None, "no node:-1 "),
        ("node:2", None, r"no node:2 .*node:0 \(CPUs 0-1,4-5\)"),
        ("core:1", None, "socket:0.*'core:1'"),
        ("", None, "names no CPU"),
        ([], None, "names no CPU"),
        ("all the rest", None, "'all the rest'"),
        ("0-3,8", None, "CPU 8 .*not online.* 0-7"),
        ([1, 1], None, "CPU 1 twice"),
        ([True], None, "True"),
        ([1.5], None, r"1\.5"),
        (1.5, None, r"1\.5"),
        (True, None, "True"),
        (0, None, "not 0"),
        (2, 3, "must be num_threads, 3, not 2"),
        ("socket:0", 5, "'socket:0' has too few CPUs for 5 threads.* 0-1,4-5"),
        ("socket:0", 0, "not 0"),
    ],
)
def test_what_there_is_not_is_refused(
    threads: Any, num_threads: int | None, words: str, tmp_path: Path
) -> None:
    topology = two_sockets(tmp_path)
    with pytest.raises(TargetError, match=words):
        resolve_setting(threads, num_threads, topology=topology)


def test_cpus_of_others_are_refused(tmp_path: Path) -> None:
    topology = two_sockets(tmp_path, allowed=[2, 3, 6, 7], offline=[6])
    assert resolve_setting("all", None, topology=topology).cpus == (2, 3)
    with pytest.raises(TargetError, match=r"none of the CPUs of socket:0 \(0-1,4-5\).* 2-3,6-7"):
        resolve_setting("socket:0", None, topology=topology)
    with pytest.raises(TargetError, match=r"CPU 1 .*not for this process.* 2-3,7"):
        resolve_setting([2, 1], None, topology=topology)
    with pytest.raises(TargetError, match=r"CPU 6 .*not online.* 2-3,7"):
        resolve_setting("6-7", None, topology=topology)


def test_a_number_binds_nothing() -> None:
    assert resolve_setting(2, None) is PoolSetting.of(2)
    assert resolve_setting(2, 2) is PoolSetting.of(2)
    assert resolve_setting(None, 2) is PoolSetting.of(2)
    assert resolve_setting(None, None) is PoolSetting.of(resolve_threads(None))
