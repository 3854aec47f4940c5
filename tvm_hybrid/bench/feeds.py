"""Arrays to feed to a model: from files, else random."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from tvm import IRModule, relax

from microkernels.base.errors import FeedError
from relay_passes.ir.graph import nodes_in, op_name
from relay_passes.ir.moving_operators import moves
from relay_passes.ir.traits import CONVOLUTIONS, SOFTMAXES, SUMS

from ..frontend.expressions import static_dims
from ..runtime.feeds import arrays_of, sample_shapes
from ..runtime.tensors import numpy_dtype
from .compare import Tolerance, tolerance_for

if TYPE_CHECKING:
    from ..executable.executable import Executable


def load_feeds(arrays: Iterable[str], archive: Path | None = None) -> dict[str, np.ndarray]:
    """Reads `NAME=FILE.npy` items and an archive; items override arrays of the archive.

    Raises
    ------
    FeedError
        If an item has no name, or a file has another format than its ending says.
    """
    feeds: dict[str, np.ndarray] = {}
    if archive is not None:
        feeds.update(_load(archive, "an .npz archive of arrays"))
    for item in arrays:
        name, _, file = item.partition("=")
        if not name or not file:
            raise FeedError(f"--input {item!r} is not NAME=FILE.npy")
        feeds[name] = _load(Path(file), "one .npy array")[""]
    return feeds


def read_arrays(path: Path, expected: str, advice: str = "") -> dict[str, np.ndarray]:
    """Reads the arrays of a file by name; the array of an .npy file has the name "".

    Raises
    ------
    FeedError
        If the file has another format; the message says what was expected, and gives the advice.
    """
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return {"": as_saved(loaded)}
        with loaded:
            return {name: as_saved(loaded[name]) for name in loaded.files}
    except FileNotFoundError:
        why = "there is no such file"
    except OSError as error:
        why = error.strerror or str(error)
    except (ValueError, EOFError, zipfile.BadZipFile):  # NumPy's message advises to load unsafely
        why = "numpy.save and numpy.savez write such files, of numbers alone"
    raise FeedError(f"{path} cannot be read as {expected}: {why}{advice}")


def _load(path: Path, expected: str) -> dict[str, np.ndarray]:
    found = read_arrays(path, expected)
    if ("" in found) != expected.startswith("one"):
        raise FeedError(f"{path} is not {expected}")
    return found


def as_saved(array: np.ndarray) -> np.ndarray:
    """Restores bfloat16, which NumPy's files keep only as raw bits."""
    return array.view(ml_dtypes.bfloat16) if array.dtype.str == "|V2" else array


def save_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes an .npz archive; unlike `numpy.savez`, allows any names ("file", ...)."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)


def random_array(shape: Sequence[int], dtype: str, rng: np.random.Generator) -> np.ndarray:
    """Random values that any model accepts: normal floats; integers and booleans 0 or 1."""
    wanted = numpy_dtype(dtype)
    if wanted.kind == "f" or "float" in dtype:
        return rng.standard_normal(shape).astype(wanted)
    return rng.integers(0, 2, shape).astype(wanted)


def complete_feeds(
    inputs: Sequence[Any], given: Mapping[str, np.ndarray], seed: int = 0
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Adds random arrays for the inputs that are not given.

    Inputs have `name`, `shape` and `dtype`, like `frontend.TensorInfo` and inputs of sessions.
    Random arrays have 1 for dynamic dimensions.

    Returns
    -------
    feeds : dict
        An array for every input. Given arrays are not checked here: the session does that.
    drawn : list of str
        Names of the inputs with random values.

    Raises
    ------
    FeedError
        If an array is given for an input that the model does not have.
    """
    names = [info.name for info in inputs]
    unknown = [name for name in given if name not in names]
    if unknown:
        raise FeedError(
            f"the model has no input {', '.join(map(repr, unknown))}; it has {', '.join(names)}"
        )
    rng = np.random.default_rng(seed)
    feeds: dict[str, np.ndarray] = {}
    drawn = []
    for info, shape in zip(inputs, sample_shapes(inputs), strict=True):
        if info.name in given:
            feeds[info.name] = given[info.name]
        else:
            feeds[info.name] = random_array(shape, info.dtype, rng)
            drawn.append(info.name)
    return feeds, drawn


def feeds_of(
    executable: Executable, given: Mapping[str, np.ndarray], seed: int = 0
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Completes the feeds of a program's model, with the values that it was compiled for.

    Raises
    ------
    FeedError
        If an array is given for an input that the model does not have.
    """
    inputs = [*executable.inputs, *executable.values]
    return complete_feeds(inputs, {**arrays_of(executable.values), **given}, seed)


class ProductSums:
    """Counts sums of products in a Relax module, before it is lowered.

    Attributes
    ----------
    flops : int
        Two operations for every multiply-add; nothing else is counted.
    lengths : list of int
        For each operator, the number K of products that are summed for each output element.
    half_lengths : list of int
        `lengths` of float16 sums, including reductions and normalisations.
    float32, bfloat16 : int
        Number of matrix products with operands of these types. `bfloat16` also counts convolutions,
        and other operators with bfloat16 results.
    halves : int
        Number of operators with float16 results.
    quantized : int
        Number of tensors that the model quantises at run time.
    """

    def __init__(self, mod: IRModule) -> None:
        self.flops = 0
        self.lengths: list[int] = []
        self.half_lengths: list[int] = []
        self.float32 = self.bfloat16 = self.halves = self.quantized = 0
        functions = [each for each in mod.functions.values() if isinstance(each, relax.Function)]
        for call in (node for function in functions for node in nodes_in(function)):
            if not isinstance(call, relax.Call):
                continue
            # Dynamic quantisation also quantises its zero point, a scalar, which does not count.
            if op_name(call) == "relax.quantize" and static_dims(call) != ():
                self.quantized += 1
            length = _sum_length(call)
            shape = static_dims(call)
            half = _dtype(call) == "float16"
            self.halves += half and not moves(call)
            if length is None or shape is None:
                self.bfloat16 += _dtype(call) == "bfloat16" and not moves(call)
                self.half_lengths += _reduced(call) if half else []
                continue
            (self.half_lengths if half else self.lengths).append(length)
            self.flops += 2 * length * math.prod(shape)
            dtype = _dtype(call.args[0])
            self.bfloat16 += dtype == "bfloat16"
            self.float32 += dtype == "float32" and op_name(call) == "relax.matmul"

    def rounded(self, precision: str) -> int:
        """Number of operators with bfloat16 operands when compiled in a precision."""
        return self.bfloat16 + (self.float32 if precision == "bf16" else 0)

    def tolerance(self, precision: str = "auto") -> Tolerance:
        """Tolerance of the model's results when compiled in a precision."""
        rounded = self.rounded(precision)
        return tolerance_for(self.lengths, rounded, self.quantized, self.half_lengths, self.halves)


def _dtype(expr: relax.Expr) -> str:
    return str(getattr(getattr(expr, "ty", None), "dtype", ""))


def _sum_length(call: relax.Call) -> int | None:
    """K of a matrix product or a convolution; None for other operators."""
    name = op_name(call)
    if name == "relax.matmul":
        left = static_dims(call.args[0])
        return left[-1] if left else None
    if name in CONVOLUTIONS:
        weight = static_dims(call.args[1])
        output_first = str(call.attrs.kernel_layout).startswith("O")
        return math.prod(weight[1:]) if weight and output_first else None
    return None


def _reduced(call: relax.Call) -> list[int]:
    """Number of argument elements summed for each result element of a reduction, else empty."""
    name = op_name(call)
    given = static_dims(call.args[0]) if call.args else None
    if given is None or not math.prod(given):
        return []
    if name in SUMS:
        return [math.prod(given) // math.prod(static_dims(call) or (1,))]
    if name in SOFTMAXES:
        return [given[int(call.attrs.axis)]]
    if name in ("relax.nn.layer_norm", "relax.nn.rms_norm"):
        return [math.prod(given[int(axis)] for axis in call.attrs.axes)]
    if name.startswith("relax.nn.avg_pool"):
        return [math.prod(map(int, call.attrs.pool_size))]
    return []
