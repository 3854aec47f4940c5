"""A transformer layer with dynamic batch and length has the static regions and results."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
import tvm
from tvm import IRModule, relax, tirx

from relay_passes.ir.graph import region_tensor, relax_shape
from relay_passes.lower_module import CompiledModule, compile_module
from relay_passes.pipeline_options import PipelineOptions
from tests.microkernels.isa_targets import target_of
from tests.relay_passes.graphs import constant, module
from tests.stand_ins.isas_run import runs_itself
from tir_schedules.core.region import Tensor
from tir_schedules.core.size import SymbolicSize

pytestmark = pytest.mark.turns

op = relax.op
BATCH, LENGTH = (tirx.Var(name, "int64") for name in ("batch", "length"))
HEADS, SIZE = 3, 16
WIDTH = HEADS * SIZE
ISA = "avx512" if runs_itself("avx512") else "avx2"


def layer(batch: tirx.Expr | int, length: tirx.Expr | int) -> IRModule:
    """Attention with a mask, a perceptron, two normalisations."""

    def linear(x: relax.Expr, n: int, seed: int) -> relax.Expr:
        k = int(x.ty.shape.values[-1])
        return op.add(op.matmul(x, constant(k, n, seed=seed)), constant(n, seed=seed + 1))

    def heads(x: relax.Expr) -> relax.Expr:
        return op.permute_dims(op.reshape(x, (batch, length, HEADS, SIZE)), (0, 2, 1, 3))

    def normal(expr: relax.Expr) -> relax.Expr:
        return relax.BlockBuilder.current().normalize(expr)

    def body(x: relax.Expr, mask: relax.Expr) -> relax.Expr:
        q, k, v = (heads(normal(linear(x, WIDTH, 2 * seed))) for seed in range(3))
        scores = op.multiply(
            op.matmul(q, op.permute_dims(k, (0, 1, 3, 2))), relax.const(0.25, "float32")
        )
        mixed = op.matmul(op.nn.softmax(op.add(scores, mask)), v)
        rows = op.reshape(op.permute_dims(mixed, (0, 2, 1, 3)), (batch, length, WIDTH))
        x = normal(op.add(linear(normal(rows), WIDTH, 6), x))
        x = normal(op.nn.layer_norm(x, constant(WIDTH, seed=8), constant(WIDTH, seed=9), -1))
        inner = normal(op.nn.gelu(linear(x, 2 * WIDTH, 10)))
        return op.nn.rms_norm(op.add(linear(inner, WIDTH, 12), x), constant(WIDTH, seed=14), -1)

    return module(body, ((batch, length, WIDTH), "float32"), ((batch, 1, 1, length), "float32"))


def compiled(mod: IRModule, threads: int = 1, strict: bool = True) -> CompiledModule:
    options = PipelineOptions(target=target_of(ISA), threads=threads, strict=strict)
    return compile_module(mod, options)


@functools.cache
def static(batch: int, length: int) -> relax.VirtualMachine:
    """A program with these static sizes, on one thread."""
    executable = compiled(layer(batch, length)).executable
    return relax.VirtualMachine(executable, tvm.cpu())


def taken(result: CompiledModule) -> list[str]:
    return [d.op for d in result.decisions if d.taken and d.kernel]


@pytest.mark.parametrize("threads", [1, 2])
def test_one_program_has_the_results_of_known_sizes(threads: int) -> None:
    dynamic = compiled(layer(BATCH, LENGTH), threads)
    ops = taken(dynamic)
    assert [name.split(" ")[0] for name in ops] == ["matmul", "attention", "mlp_chain"]
    run = relax.VirtualMachine(dynamic.executable, tvm.cpu())["main"]
    rng = np.random.default_rng(0)
    for batch, length in [(1, 1), (2, 3), (1, 20), (3, 33)]:
        x = rng.standard_normal((batch, length, WIDTH)).astype(np.float32)
        mask = np.where(rng.random((batch, 1, 1, length)) < 0.2, -1e9, 0).astype(np.float32)
        arrays = [tvm.runtime.tensor(each) for each in (x, mask)]
        wanted = static(batch, length)["main"](*arrays).numpy()
        # Seven layers of sums of up to 96 products, each in another order.
        bound = 7 * 96 * np.finfo(np.float32).eps * np.abs(wanted).max()
        assert np.abs(run(*arrays).numpy() - wanted).max() <= bound


def test_shapes_are_read_and_written() -> None:
    shape = (BATCH, LENGTH * 3 + 1, tirx.const(4, "int64"))
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    sizes = (SymbolicSize.of("batch"), SymbolicSize.of("length") * 3 + 1, 4)
    assert region_tensor(x) == Tensor(sizes, "float32")
    again = relax.Var("y", relax.TensorType(relax_shape(sizes, x), "float32"))
    assert region_tensor(again) == Tensor(sizes, "float32")
    (rows,) = relax_shape((SymbolicSize.of("batch") * 8,), x)
    tvm.ir.assert_structural_equal(rows, BATCH * 8)


def test_quotients_are_symbols() -> None:
    half = tirx.floordiv(LENGTH - 1, 2) + 1
    x = relax.Var("x", relax.TensorType((BATCH, half, half * 3, tirx.floordiv(LENGTH, 2)), "int8"))
    found = region_tensor(x)
    assert found is not None
    batch, own, thrice, other = found.shape
    assert isinstance(own, SymbolicSize)
    assert len(own.symbols) == 1
    assert thrice == own * 3
    assert not {*other.symbols} & {*own.symbols}  # type: ignore[attr-defined]
    again = region_tensor(relax.Var("x", relax.TensorType((half,), "int8")))
    assert again is not None
    assert again.shape == (own,)
    (product,) = relax_shape((batch * own * 4,), x)
    tvm.ir.assert_structural_equal(product, half * (BATCH * 4))


def test_differences_keep_their_symbols() -> None:
    x = relax.Var("x", relax.TensorType((LENGTH - 2, 4), "float32"))
    found = region_tensor(x)
    assert found is not None
    assert found.shape == (SymbolicSize.of("length") + -2, 4)
    (same,) = relax_shape((found.shape[0] * 2,), x)
    tvm.ir.assert_structural_equal(same, (LENGTH - 2) * 2)


@pytest.mark.parametrize(("widths", "ops"), [((16, 32, 8), ["mlp_chain"]), ((16,) * 3, ["matmul"])])
def test_layers_are_a_chain_unless_they_share_a_kernel(widths: list[int], ops: list[str]) -> None:
    def body(x: relax.Expr) -> relax.Expr:
        for seed, (k, n) in enumerate(itertools.pairwise(widths)):
            product = relax.BlockBuilder.current().normalize(
                op.matmul(x, constant(k, n, seed=seed))
            )
            x = relax.BlockBuilder.current().normalize(op.nn.relu(product))
        return x

    found = taken(compiled(module(body, ((BATCH, widths[0]), "float32"))))
    assert sorted({name.split(" ")[0] for name in found}) == ops
