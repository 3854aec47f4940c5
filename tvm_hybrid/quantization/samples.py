"""Samples to calibrate with: arrays for the inputs of a model, from files or from the caller.

A folder has one sample in each .npz file (arrays by the names of the inputs), in each .npy file (if
the model has one input), or in the files input_0.pb, input_1.pb, ... of a folder, as in ONNX's test
data. One .npz file may hold all samples. Its arrays then have one more dimension in front, or a
first dimension that is a multiple of the model's static one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from microkernels.base.errors import FeedError, InputValueError

from ..bench.compare import Judge, Tolerance
from ..bench.feeds import ProductSums, random_array, read_arrays
from ..bench.peers.contestants import SessionContestant
from ..bench.peers.onnx_runtime import optimised_session
from ..frontend import import_onnx
from ..report.timing import Timing, interleave
from ..runtime.tensors import shape_fits
from ..session.inference_session import InferenceSession

Feeds = dict[str, np.ndarray]
ACCEPTED = ".npz, .npy or input_0.pb, input_1.pb, ..."


@dataclass(frozen=True)
class ModelInput:
    """An input of an ONNX model.

    Attributes
    ----------
    name : str
    dtype : numpy.dtype
    shape : tuple of int, str or None, or None
        Sizes; a name or None for a dynamic one. None if the rank is unknown.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | str | None, ...] | None

    @property
    def described(self) -> str:
        """The type and shape as text, such as float32[batch, 3, ?]."""
        sizes = "..." if self.shape is None else ", ".join(str(s or "?") for s in self.shape)
        return f"{self.dtype}[{sizes}]"


def inputs_of(model: onnx.ModelProto) -> list[ModelInput]:
    """The inputs of a model that need a feed."""
    weights = {item.name for item in model.graph.initializer}
    found = []
    for item in (each for each in model.graph.input if each.name not in weights):
        tensor, shape = item.type.tensor_type, None
        if tensor.HasField("shape"):
            shape = tuple(
                dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None
                for dim in tensor.shape.dim
            )
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        found.append(ModelInput(item.name, dtype, shape))
    return found


def load_samples(data: Any, inputs: list[ModelInput], limit: int) -> list[Feeds]:
    """The first samples of some data, at most `limit`.

    Parameters
    ----------
    data : path-like, mapping or iterable of mapping
        A folder, an .npz file, the arrays of one sample, or one mapping of arrays for each sample.
    inputs : list of ModelInput
        The inputs that each sample has to have.
    limit : int
        How many samples at most.

    Raises
    ------
    FeedError
        If there are no samples, a file cannot be read, or names, types or shapes do not fit.
    """
    found: list[Feeds] = []
    for where, arrays in _sources(data, inputs):
        found += _split(where, arrays, inputs)
        if len(found) >= limit:
            return found[:limit]
    if not found:
        named = data if isinstance(data, str | Path) else "the data given"
        raise FeedError(f"there is no sample in {named}; it needs {ACCEPTED}")
    return found


def require_one_shape(samples: Sequence[Feeds], calibration: str) -> None:
    """Refuses samples of different shapes, which ONNX Runtime's histograms do not take.

    Raises
    ------
    FeedError
        If the shapes of an input differ.
    """
    for name, first in samples[0].items():
        for shape in (each[name].shape for each in samples):
            if shape != first.shape:
                raise FeedError(
                    f"calibration {calibration!r} needs samples of one shape, but {name} is "
                    f"{first.shape} in the first and {shape} in another; take minmax, or samples "
                    "of one shape"
                )


def made_up(inputs: list[ModelInput], seed: int) -> Feeds:
    """One sample of random values; dynamic sizes are 1."""
    rng, found = np.random.default_rng(seed), {}
    for each in inputs:
        shape = [size if isinstance(size, int) else 1 for size in each.shape or ()]
        found[each.name] = random_array(shape, str(each.dtype), rng)
    return found


def _sources(data: Any, inputs: list[ModelInput]) -> Iterator[tuple[str, Feeds]]:
    """Yields the source of each file or mapping of arrays, and its arrays by input."""
    if isinstance(data, Mapping):
        yield "data", dict(data)
    elif isinstance(data, str) or hasattr(data, "__fspath__"):
        path = Path(data)
        if path.is_dir():
            yield from _folder(path, inputs)
        else:
            yield str(path), _read(path, inputs)
    elif isinstance(data, Iterable):
        for number, arrays in enumerate(data):
            yield f"sample {number}", dict(arrays)
    else:
        raise FeedError(
            f"data is a path, a mapping or a list of mappings, not {type(data).__name__}"
        )


def _folder(folder: Path, inputs: list[ModelInput]) -> Iterator[tuple[str, Feeds]]:
    """Yields the arrays of the files in a folder and its subfolders, ordered by name."""
    numbered: dict[int, Path] = {}
    for path in sorted(folder.iterdir()):
        match = re.fullmatch(r"input_(\d+)\.pb", path.name)
        if match:
            numbered[int(match[1])] = path
        elif path.is_dir():
            yield from _folder(path, inputs)
        elif path.suffix in (".npz", ".npy"):
            yield str(path), _read(path, inputs)
    if numbered:
        yield str(folder), _tensors([numbered[key] for key in sorted(numbered)], inputs)


def _read(path: Path, inputs: list[ModelInput]) -> Feeds:
    if path.suffix == ".pb":
        return _tensors([path], inputs)
    found = read_arrays(path, "arrays", f"; samples are {ACCEPTED}")
    if "" not in found:
        return found
    if len(inputs) != 1:
        raise FeedError(
            f"{path} has one array without a name, but the model has inputs {_names(inputs)}; "
            "write an .npz with an array for each"
        )
    return {inputs[0].name: found[""]}


def _tensors(paths: list[Path], inputs: list[ModelInput]) -> Feeds:
    """Reads tensors; if their names are not inputs, they follow the order of the inputs."""
    found: Feeds = {}
    known = [each.name for each in inputs]
    for place, path in enumerate(paths):
        try:
            tensor = onnx.TensorProto.FromString(path.read_bytes())
            array = numpy_helper.to_array(tensor)
        except Exception as error:  # protobuf's errors have no common base
            raise FeedError(f"{path} is no tensor of ONNX: {error}") from error
        if tensor.name not in known and place >= len(known):
            raise FeedError(f"{path} is one input too many: the model has inputs {_names(inputs)}")
        found[tensor.name if tensor.name in known else known[place]] = array
    return found


def _names(inputs: list[ModelInput]) -> str:
    return ", ".join(each.name for each in inputs)


def _split(where: str, arrays: Feeds, inputs: list[ModelInput]) -> list[Feeds]:
    """The arrays as a list of samples; several may be stacked along the first axis."""
    known = {each.name for each in inputs}
    missing = [name for name in known if name not in arrays]
    unknown = [name for name in arrays if name not in known]
    if missing or unknown:
        wrong = f"has no {', '.join(missing)}" if missing else f"has {', '.join(unknown)}"
        raise FeedError(
            f"{where} {wrong}, but a sample needs an array for each input and no other: "
            f"{_names(inputs)}"
        )
    parts = {each.name: _parts(where, each, np.asarray(arrays[each.name])) for each in inputs}
    counts = {len(part) for part in parts.values()}
    if len(counts) > 1:
        numbers = ", ".join(f"{len(part)} of {name}" for name, part in parts.items())
        raise FeedError(f"{where} has different numbers of samples: {numbers}")
    return [{name: part[k] for name, part in parts.items()} for k in range(max(counts, default=0))]


def _parts(where: str, wanted: ModelInput, array: np.ndarray) -> list[np.ndarray]:
    """The samples of one input, split along the first axis."""
    if array.dtype != wanted.dtype:
        raise FeedError(
            f"{where}: {wanted.name} is {array.dtype}, the model takes {wanted.described}; "
            f"convert it, for example with array.astype({str(wanted.dtype)!r})"
        )
    if shape_fits(wanted.shape, array.shape):
        return [array]
    if array.ndim and shape_fits(wanted.shape, array.shape[1:]):
        return list(array)
    size = wanted.shape[0] if wanted.shape else None
    if isinstance(size, int) and size > 0 and array.ndim and array.shape[0] % size == 0:
        pieces = np.split(array, array.shape[0] // size) if array.shape[0] else []
        if pieces and shape_fits(wanted.shape, pieces[0].shape):
            return pieces
    sizes = ", ".join(map(str, array.shape))
    text = f"{where}: {wanted.name} is {array.dtype}[{sizes}], the model takes {wanted.described}, "
    raise FeedError(f"{text}or several of them along a first axis")


OURS, THEIRS = "tvm_hybrid", "ONNX Runtime"
FLOAT, QUANTISED = "float32", "quantised"
_NARROW = ("u8s8", "+int", "+uint")  # parts of kernels' names
_PRODUCT = re.compile(r"_\d+x\d+")  # the tile of a microkernel
_ROUNDS = 10


class Pair:
    """The float32 and the quantised model, each in our runtime and in ONNX Runtime.

    Parameters
    ----------
    model : onnx.ModelProto
        The float32 model.
    path : Path
        The file of the quantised model.
    samples : sequence of mapping
        At least one sample of inputs. Sessions have dynamic shapes if the samples' shapes differ.
    num_threads : int or None
        See `CompileOptions`.

    Raises
    ------
    TvmHybridError
        If a model cannot be compiled, or ONNX Runtime is missing or refuses a model.
    """

    def __init__(
        self, model: onnx.ModelProto, path: Path, samples: Sequence[Feeds], num_threads: int | None
    ) -> None:
        self._path, self._sample = path, samples[0]
        shapes = [{name: array.shape for name, array in each.items()} for each in samples]
        self._shapes: dict[str, Any] = dict(shapes[0])
        alike = all(each == shapes[0] for each in shapes)
        fixed: dict[str, Any] = {"num_threads": num_threads, "cache": False, "progress": False}
        fixed["shapes"] = self._shapes if alike else None
        pairs = ((FLOAT, model), (QUANTISED, path))
        self._ours = {name: InferenceSession(each, **fixed) for name, each in pairs}
        self._outputs = self._ours[QUANTISED].run(None, self._sample)
        self._ours[FLOAT].run(None, self._sample)
        self.threads = self._ours[QUANTISED].executable.num_threads
        forms = ((FLOAT, model.SerializeToString()), (QUANTISED, str(path)))
        self._theirs = {name: optimised_session(each, self.threads) for name, each in forms}

    def reference(self, sample: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        """The float32 model's outputs, by ONNX Runtime."""
        outputs: Sequence[np.ndarray] = self._theirs[FLOAT].run(None, dict(sample))
        return outputs

    def runs(self) -> dict[str, Callable[[Mapping[str, np.ndarray]], Sequence[np.ndarray]]]:
        """The callables to compare with `reference`, by name."""
        return {
            f"{OURS} {FLOAT}": partial(self._ours[FLOAT].run, None),
            f"{OURS} {QUANTISED}": partial(self._ours[QUANTISED].run, None),
            f"{THEIRS} {QUANTISED}": partial(self._theirs[QUANTISED].run, None),
        }

    def complaint(self) -> tuple[str, Tolerance]:
        """How we differ from ONNX Runtime on the quantised model ("" if not), and the tolerance."""
        try:
            imported = import_onnx(self._path, self._shapes, None)
        except InputValueError as error:
            values = {name: self._sample[name] for name in error.inputs}
            imported = import_onnx(self._path, self._shapes, values)
        tolerance = ProductSums(imported.mod).tolerance()
        judge = Judge.of(self._path, self._sample, tolerance, self._outputs)
        found = judge.verdict(self._outputs, multiplies_bytes_fast=False)
        return found.complaint.removeprefix("differs "), tolerance

    def timings(self, seconds: float) -> dict[str, Timing]:
        """Times of one run of each model, measured in turns of `seconds` each."""
        contestants = {
            f"{whose} {name}": SessionContestant(sessions[name], self._sample)
            for whose, sessions in ((OURS, self._ours), (THEIRS, self._theirs))
            for name in (FLOAT, QUANTISED)
        }
        times, _ = interleave(contestants, _ROUNDS, seconds)
        return {name: Timing.of(found) for name, found in times.items()}

    def kernels(self) -> tuple[int, int]:
        """Numbers of product kernels in our quantised program: with narrow operands, and others."""
        kernels = (decision.kernel for decision in self._ours[QUANTISED].explain())
        products = list(filter(_PRODUCT.search, kernels))
        narrow = sum(any(word in kernel for word in _NARROW) for kernel in products)
        return narrow, len(products) - narrow
