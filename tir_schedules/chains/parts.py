"""What kernels of merged regions share: sources, packed inputs, rows between parts, matmuls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import tvm.tirx.script.builder.ir as I
from tvm import DataType, relax

from microkernels import microkernel, registry
from microkernels.base.errors import ConfigError
from microkernels.isa import Isa
from microkernels.vector.expressions import Expr, Index, constant, parameter, ramp
from tir_schedules.core import attributes, emission, extents, template
from tir_schedules.core.arrays import A, reshaped
from tir_schedules.core.config import Config
from tir_schedules.core.region import Region, Tensor
from tir_schedules.epilogue.epilogue import region_result
from tir_schedules.product.tile_config import MatmulConfig
from tir_schedules.rows import normalize, normalize_view
from tir_schedules.rows.normalize import NormalizeConfig

Leading = Callable[[Expr], Sequence[Expr]]
PartConfig = MatmulConfig | NormalizeConfig


# Where the parts of a chain get their inputs and operands from: the attribute "sources".
#
#     ((i0, i1, i2), (p0, i3, i4, i0))
#
# Each part lists its inputs, then its operands: iN is input N of the merged region, pN the result
# of part N.


def sources_of(region: Region) -> attributes.Sources:
    """The sources of every part's inputs and operands.

    Raises
    ------
    ConfigError
        If the attribute is missing, or does not fit the parts.
    """
    found = region.sources
    if not found:
        raise ConfigError(f"there is no source for any part, in {region.key}")
    wanted = [len(part.inputs) + len(part.operands) for part in region.parts]
    if [len(part) for part in found] != wanted:
        text = attributes.attribute_text(found)
        raise ConfigError(f"sources {text!r} for parts of {wanted} inputs and operands")
    for number, part in enumerate(found):
        for source in part:
            if source.number >= (number if source.part else len(region.inputs)):
                raise ConfigError(f"part {number} cannot read {source}, in {region.key}")
    return found


def as_read(region: Region, inputs: Sequence[Expr], number: int) -> list[Expr | None]:
    """The buffers that a part reads, in the shapes that it needs; None: another part's result."""
    part, found = region.parts[number], []
    for position, source in enumerate(region.sources[number]):
        index = source.number
        if source.part or (number, position) in packed_uses(region, index):
            found.append(None if source.part else inputs[index])
            continue
        shape = part.tensors[:-1][position].shape
        if part.op in normalize_view.NORM_OPS and position > 0:
            seen = normalize.view(part)
            further = position - len(part.inputs)
            shape = (seen.n,) if further < 0 else seen.region.operands[further].shape
        found.append(extents.reshaped(inputs[index], region.inputs[index], shape))
    return found


def reject_inputs(region: Region) -> str | None:
    """Why the parts cannot read the inputs, or do not give the region's output, or None."""
    try:
        found = sources_of(region)
    except ConfigError as error:
        return str(error)
    for part, sources in zip(region.parts, found, strict=True):
        for source, tensor in zip(sources, part.tensors[:-1], strict=True):
            given = None if source.part else region.inputs[source.number]
            if given is not None and (given.dtype, given.size) != (tensor.dtype, tensor.size):
                return f"{given} where {tensor} is read"
    for index, tensor in enumerate(region.inputs):
        everywhere = sum(sources.count(attributes.Source(False, index)) for sources in found)
        if not everywhere:
            return f"input {index} is not used"
        if packed_uses(region, index) and (everywhere > 1 or not tensor.constant):
            return f"input {index} is a weight that several parts read, or that is not constant"
    last = region.parts[-1].output
    if (region.output.dtype, region.output.size) != (last.dtype, last.size):
        return f"output {region.output} of a part with {last}"
    return None


def with_rows(part: Region, rows: int) -> Region:
    """A part with only `rows` rows, for its default configuration."""
    first, output = part.inputs[0], part.output
    attrs = {**part.attrs, "axis": 1} if "axis" in part.attrs else part.attrs
    return part.replace(
        inputs=(Tensor((rows, first.shape[-1]), first.dtype), *part.inputs[1:]),
        output=Tensor((rows, output.shape[-1]), output.dtype),
        operands=(),
        attrs=attrs,
    )


# The inputs of a merged region as its kernel reads them: weights packed as each part packs them.
#
# Operands of epilogues, and inputs of parts that pack nothing, stay as they are.


class PartsConfig(Protocol):
    """A configuration that has one for every part."""

    def of_parts(self, region: Region) -> Sequence[Config]:
        """The configuration of every part."""


def packed_uses(region: Region, index: int) -> list[tuple[int, int]]:
    """(part, number of the part's input) for every read of an input in packed form."""
    return [
        (number, position)
        for number, (part, sources) in enumerate(zip(region.parts, sources_of(region), strict=True))
        for position, source in enumerate(sources[: len(part.inputs)])
        if source == attributes.Source(False, index)
        and part.inputs[position].constant
        and template.template_for(part.op).packing is not None
    ]


class PartsInput(template.PackedInput):
    """A weight as a part packs it; the part may read it in another shape.

    Parameters
    ----------
    packed : PackedInput
        The part's packing.
    read, stored : tuple of int
        Shape of the part's input, and of the merged region's.
    """

    def __init__(
        self, packed: template.PackedInput, read: tuple[int, ...], stored: tuple[int, ...]
    ) -> None:
        self.packed, self.read, self.stored, self.shape = packed, read, stored, packed.shape

    def pack(self, array: A) -> A:
        return self.packed.pack(reshaped(array, self.read))

    def unpack(self, expr: relax.Expr) -> relax.Expr:
        whole = self.packed.unpack(expr)
        return whole if self.read == self.stored else relax.op.reshape(whole, self.stored)


def packing(
    region: Region, config: PartsConfig, isa: Isa, index: int
) -> template.PackedInput | None:
    """How an input is packed; None if no part reads it in packed form."""
    for number, position in packed_uses(region, index):
        part, own = region.parts[number], config.of_parts(region)[number]
        packed = template.template_for(part.op).packed_input(part, own, isa, position)
        if packed is not None:
            shape = part.inputs[position].shape
            return PartsInput(packed, shape, region.inputs[index].shape)
    return None


def parts_parameters(region: Region, config: PartsConfig, isa: Isa) -> list[Expr]:
    """The kernel's parameters for the inputs of a merged region."""
    found = []
    for index, tensor in enumerate(region.inputs):
        dtype = tensor.dtype
        for number, position in packed_uses(region, index):
            part = config.of_parts(region)[number]
            if position == 1 and isinstance(part, MatmulConfig):
                dtype = registry.microkernel_named(part.kernel).b_dtype
        packed = packing(region, config, isa, index)
        shape = extents.buffer_shape(tensor.shape if packed is None else packed.shape)
        found.append(parameter(f"input{index}", shape, dtype))
    return found


def parts_kernel_name(region: Region, config: PartsConfig, isa: Isa) -> str:
    """The names of the parts' kernels, each once."""
    pairs = zip(region.parts, config.of_parts(region), strict=True)
    names = [template.template_for(part.op).kernel_name(part, found, isa) for part, found in pairs]
    return " + ".join(dict.fromkeys(names))


def row_pitch(made: Tensor, reader: microkernel.Microkernel | None) -> int:
    """Elements from one row of a result to the next.

    If tiles multiply it directly, its rows are padded to whole steps of K, and lie in different
    sets of L1.
    """
    n = made.shape[-1]
    if reader is None or not reader.by_tiles or made.dtype != reader.a_dtype:
        return n
    return extents.uncrowded(reader.steps(n) * reader.kr, int(DataType(made.dtype).itemsize))


def rows_between(made: Tensor, rows: Index, pitch: int) -> Expr:
    """A buffer for `rows` rows of a result, in the calling thread; its padding is 0."""
    kept = "uint16" if made.dtype == "bfloat16" else made.dtype  # see load_vector
    result = I.sblock_alloc_buffer((rows, pitch), kept, align=64)
    if pitch > made.shape[-1]:
        # Later stores leave the padding as it is.
        lanes = 64 // int(DataType(kept).itemsize)
        with emission.opaque_block("pad"), I.serial(rows) as row:
            for start in range(made.shape[-1] // lanes * lanes, pitch, lanes):
                I.buffer_store(result, constant(0, kept, lanes), [row, ramp(start, lanes)])
    return result


Evaluate = Callable[[Region, list[np.ndarray]], np.ndarray]


def chain_reference(
    region: Region, inputs: list[np.ndarray], evaluate: Evaluate = region_result
) -> np.ndarray:
    """The meaning of a merged region by NumPy: that of its parts, one after the other.

    Between parts, values are rounded as if they were stored.

    Parameters
    ----------
    region : Region
        The merged region.
    inputs : list of ndarray
        Its inputs, constants unpacked.
    evaluate : callable
        (part, its inputs and operands) -> its result; another one shows the effect of an error.
    """
    results: list[np.ndarray] = []
    for part, sources in zip(region.parts, sources_of(region), strict=True):
        arrays = [
            (results if source.part else inputs)[source.number].reshape(tensor.shape)
            for source, tensor in zip(sources, part.tensors[:-1], strict=True)
        ]
        results.append(evaluate(part, arrays))
    return results[-1].reshape(region.output.shape)
