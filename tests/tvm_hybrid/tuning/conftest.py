"""The toy template, registered only in tests that use it, and this machine."""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from tvm.target import Target, codegen

from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from tir_schedules.core import template
from tvm_hybrid.records.record import Record, make_record
from tvm_hybrid.records.record_store import RecordStore

MakeRecord = Callable[..., Record]

# Tests compare lines of records that are made at different times.
DATE = "2026-01-31T12:00:00+00:00"


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module `toy`; tests that iterate over all templates do not see it."""
    monkeypatch.setattr(template, "_templates", dict(template._templates))
    module = importlib.import_module(f"{__package__}.toy")
    template._templates.setdefault(module.NAME, module.TOY)
    return module


@pytest.fixture
def machine() -> Machine:
    """A machine with a fixed name."""
    return Machine("here", isa_named("avx2"))


@pytest.fixture
def memory_folder(tmp_path: Path) -> Iterator[Path]:
    """In memory if possible: a killed process loses nothing there, and flushing is fast."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as name:
        yield Path(name)


@pytest.fixture
def host() -> tuple[Machine, str]:
    """This machine with one thread, and its target as JSON."""
    target = Target({"kind": "llvm", "mcpu": codegen.llvm_get_system_cpu()})
    return Machine.from_target(target), str(target)


@pytest.fixture
def record(toy: ModuleType, machine: Machine) -> MakeRecord:
    """Makes records of the toy with one fixed date: `record(block, times_us, **changes)`."""

    def make(block: int = 8, time_us: float = 1.0, **changes: object) -> Record:
        import msgspec

        config = toy.ToyConfig(block=block)
        made = make_record(toy.region(), toy.TOY, machine, config, "ok", [time_us])
        return msgspec.structs.replace(made, **{"date": DATE, **changes})

    return make


@pytest.fixture
def store(tmp_path: Path) -> RecordStore:
    """A store whose file does not exist yet."""
    return RecordStore(tmp_path / "r.jsonl", must_exist=False)


@pytest.fixture
def factor_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records are borrowed between sizes that differ by a factor of two."""
    monkeypatch.setattr("tvm_hybrid.records.nearest_record.FARTHEST", 1.0)
