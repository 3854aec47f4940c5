"""A session's state for each thread that runs it, and its short way of running."""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm.runtime import Tensor

from ..executable.executable import Executable
from ..runtime import feeds, threads
from ..runtime.stream_threads import Names
from ..runtime.tensors import OutputInfo, TensorInfo, is_narrow, numpy_dtype, to_stored

from_dlpack, empty = np.from_dlpack, np.empty
# malloc keeps freed blocks of this size. Larger ones may go back to the system, and then cost a
# page fault for every 4 KiB when they are used again.
NUMPY_KEEPS_BYTES = 1 << 16

Feed = Callable[[Any], Any]


def _narrow_feeder(info: TensorInfo) -> Feed:
    """Makes a feeder (see `_feeder`) for types that compiled code takes as integers."""
    memory = feeds.aligned_empty(info.stored)
    tensor = feeds.tensor_of(memory)

    def feed(value: Any) -> Any:
        memory[...] = to_stored(feeds.to_array(value, info))
        return tensor

    return feed


def _dynamic_feeder(info: TensorInfo, anywhere: bool) -> Feed:
    """Makes a feeder (see `_feeder`) for dynamic shapes; its copies grow as needed."""
    bfloat16, narrow = info.dtype == "bfloat16", is_narrow(info.dtype)
    dtype, rank = numpy_dtype(info.dtype), len(info.shape)
    memory = feeds.aligned_empty(TensorInfo("", (feeds.ZERO_COPY_BYTES,), "uint8"))

    def feed(value: Any) -> Any:
        nonlocal memory
        if value.ndim != rank or value.dtype is not dtype or narrow:
            value = to_stored(feeds.to_array(value, info))
        if bfloat16:
            value = value.view(feeds.BITS)
        if not value.size:
            return feeds.tensor_of(value)
        large = value.nbytes >= feeds.ZERO_COPY_BYTES
        if large and value.flags.carray and (anywhere or feeds.is_aligned(value)):
            return value
        if value.nbytes > memory.size:
            memory = feeds.aligned_empty(TensorInfo("", (value.nbytes,), "uint8"))
        copy = memory[: value.nbytes].view(value.dtype).reshape(value.shape)
        copy[...] = value
        return copy

    return feed


def _feeder(info: TensorInfo, anywhere: bool) -> Feed:
    """Makes a function that converts a caller's value for one input to an argument of the model."""
    if info.static_shape is None:
        return _dynamic_feeder(info, anywhere)
    if is_narrow(info.dtype):
        return _narrow_feeder(info)
    # Small values are copied into aligned memory of this thread. Large ones are passed without a
    # copy if the kernels can read them where they are.
    memory = feeds.aligned_empty(info)
    bfloat16 = info.dtype == "bfloat16"
    tensor = feeds.tensor_of(memory.view(feeds.BITS) if bfloat16 else memory)
    shape, dtype = info.shape, numpy_dtype(info.dtype)
    large = info.nbytes >= feeds.ZERO_COPY_BYTES

    def feed(value: Any) -> Any:
        if value.shape != shape or value.dtype is not dtype:
            value = feeds.to_array(value, info)
        if large and value.flags.carray and (anywhere or feeds.is_aligned(value)):
            return value.view(feeds.BITS) if bfloat16 else value
        memory[...] = value
        return tensor

    return feed


class ThreadState:
    """Everything that one thread runs with.

    Attributes
    ----------
    main : callable
        The function of the virtual machine.
    feeds : list
        Input name, and function that converts a caller's value to an argument of `main`.
    """

    def __init__(self, executable: Executable) -> None:
        self.main = executable.numpy_main()
        anywhere = executable.manifest.unaligned_inputs
        self.feeds = [
            (info.name, _feeder(info, flag))
            for info, flag in zip(executable.inputs, anywhere, strict=True)
        ]


Run = Callable[..., list[np.ndarray]]


def short_way(executable: Executable, main: Any, whole: Run) -> Run | None:
    """A fast `run` for the calling thread; None if the program is not simple enough."""
    manifest = executable.manifest
    infos: list[TensorInfo | OutputInfo] = [*manifest.inputs, *manifest.outputs]
    if len(manifest.outputs) != 1 or manifest.unaligned_inputs not in ((), (True,)):
        return None
    if executable.is_dynamic or any(is_narrow(info.dtype) or 0 in info.shape for info in infos):
        return None
    short = _short_run if manifest.inputs else _short_constant_run
    return short(executable, main, whole)


def _short_run(executable: Executable, main: Any, whole: Run) -> Run:
    """Makes a fast `InferenceSession.run` for one input and one output, for the calling thread.

    After a kernel that has filled the caches with its weights, every Python object costs a cache
    miss: this way takes 1 us less than `whole` (matmul 1x1024x1024), to which it leaves all rare
    cases. A model of one kernel with a small result needs no virtual machine, which saves another
    0.5 us.
    """
    (info,) = executable.inputs
    takes_bits, gives_bits = (info.dtype == "bfloat16" for info in (info, executable.outputs[0]))
    name, shape, dtype = info.name, info.shape, numpy_dtype(info.dtype)
    owner, setting, in_force = get_ident(), executable.setting, threads.current
    serial = setting.count == 1
    (shared,) = executable.manifest.shared_outputs
    bare = executable.bare_kernel()
    constants: tuple[Tensor, ...]
    (output,) = executable.outputs
    size = output.nbytes
    if bare is None or size is None or size > NUMPY_KEEPS_BYTES:
        kernel, constants = None, ()
    else:
        kernel, constants = bare
    result_shape = output.static_shape or ()
    result_dtype = feeds.BITS if gives_bits else numpy_dtype(output.dtype)

    def run(output_names: Names, input_feed: Any, run_options: Any = None) -> list[np.ndarray]:
        if output_names is None and run_options is None and get_ident() == owner:
            try:
                value = input_feed[name]
                fits = (
                    value.shape == shape
                    and value.dtype is dtype
                    and value.flags.carray
                    and len(input_feed) == 1
                )
            except (LookupError, AttributeError, TypeError):
                fits = False
            if fits and (serial or in_force.setting is setting):
                if takes_bits:
                    value = value.view(feeds.BITS)
                try:
                    if kernel is None:
                        result = from_dlpack(main(value))
                        if shared:
                            result = result.copy()
                    else:
                        result = empty(result_shape, result_dtype)
                        kernel(value, *constants, result)
                except Exception as error:
                    feeds.raise_size_error(error)
                    raise
                return [result.view(feeds.BFLOAT16) if gives_bits else result]
        return whole(output_names, input_feed, run_options)

    return run


def _short_constant_run(executable: Executable, main: Any, whole: Run) -> Run:
    """Makes a fast `run` for one output and no input, such as a range of known values."""
    owner, setting, in_force = get_ident(), executable.setting, threads.current
    serial = setting.count == 1
    (shared,) = executable.manifest.shared_outputs
    is_bfloat16 = executable.outputs[0].dtype == "bfloat16"

    def run(output_names: Names, input_feed: Any, run_options: Any = None) -> list[np.ndarray]:
        plain = output_names is None and run_options is None and input_feed == {}
        if plain and get_ident() == owner and (serial or in_force.setting is setting):
            try:
                result = from_dlpack(main())
            except Exception as error:
                feeds.raise_size_error(error)
                raise
            if shared:
                result = result.copy()
            return [result.view(feeds.BFLOAT16) if is_bfloat16 else result]
        return whole(output_names, input_feed, run_options)

    return run
