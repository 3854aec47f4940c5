"""Chains as one program: both modes and every kind of part equal the parts in sequence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax

from microkernels.base.errors import ConfigError
from tests.relay_passes.graphs import run as run_relax
from tests.tir_schedules.chain_regions import (
    INPUT,
    ChainBuilder,
    bf16_mlp,
    configs,
    f32_layer,
    f32_mlp,
    int8_mlp,
    mixed,
    norm,
    small_integers,
    transformer_block,
    values,
)
from tests.tir_schedules.integer_regions import matmul_region as integer_matmul
from tests.tir_schedules.run_region import BF16_ISAS, INTEGER_ISAS, ISAS, machine_for, run
from tir_schedules.chains.mlp_chain import MLP_CHAIN
from tir_schedules.chains.mlp_chain_config import MlpChainConfig, by_rows
from tir_schedules.chains.parts import sources_of
from tir_schedules.core.attributes import attribute_text
from tir_schedules.core.region import EpilogueOp, Region, Tensor
from tvm_hybrid.tuning.verification.chain_bounds import chain_arguments, expected_of_chain

BEST = INTEGER_ISAS[-1]


def check_exact(region: Region, arrays: list[np.ndarray], isa: str, **options: Any) -> None:
    expected = MLP_CHAIN.reference(region, arrays)
    assert len(np.unique(expected)) > min(8, expected.size // 4)
    np.testing.assert_array_equal(run(region, arrays, isa, **options), expected)


@pytest.mark.sampled
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("rows", [1, 7, 33])
def test_f32(isa: str, rows: int) -> None:
    region = f32_mlp(rows)
    check_exact(region, small_integers(region), isa)


@pytest.mark.sampled
@pytest.mark.parametrize("isa", INTEGER_ISAS)
def test_integers(isa: str) -> None:
    for rows in (1, 33):
        region = int8_mlp(rows)
        check_exact(region, values(region), isa, at_end=rows > 1)


@pytest.mark.sampled
@pytest.mark.parametrize("isa", BF16_ISAS)
def test_bfloat16(isa: str) -> None:
    region = bf16_mlp(33)
    check_exact(region, small_integers(region), isa)


@pytest.mark.sampled
@pytest.mark.parametrize("way", ["one block", "three blocks", "two threads", "columns"])
@pytest.mark.parametrize("at_end", [False, True])
def test_every_way_to_share_the_work(way: str, at_end: bool) -> None:
    for rows in (1, 7):
        f32, integers = f32_mlp(rows, sizes=(13, 70, 33)), int8_mlp(rows)
        for region, arrays in ((f32, small_integers(f32)), (integers, values(integers))):
            config = configs(region, BEST)[way]
            check_exact(region, arrays, BEST, config=config, at_end=at_end, threads=2)


def test_leading_dimensions_and_rows_of_other_shapes() -> None:
    first, second = f32_layer((3, 11), 13, 20), f32_layer((33,), 20, 9, residual=True)
    chain = ChainBuilder([first.inputs[0]])
    middle = chain.add(first, INPUT)
    # The residual broadcasts over the rows as [1, 9]; the bias is a number for each row.
    second = second.replace(operands=(Tensor((33, 1), "float32"), Tensor((1, 9), "float32")))
    chain.add(second, middle)
    region = chain.region()
    for config in configs(region, BEST).values():
        check_exact(region, small_integers(region), BEST, config=config)


def test_quantising_on_the_way_in_and_an_integer_residual() -> None:
    """f32 -> int8 product -> f32, which the next part quantises as it reads; a uint8 residual."""
    m, k, n = 9, 10, 24
    first = integer_matmul(
        (m,), k, n, "uint8", a_zero=3, quantized=0.05, output=Tensor((m, n), "float32"),
        epilogue=(
            EpilogueOp("cast", (0,)), EpilogueOp("constant", value=0.01),
            EpilogueOp("multiply", (1, 2)),
        ),
    )  # fmt: skip
    second = integer_matmul(
        (m,), n, n, "int8", a_zero=-3, quantized=0.04, output=Tensor((m, n), "uint8"),
        epilogue=(
            EpilogueOp("cast", (0,)), EpilogueOp("constant", value=0.005),
            EpilogueOp("multiply", (1, 2)),
            EpilogueOp("constant", value=0.1), EpilogueOp("constant", value=100.0),
            EpilogueOp("quantize", (3, 4, 5), dtype="uint8"),
        ),
    )  # fmt: skip
    third = integer_matmul(
        (m,), n, n, "uint8", "uint8", a_zero=100, w_zero="input",
        operands=(Tensor((m, n), "uint8"),), output=Tensor((m, n), "float32"),
        epilogue=(EpilogueOp("cast", (0,)), EpilogueOp("cast", (1,)), EpilogueOp("add", (2, 3))),
    )  # fmt: skip
    chain = ChainBuilder([first.inputs[0]])
    source = chain.add(second, chain.add(first, INPUT))
    chain.add(third, source, None, None, source)
    region = chain.region()
    arrays = values(region)
    for config in configs(region, BEST).values():
        check_exact(region, arrays, BEST, config=config)


@pytest.mark.parametrize("isa", ISAS)
def test_normalisations_and_residuals(isa: str) -> None:
    """Results are within the parts' bounds, carried through later parts (`chain_bounds`)."""
    region = transformer_block((3, 5), 20, 24)
    arrays = values(region)
    expected = expected_of_chain(region, arrays, 0)
    assert expected.tolerance.max() < 2**-11 < np.abs(expected.value).mean() / 100
    ways = configs(region, isa)
    for way in ways if isa == ISAS[-1] else ("three blocks",):
        assert expected.difference(run(region, arrays, isa, config=ways[way])) is None


def test_parts_of_different_types() -> None:
    region = mixed((5,), 24)
    arrays = chain_arguments(region, 0)
    expected = expected_of_chain(region, arrays, 0)
    assert expected.difference(run(region, arrays, BF16_ISAS[-1])) is None


def test_many_configurations_agree() -> None:
    region = f32_mlp(16, sizes=(9, 40, 24))
    arrays = small_integers(region)
    expected = MLP_CHAIN.reference(region, arrays)
    machine = machine_for(BEST, 2)
    space = list(MLP_CHAIN.space(region, machine))
    assert len(set(space)) == len(space) and space[0] == MLP_CHAIN.default_config(region, machine)
    assert {config.mode for config in space} == {"rows", "columns"}
    assert len({config.row_blocks for config in space}) > 3
    for config in space[:: max(1, len(space) // 8)]:
        assert MlpChainConfig.from_dict(config.to_dict()) == config
        np.testing.assert_array_equal(run(region, arrays, BEST, config), expected)


def test_the_default_shares_rows_of_many_and_columns_of_few() -> None:
    many, few = (f32_mlp(m, sizes=(512, 1024, 1024)) for m in (256, 1))
    machine = machine_for(BEST, 2)
    rows, columns = (MLP_CHAIN.default_config(region, machine) for region in (many, few))
    assert (rows.mode, rows.threads) == ("rows", 2)
    assert columns.mode == "columns" and all(c.threads_n == 2 for c in columns.matmuls)


def test_kernel_name_flops_and_packed_shapes() -> None:
    region = mixed((5,), 24)
    machine = machine_for(BEST)
    config = MLP_CHAIN.default_config(region, machine)
    name = MLP_CHAIN.kernel_name(region, config, machine.isa)
    assert "layer_norm" in name and "u8s8s32" in name and "_f32_" in name
    assert MLP_CHAIN.flops(region) == 5 * 24 * (7 + 2 * 28) + 5 * 28 * 2 * 25 + 4 * 5 * 25
    packing = MLP_CHAIN.packing
    assert packing is not None
    for index, (tensor, array) in enumerate(zip(region.inputs, values(region), strict=True)):
        packed = packing(region, config, machine.isa, index)
        assert (packed is None) != tensor.constant
        assert packed is None or packed.shape == packed.pack(array).shape


def test_unpacked_constants_are_what_was_packed() -> None:
    region = mixed((5,), 24)
    isa, packing = machine_for(BEST).isa, MLP_CHAIN.packing
    assert packing is not None
    config = by_rows(region, machine_for(BEST), 1, 2)
    for index, array in enumerate(values(region)):
        how = packing(region, config, isa, index)
        assert (how is None) != region.inputs[index].constant
        if how is not None:
            packed = how.pack(array)
            builder = relax.BlockBuilder()
            x = relax.Var("x", relax.TensorType(packed.shape, str(packed.dtype)))
            with builder.function("main", [x]):
                with builder.dataflow():
                    result = builder.emit_output(how.unpack(x))
                builder.emit_func_output(result)
            np.testing.assert_array_equal(run_relax(builder.get(), [packed])[0], array)


def two_layers(**changes: Any) -> Region:
    return f32_mlp(8, sizes=(16, 16, 16)).replace(**changes)


def with_part(number: int, part: Region) -> Region:
    region = two_layers()
    parts = [*region.parts]
    parts[number] = part
    return region.replace(parts=tuple(parts), output=parts[-1].output)


DYNAMIC = integer_matmul((8,), 16, 16, a_zero="dynamic", quantized="dynamic")
WINDOW = f32_layer((8,), 16, 16).replace(attrs={"window": 3, "stride": 1})
REJECTED = {
    "one part": (two_layers(parts=(f32_layer((8,), 16, 16),)), "1 parts"),
    "no sources": (two_layers(attrs={}), "is no source"),
    "too few sources": (two_layers(attrs={"sources": "i0,i1,i2;p0,i3"}), "inputs and operands"),
    "a later part": (two_layers(attrs={"sources": "p1,i1,i2;p0,i3,i4"}), "cannot read p1"),
    "no such input": (two_layers(attrs={"sources": "i0,i1,i2;p0,i3,i9"}), "cannot read i9"),
    "a bias for the rows": (two_layers(attrs={"sources": "i2,i1,i0;p0,i3,i4"}), "is read"),
    "unused": (two_layers(attrs={"sources": "i0,i1,i2;p0,i3,i2"}), "input 4 is not used"),
    "shared weight": (two_layers(attrs={"sources": "i0,i1,i2;p0,i1,i4"}), "is a weight"),
    "weight from a part": (two_layers(attrs={"sources": "i0,i1,i2;i0,p0,i4"}), "from another part"),
    "other rows": (with_part(1, f32_layer((9,), 16, 16)), "9 rows, not 8"),
    "other columns": (with_part(1, f32_layer((8,), 17, 16)), "is read"),
    "dynamic": (with_part(1, DYNAMIC.replace(operands=(Tensor((), "float32"),))), "all rows"),
    "windows": (with_part(0, WINDOW.replace(inputs=(Tensor((2, 6, 16), "float32"),
                Tensor((3, 16, 16), "float32", True)))), "windows"),
    "softmax": (with_part(1, norm((8,), 16).replace(op="softmax")), "not row by row"),
    "rows normalised": (with_part(1, norm((8,), 16, "rms_norm").replace(
        attrs={"axis": 0, "epsilon": 1e-5}, inputs=(Tensor((8, 16), "float32"),
        Tensor((8, 16), "float32")), operands=(Tensor((8, 16), "float32"),))), "axis 0"),
    "output": (two_layers(output=Tensor((8, 16), "uint8")), "output"),
}  # fmt: skip


@pytest.mark.parametrize("name", REJECTED)
def test_rejected_with_a_reason(name: str) -> None:
    region, reason = REJECTED[name]
    assert MLP_CHAIN.reject(two_layers(), machine_for(BEST).isa) is None
    assert reason in str(MLP_CHAIN.reject(region, machine_for(BEST).isa))


@pytest.mark.parametrize(
    "changes",
    [
        {"row_blocks": 0},
        {"row_unit": 0},
        {"threads": 0},
        {"matmuls": ()},
        {"norms": ({"rows": 1, "unroll": 1, "keep": False, "chunk": 1},)},
        {"matmuls": "threads"},
        {"mode": "diagonal"},
        {"speed": 9},
    ],
)
def test_illegal_configurations_are_refused(changes: dict[str, Any]) -> None:
    region, machine = two_layers(), machine_for(BEST)
    fields = MLP_CHAIN.default_config(region, machine).to_dict()
    if changes.get("matmuls") == "threads":
        changes = {"matmuls": [{**part, "threads_n": 2} for part in fields["matmuls"]]}
    with pytest.raises(ConfigError):
        MLP_CHAIN.build(region, MlpChainConfig.from_dict({**fields, **changes}), machine.isa)


def test_sources_are_text_both_ways() -> None:
    region = transformer_block((4,), 8, 8)
    assert sources_of(region) == region.sources
    assert attribute_text(region.sources).startswith("i0,i1,i2;p0,i3,i4,i0;p1,i5,i6;p2,i7,i8;")
