"""Which records are borrowed for regions without records."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from tests.tvm_hybrid.tuning.conftest import MakeRecord
from tir_schedules.core import template
from tir_schedules.core.region import EpilogueOp, Region, Tensor
from tir_schedules.core.size import SymbolicSize
from tvm_hybrid.records.nearest_record import (
    NearestRecords,
    distance,
    kind_of,
    sizes_of,
    symbols_in,
)
from tvm_hybrid.records.record import Record
from tvm_hybrid.records.record_file import RecordFile
from tvm_hybrid.records.record_store import RecordStore

pytestmark = pytest.mark.usefixtures("factor_of_two")


def matmul(m: int = 64, n: int = 32, k: int = 16) -> Region:
    a, b = Tensor((m, k), "float32"), Tensor((k, n), "float32", True)
    return Region(
        op="matmul",
        inputs=(a, b),
        operands=(Tensor((n,), "float32"),),
        output=Tensor((m, n), "float32"),
        epilogue=(EpilogueOp("add", (0, 1)),),
    )


def test_a_kind_is_everything_but_sizes() -> None:
    kind = kind_of(matmul())
    assert kind_of(matmul(128, 64, 48)) == kind
    merged = matmul().replace(parts=(matmul(),))
    others = [
        matmul(1),
        matmul().replace(attrs={"transposed": True}),
        matmul().replace(epilogue=()),
        matmul().replace(epilogue=(EpilogueOp("multiply", (0, 1)),)),
        matmul().replace(operands=(Tensor((32,), "float32", True),)),
        matmul().replace(op="batch_matmul"),
        matmul().replace(output=Tensor((64, 32), "int8")),
        merged,
        merged.replace(parts=(matmul(), matmul())),
    ]
    kinds = {kind, *map(kind_of, others)}
    assert len(kinds) == 1 + len(others)


def test_distance_is_that_of_the_size_that_differs_most() -> None:
    sizes = sizes_of(matmul(64, 32, 16))
    assert distance(sizes, sizes) == 0
    assert distance(sizes, sizes_of(matmul(128, 32, 16))) == 1
    assert distance(sizes, sizes_of(matmul(128, 96, 16))) == pytest.approx(math.log2(3))
    assert distance((0, 1), (2, 1)) == math.inf and distance((0, 1), (0, 1)) == 0
    merged = matmul().replace(parts=(matmul(64), matmul(32)))
    other = matmul().replace(parts=(matmul(64), matmul(8)))
    assert distance(sizes_of(merged), sizes_of(other)) == 2


class Tuned:
    """A store of search results for toy regions of several sizes."""

    def __init__(self, path: Path, toy: ModuleType, record: MakeRecord) -> None:
        self.file, self.toy, self.record = RecordFile(path), toy, record

    def add(self, size: int, block: int, speedup: float = 1.5, **changes: Any) -> Record:
        """Adds a configuration that is faster than the default by `speedup`."""
        region = self.toy.region(size)
        made = self.record(
            block,
            10.0,
            **{
                "baseline_us": 10.0 * speedup,
                "confirmed": True,
                "region": region,
                "workload": region.key,
                **changes,
            },
        )
        self.file.append(made)
        return made

    def borrowed(self, size: int, machine: Machine) -> tuple[int, str, float] | None:
        """Block, workload and distance of the record that a region of this size borrows."""
        found = NearestRecords(RecordStore(self.file.path).by_workload).find(
            self.toy.region(size), machine
        )
        if found is None:
            return None
        assert isinstance(found.found.config, self.toy.ToyConfig)
        return found.found.config.block, found.found.record.workload, found.distance


@pytest.fixture
def tuned(tmp_path: Path, toy: ModuleType, record: MakeRecord) -> Tuned:
    return Tuned(tmp_path / "r.jsonl", toy, record)


def test_the_nearest(tuned: Tuned, machine: Machine) -> None:
    near = tuned.add(96, 16)
    tuned.add(128, 32)
    assert tuned.borrowed(64, machine) == (16, near.workload, math.log2(1.5))
    assert tuned.borrowed(192, machine) is not None
    assert tuned.borrowed(1024, machine) is None


def test_a_factor_of_two_is_the_limit(tuned: Tuned, machine: Machine) -> None:
    tuned.add(128, 32)
    assert tuned.borrowed(64, machine) is not None
    assert tuned.borrowed(256, machine) is not None
    assert tuned.borrowed(320, machine) is None
    assert tuned.borrowed(32, machine) is None


def test_the_nearest_speaks_even_if_its_default_is_the_best(tuned: Tuned, machine: Machine) -> None:
    tuned.add(96, 8, 1.0)
    tuned.add(128, 32)
    assert tuned.borrowed(64, machine) is None


def test_dynamic_sizes_borrow_from_a_usual_one(tuned: Tuned, machine: Machine) -> None:
    """Dynamic sizes borrow from the size nearest to 128, within a factor of four."""
    size = SymbolicSize.of("n")
    tuned.add(1024, 64)
    assert tuned.borrowed(size, machine) is None
    tuned.add(32, 16)
    near = tuned.add(96, 32)
    assert tuned.borrowed(size, machine) == (32, near.workload, -math.log2(96 / 128))


def test_numbers_of_symbols() -> None:
    b, n = SymbolicSize.of("b"), SymbolicSize.of("n")
    assert symbols_in(matmul(n), matmul(12)) == {"n": 12}
    assert symbols_in(matmul(n), matmul(12, 64)) is None
    assert symbols_in(matmul(n), matmul(n)) is None
    assert symbols_in(matmul(b * n), matmul(12)) is None  # neither is a symbol alone
    vector = (Tensor((n,), "float32"),)
    assert symbols_in(matmul(b * n).replace(operands=vector), matmul(12)) is None
    strided = matmul(n).replace(attrs={"strides": (n * 4, 1)})
    assert symbols_in(strided, matmul(12).replace(attrs={"strides": (48, 1)})) == {"n": 12}
    assert symbols_in(strided, matmul(12).replace(attrs={"strides": (47, 1)})) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"confirmed": None},
        {"confirmed": False},
        {"speedup": 1.02},
        {"baseline_us": None},
        {"status": "wrong_result", "times_us": []},
        {"machine": "elsewhere"},
        {"threads": 2},
        {"isa": "avx512"},
        {"version": 0},
    ],
)
def test_what_is_not_lent(tuned: Tuned, machine: Machine, changes: dict[str, Any]) -> None:
    tuned.add(128, 16, **changes)
    assert tuned.borrowed(64, machine) is None
    tuned.add(128, 32, times_us=[5.0])
    assert tuned.borrowed(64, machine) is not None


def test_what_cannot_be_built_or_is_the_default_is_not_borrowed(
    tuned: Tuned, machine: Machine
) -> None:
    tuned.add(64, 32)
    assert tuned.borrowed(96, machine) is not None
    assert tuned.borrowed(80, machine) is None  # 32 does not divide it
    tuned.add(60, 8)
    assert tuned.borrowed(56, machine) is None
    assert tuned.borrowed(56, replace(machine, isa=isa_named("avx512"))) is None


def test_what_looks_worse_to_the_template_than_where_it_was_measured_is_not_borrowed(
    tuned: Tuned, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned.add(128, 32)

    def cycles(region: Region, config: Any, machine: Machine) -> float:
        """Blocks of 32 relative to the default: 1.5 where measured, more for other sizes."""
        worse = {128: 1.5, 96: 1.55, 64: 1.6}[region.output.size]
        return worse if config.block == 32 else 1.0

    faces = {"estimate": staticmethod(cycles), "refuses_loans": True}
    with_estimate = type("Estimated", (tuned.toy.Toy,), faces)()
    with monkeypatch.context() as patch:
        patch.setitem(template._templates, tuned.toy.NAME, with_estimate)
        assert tuned.borrowed(96, machine) is not None
        assert tuned.borrowed(64, machine) is None
    assert tuned.borrowed(64, machine) is not None


def test_convolutions_refuse_loans() -> None:
    asked = {found.name for found in template.all_templates() if found.refuses_loans}
    assert asked == {"conv1d", "conv2d", "conv3d"}


def test_new_records_are_found(tuned: Tuned, machine: Machine) -> None:
    tuned.add(128, 32)
    nearest = NearestRecords(RecordStore(tuned.file.path).by_workload)
    region = tuned.toy.region(64)
    assert nearest.find(tuned.toy.region(640), machine) is None
    assert nearest.find(region, machine) is not None
    tuned.add(96, 8, 1.0)
    assert nearest.find(region, machine) is None


def test_a_region_of_other_ranks_has_no_numbers_for_symbols() -> None:
    rows, n = SymbolicSize.of("rows"), Tensor((16, 8), "float32", True)

    def product(*leading: int) -> Region:
        x, y = Tensor((*leading, 16), "float32"), Tensor((*leading, 8), "float32")
        return Region(op="matmul", inputs=(x, n), output=y)

    assert symbols_in(product(1, rows), product(1, 5)) == {"rows": 5}
    assert symbols_in(product(1, rows), product(1)) is None
    assert symbols_in(product(1, rows), product(1, 5, 5)) is None
