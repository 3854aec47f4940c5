"""Arrays to feed to a model: from files, or random where none is given."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import ml_dtypes
import numpy as np

from microkernels.base.errors import FeedError

from ..runtime.feeds import sample_shapes
from ..runtime.input_values import arrays_of
from ..runtime.tensors import numpy_dtype

if TYPE_CHECKING:
    from ..executable.executable import Executable


class TensorLike(Protocol):
    """What describes an input: `frontend.TensorInfo`, or a session's input."""

    @property
    def name(self) -> str:
        """The input's name."""

    @property
    def shape(self) -> Sequence[Any]:
        """Its sizes; of an open one random arrays have 1."""

    @property
    def dtype(self) -> str:
        """Its NumPy type's name."""


def load_feeds(arrays: Iterable[str], archive: Path | None = None) -> dict[str, np.ndarray]:
    """Reads `NAME=FILE.npy` items and an archive; the items win.

    Raises
    ------
    FeedError
        If an item has no name, or a file cannot be read as what its name says.
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


def _load(path: Path, expected: str) -> dict[str, np.ndarray]:
    """The arrays of a file by name; that of an .npy file is called ""."""
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            found = {"": as_saved(loaded)}
        else:
            with loaded:
                found = {name: as_saved(loaded[name]) for name in loaded.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise FeedError(f"{path} cannot be read as {expected}: {error}") from error
    if ("" in found) != expected.startswith("one"):
        raise FeedError(f"{path} is not {expected}")
    return found


def as_saved(array: np.ndarray) -> np.ndarray:
    """An array as it was before NumPy wrote it: its files keep bfloat16 only as nameless bits."""
    return array.view(ml_dtypes.bfloat16) if array.dtype.str == "|V2" else array


def save_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes an .npz archive; unlike `numpy.savez`, it takes arrays of any name ("file", ...)."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)


def random_array(shape: Sequence[int], dtype: str, rng: np.random.Generator) -> np.ndarray:
    """Values that any model can take: standard normal floats, integers and booleans 0 or 1."""
    wanted = numpy_dtype(dtype)
    if wanted.kind == "f" or "float" in dtype:
        return rng.standard_normal(shape).astype(wanted)
    return rng.integers(0, 2, shape).astype(wanted)


def complete_feeds(
    inputs: Sequence[TensorLike], given: Mapping[str, np.ndarray], seed: int = 0
) -> tuple[dict[str, np.ndarray], list[str]]:
    """The given arrays, and random ones for the other inputs.

    Returns
    -------
    feeds : dict
        An array for every input. Given arrays are passed on as they are: the session checks them.
    drawn : list of str
        Names of the inputs that got random values.

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
    """The same for all inputs of a program's model, with the values that it was made for.

    Raises
    ------
    FeedError
        If an array is given for an input that the model does not have.
    """
    inputs: list[TensorLike] = [*executable.inputs, *executable.values]
    return complete_feeds(inputs, {**arrays_of(executable.values), **given}, seed)
