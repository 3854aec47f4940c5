"""Which description applies to this host's CPU."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tvm.target import Target

from microkernels.base.errors import TargetError
from microkernels.base.files import CACHE_VARIABLE
from microkernels.base.host_cpu import host_cpu
from microkernels.machines.description import describe, described
from microkernels.machines.host import MACHINE_VARIABLE, calibrated_path, path_in_force
from microkernels.machines.machine import Machine
from tests.pinned_machine import pinned

NAME = host_cpu()
HERE = Target({"kind": "llvm", "mcpu": NAME})


def written(path: Path, value: float) -> Path:
    curve = [[1, 0], [2, value]]
    numbers = {"fork_us": {"value": curve, "kind": "measured", "source": "a test"}}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"title": "a test", "inherits": "znver4", "numbers": numbers}))
    return path


@pytest.fixture(autouse=True)
def _of_our_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.delenv(MACHINE_VARIABLE, raising=False)


def test_without_a_file_the_shipped_one_holds() -> None:
    assert path_in_force(NAME) is None
    first, second = (Machine.from_target(HERE, 2) for _ in range(2))
    assert first == second  # kernels are cached by machine
    assert first.fork_us(2) == Machine(NAME, first.isa, 2).fork_us(2)


def test_what_was_calibrated_holds_from_then_on() -> None:
    written(calibrated_path(NAME), 7.5)
    assert Machine.from_target(HERE, 2).fork_us(2) == 7.5
    assert Machine.from_target(HERE) == Machine.from_target(HERE)


def test_a_named_file_holds_before_all_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    written(calibrated_path(NAME), 7.5)
    path = written(tmp_path / "mine.json", 8.5)
    monkeypatch.setenv(MACHINE_VARIABLE, str(path))
    assert Machine.from_target(HERE, 2).fork_us(2) == 8.5
    written(path, 9.5)
    os.utime(path, ns=(1, 1))  # a coarse clock may give both files one time
    assert Machine.from_target(HERE, 2).fork_us(2) == 9.5


def test_other_cpus_keep_their_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(MACHINE_VARIABLE, str(written(tmp_path / "mine.json", 8.5)))
    other = "haswell" if NAME != "haswell" else "znver4"
    machine = Machine.from_target(Target({"kind": "llvm", "mcpu": other}), 2)
    assert machine == Machine(other, machine.isa, 2)


@pytest.mark.parametrize("cpu", [NAME, "haswell", "znver4"])
def test_a_target_names_a_file_for_any_cpu(
    cpu: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(MACHINE_VARIABLE, str(written(tmp_path / "other.json", 7.5)))
    path = written(tmp_path / "mine.json", 8.5)
    target = Target({"kind": "llvm", "mcpu": cpu, "model": str(path)})
    machine = Machine.from_target(target, 2)
    assert (machine.name, machine.fork_us(2)) == (cpu, 8.5)
    assert machine == Machine.from_target(target, 2)  # kernels are cached by machine
    written(path, 9.5)
    os.utime(path, ns=(1, 1))
    assert Machine.from_target(target, 2).fork_us(2) == 9.5
    path.unlink()
    with pytest.raises(TargetError, match=r"mine\.json"):
        Machine.from_target(target)


def test_the_model_of_a_target_that_is_no_path_names_nothing() -> None:
    plain = Target({"kind": "llvm", "mcpu": "haswell", "model": "a server"})
    machine = Machine.from_target(plain)
    assert machine == Machine("haswell", machine.isa)


@pytest.mark.parametrize("content", [None, "", "{}", '{"title": 3, "numbers": {}}'])
def test_a_file_that_is_none_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "mine.json"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv(MACHINE_VARIABLE, str(path))
    with pytest.raises(TargetError, match=r"mine\.json"):
        Machine.from_target(HERE)


@pytest.mark.parametrize(
    ("cpu", "level"),
    [
        ("znver4", "avx512_bf16"),
        ("cooperlake", "avx512_bf16"),  # this CPU has no description
        ("emeraldrapids", "avx512_vnni"),
        ("graniterapids", "avx512_vnni"),
    ],
)
def test_bfloat16_is_multiplied_as_what_is_faster(cpu: str, level: str) -> None:
    hidden = ("amx-tile", "amx-int8", "amx-bf16", "amx-fp16")
    off = [f"-{name}" for name in hidden]
    machine = Machine.from_target(Target({"kind": "llvm", "mcpu": cpu, "mattr": off}))
    assert machine.isa.name == level
    shown = Machine.from_target(Target({"kind": "llvm", "mcpu": cpu}))
    tiles = "amx_fp16" if cpu == "graniterapids" else "amx"
    assert shown.isa.name == (tiles if level == "avx512_vnni" else level)


@pytest.mark.parametrize("name", described())
def test_a_pinned_description_holds_with_its_caches(name: str) -> None:
    with pinned(name):
        found = Machine.from_target(HERE, 2).description
    assert found.numbers == describe(name).numbers
    assert path_in_force(NAME) is None
