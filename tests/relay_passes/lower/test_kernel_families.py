"""Kernel families: similar layers are built once, and each gets the kernel it would have alone."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import IRModule, relax, tirx

from relay_passes.lower import kernel_sharing as kernel_families
from relay_passes.lower import lower_regions
from relay_passes.lower.kernel_sharing import plain
from relay_passes.lower_module import compile_module, lower_shared
from relay_passes.pipeline_options import PipelineOptions
from tvm_hybrid.targets.resolve import resolve_target

pytestmark = pytest.mark.turns

ROWS, SIZE = 5, 32
Format = tuple[float, int]


def _layers(formats: list[Format]) -> IRModule:
    """x -> dequantise, multiply, gelu, quantise, once for each scale and zero point."""
    builder, rng = relax.BlockBuilder(), np.random.default_rng(0)
    x = relax.Var("x", relax.TensorType((ROWS, SIZE), "uint8"))

    def numbers(scale: float, zero_point: int, dtype: str) -> tuple[relax.Expr, relax.Expr]:
        return relax.const(np.float32(scale)), relax.const(zero_point, dtype)

    with builder.function("main", [x]):
        with builder.dataflow():
            value: relax.Expr = x
            before = (0.02, 128)
            for scale, zero_point in formats:
                weight = rng.integers(-127, 128, (SIZE, SIZE)).astype(np.int8)
                columns = numbers(scale / 3, 0, "int8")
                a = builder.emit(relax.op.dequantize(value, *numbers(*before, "uint8")))
                b = builder.emit(relax.op.dequantize(relax.const(weight), *columns))
                product = builder.emit(relax.op.matmul(a, b))
                active = builder.emit(relax.op.nn.gelu(product))
                before = (scale, zero_point)
                value = builder.emit(
                    relax.op.quantize(active, *numbers(*before, "uint8"), out_dtype="uint8")
                )
            output = builder.emit_output(value)
        builder.emit_func_output(output)
    return builder.get()


def _options(threads: int = 1, target: str | None = None) -> PipelineOptions:
    return PipelineOptions(resolve_target(target), threads=threads, fusion="fine")


def _forms(mod: IRModule) -> Counter[int]:
    """The kernels of a module without their names."""
    return Counter(
        tvm_ffi.structural_hash(plain(function))
        for _, function in mod.functions_items()
        if isinstance(function, tirx.PrimFunc)
    )


def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns families off: each kernel is built separately."""
    monkeypatch.setattr(kernel_families, "MOST_VAIN", 0)


DIFFERENT: list[Format] = [(0.011 + 0.003 * i, 120 + 2 * i) for i in range(6)]


@pytest.mark.parametrize("count", [2, 6])
def test_equal_layers_are_built_once(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    built: list[str] = []
    emit = lower_regions.emit_kernel

    def counted(region: object, *rest: object) -> tirx.PrimFunc:
        built.append(region.op)  # type: ignore[attr-defined]
        return emit(region, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(lower_regions, "emit_kernel", counted)
    lower_shared(_layers(DIFFERENT[:count]), _options(), [])
    assert built == ["matmul", "matmul"]  # once with numbers, once with placeholders


@pytest.mark.parametrize("target", [None, "skx", "icx", "spr"])
@pytest.mark.parametrize(
    "formats", [DIFFERENT, [*DIFFERENT[:3], (0.02, 0), (0.5, 0), (1e-30, 3), *DIFFERENT[:2]]]
)
def test_kernels_are_those_of_regions_alone(
    monkeypatch: pytest.MonkeyPatch, formats: list[Format], target: str | None
) -> None:
    options = _options(target=target)
    found = lower_shared(_layers(formats), options, [])
    _alone(monkeypatch)
    assert _forms(found) == _forms(lower_shared(_layers(formats), options, []))


def test_results_are_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    mod = _layers(DIFFERENT)
    x = np.random.default_rng(1).integers(0, 256, (ROWS, SIZE)).astype(np.uint8)
    results = []
    for _ in range(2):
        compiled = compile_module(mod, _options())
        machine = relax.VirtualMachine(compiled.executable, tvm.cpu())
        results.append(machine["main"](tvm.runtime.tensor(x)).numpy())
        _alone(monkeypatch)
    assert np.ptp(results[0]) > 10
    np.testing.assert_array_equal(*results)


def test_every_layer_has_its_decision() -> None:
    decisions: list[lower_regions.Decision] = []
    lower_shared(_layers(DIFFERENT), _options(), decisions)
    taken = [decision for decision in decisions if decision.taken]
    assert len({decision.workload for decision in taken}) == len(DIFFERENT)
    assert {decision.function for decision in taken} == {"tvm_hybrid_matmul_shared"}


def test_kernels_that_leave_threads_idle_stay_apart_until_they_are_merged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = _options(threads=64)
    found = lower_shared(_layers(DIFFERENT), options, [])
    _alone(monkeypatch)
    assert _forms(found) == _forms(lower_shared(_layers(DIFFERENT), options, []))
