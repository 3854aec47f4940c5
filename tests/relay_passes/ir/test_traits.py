"""Every operator in the table of traits exists in TVM."""

from __future__ import annotations

import pytest
from tvm import ir

from relay_passes.ir import traits

TABLES = [name for name in vars(traits) if name.isupper() and not name.startswith("_")]


@pytest.mark.parametrize("table", TABLES)
def test_every_name_is_an_operator(table: str) -> None:
    names = [*getattr(traits, table)]
    assert names and len(names) == len({*names})
    for name in names:
        assert str(ir.Op.get(name).name) == name


@pytest.mark.parametrize("table", ["MOVABLE", "ELEMENTWISE"])
def test_elementwise_operators_take_so_many_tensors(table: str) -> None:
    for name, arity in getattr(traits, table).items():
        declared = list(ir.Op.get(name).arguments)[:arity]
        assert len(declared) == arity, name
