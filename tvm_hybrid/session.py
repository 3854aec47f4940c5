"""InferenceSession: a replacement for ONNX Runtime's class of the same name."""

from __future__ import annotations

import functools
import os
import threading
from _thread import get_ident
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, SupportsIndex

import numpy as np
from tvm.runtime import Tensor

from microkernels.errors import ArtifactError, FeedError, InputValueError, ShapeError

from . import threads
from .api import compile as compile_model
from .artifact import is_library
from .dlpack import BFLOAT16, BITS, tensor_of
from .executable import Executable, load, refuse_copies
from .explanation import Explanation
from .feeds import ZERO_COPY_BYTES, aligned_empty, is_aligned, to_array
from .input_values import without_values
from .model_input import is_onnx
from .programs import Program, Programs
from .size_errors import raise_size_error
from .targets import TargetLike
from .tensors import (
    OpenTensorInfo,
    OutputInfo,
    TensorInfo,
    from_stored,
    is_narrow,
    numpy_dtype,
    to_stored,
)

from_dlpack, empty = np.from_dlpack, np.empty
# The C library keeps freed blocks of this size; larger ones may go back to the system, and cost a
# page fault every 4 KiB when they are used again.
NUMPY_KEEPS_BYTES = 1 << 16


class NodeArg:
    """An input or output, as ONNX Runtime describes it.

    Attributes
    ----------
    name : str
        As in the model.
    shape : list or None
        Sizes; a name or None for a dimension that is still open. None if the model does not tell
        how many dimensions there are before inputs are known.
    type : str or None
        Such as "tensor(float)"; None if the model does not tell before inputs are known.
    dtype : str or None
        NumPy's name of the element type, or that of ml_dtypes. None as `type`.
    """

    def __init__(self, info: TensorInfo | OutputInfo | OpenTensorInfo) -> None:
        self.name = info.name
        self.shape = None if info.shape is None else list(info.shape)
        self.type = info.type
        self.dtype = info.dtype

    def __repr__(self) -> str:
        return f"NodeArg(name={self.name!r}, type={self.type!r}, shape={self.shape})"


Feed = Callable[[Any], Any]


def _narrow_feeder(info: TensorInfo) -> Feed:
    """As `_feeder`, for types that compiled code takes as integers."""
    memory = aligned_empty(info.stored)
    tensor = tensor_of(memory)

    def feed(value: Any) -> Any:
        memory[...] = to_stored(to_array(value, info))
        return tensor

    return feed


def _feeder(info: TensorInfo, anywhere: bool) -> Feed:
    """What turns a caller's value for one input into what the model is called with.

    Small values are copied into aligned memory of this thread; a large one is handed over as it is
    if the kernels that read it can read it there.
    """
    if is_narrow(info.dtype):
        return _narrow_feeder(info)
    memory = aligned_empty(info)
    bfloat16 = info.dtype == "bfloat16"
    tensor = tensor_of(memory.view(BITS) if bfloat16 else memory)
    shape, dtype = info.shape, numpy_dtype(info.dtype)
    large = info.nbytes >= ZERO_COPY_BYTES

    def feed(value: Any) -> Any:
        if value.shape != shape or value.dtype is not dtype:
            value = to_array(value, info)
        if large and value.flags.carray and (anywhere or is_aligned(value)):
            return value.view(BITS) if bfloat16 else value
        memory[...] = value
        return tensor

    return feed


class _ThreadState:
    """What one thread runs with."""

    def __init__(self, executable: Executable) -> None:
        self.main = executable.numpy_main()
        anywhere = executable.manifest.unaligned_inputs
        self.feeds = [
            (info.name, _feeder(info, flag))
            for info, flag in zip(executable.inputs, anywhere, strict=True)
        ]


Run = Callable[..., list[np.ndarray]]


def _short_run(executable: Executable, main: Any, whole: Run) -> Run:
    """`InferenceSession.run` of a model with one input and one output, for the calling thread.

    Behind a kernel that has filled the caches with its weights every Python object costs a miss:
    this way takes 1 us less than the whole one (matmul 1x1024x1024), to which it leaves whatever
    is not the common case. A model that is one kernel with a small result needs no virtual machine,
    which saves another half.
    """
    (info,) = executable.inputs
    takes_bits, gives_bits = (info.dtype == "bfloat16" for info in (info, executable.outputs[0]))
    name, shape, dtype = info.name, info.shape, numpy_dtype(info.dtype)
    owner, count, in_force = get_ident(), executable.num_threads, threads.current
    bare = executable.bare_kernel()
    constants: tuple[Tensor, ...]
    (output,) = executable.outputs
    size = output.nbytes
    if bare is None or takes_bits or gives_bits or size is None or size > NUMPY_KEEPS_BYTES:
        kernel, constants = None, ()
    else:
        kernel, constants = bare
    result_shape, result_dtype = output.static_shape or (), numpy_dtype(output.dtype)

    def run(
        output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[np.ndarray]:
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
            if fits and (count == 1 or in_force.count == count):
                if kernel is not None:
                    result = empty(result_shape, result_dtype)
                    kernel(value, *constants, result)
                    return [result]
                try:
                    result = from_dlpack(main(value.view(BITS) if takes_bits else value))
                except RuntimeError as error:
                    raise_size_error(error)
                    raise
                return [result.view(BFLOAT16) if gives_bits else result]
        return whole(output_names, input_feed, run_options)

    return run


class InferenceSession:
    """A model ready to run on NumPy arrays.

    Parameters
    ----------
    model : path-like, bytes, onnx.ModelProto, tvm.IRModule, torch ExportedProgram or Executable
        The model, or a library that `Executable.export` wrote.
    shapes : mapping, optional
        As for `tvm_hybrid.compile`. An ONNX model with open dimensions for which none are given is
        compiled when inputs arrive, once for each combination of shapes.
    values : mapping, optional
        As for `tvm_hybrid.compile`. An ONNX model with parameters, such as axes or shapes, among
        its inputs is compiled when inputs arrive, once for each combination of those whose values
        are not given. `programs` says for which.
    target, precision, fusion, fast_math, records, num_threads, fallback
        As for `tvm_hybrid.compile`. A library is compiled already and takes none of them, except a
        `num_threads` equal to its own.

    Raises
    ------
    TvmHybridError
        As `tvm_hybrid.compile` and `tvm_hybrid.load`.

    Notes
    -----
    `run` may be called from several threads at once; they do not wait for each other. A session is
    neither copied nor pickled: for processes of `multiprocessing`, export its executable once,
    `session.executable.export("model.so")`, and make a session of the library in each of them.
    """

    def __init__(
        self,
        model: Any,
        *,
        shapes: Mapping[str, Any] | None = None,
        values: Mapping[str, Any] | None = None,
        target: TargetLike = None,
        precision: str = "auto",
        fusion: str = "coarse",
        fast_math: str = "default",
        records: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
        num_threads: int | None = None,
        fallback: TargetLike = None,
    ) -> None:
        self._programs: Programs | None = None
        if isinstance(model, (str, os.PathLike)) and is_library(Path(model)):
            defaults = (precision, fusion, fast_math) == ("auto", "coarse", "default")
            targets = (target, fallback) != (None, None)
            if shapes or values or targets or records is not None or not defaults:
                raise ArtifactError(
                    f"{model} is compiled already: shapes, values, target, fallback, fast_math, "
                    "precision, fusion and records cannot be given; compile the model anew"
                )
            model = load(model)
        if isinstance(model, Executable):
            if num_threads not in (None, model.num_threads):
                raise ArtifactError(
                    f"this model is compiled for {model.num_threads} threads, not {num_threads}; "
                    "compile it anew"
                )
            self.executable = model.for_host()
        else:
            threads.resolve_threads(num_threads, here=True)
            make = functools.partial(
                compile_model,
                target=target,
                precision=precision,
                fusion=fusion,
                fast_math=fast_math,
                records=records,
                num_threads=num_threads,
                fallback=fallback,
            )
            try:
                self.executable = make(model, shapes=shapes, values=values).for_host()
            except ShapeError:
                if shapes is not None or not is_onnx(model):
                    raise
                if not self._leave_open(model, make, {}, values or {}, ()):
                    raise
                return
            except InputValueError as error:
                if not error.inputs:
                    raise
                self._leave_open(model, make, shapes or {}, values or {}, error.inputs)
                return
        self._inputs = [NodeArg(info) for info in self.executable.inputs]
        self._outputs = [NodeArg(info) for info in self.executable.outputs]
        self._places = {info.name: i for i, info in enumerate(self.executable.outputs)}
        self._shared = self.executable.manifest.shared_outputs
        self._copies = any(self._shared)
        outputs = self.executable.outputs
        self._bits = [i for i, info in enumerate(outputs) if info.dtype == "bfloat16"]
        self._narrow = {i: x.dtype for i, x in enumerate(outputs) if is_narrow(x.dtype)}
        self._threads = self.executable.num_threads
        self._local = threading.local()

    def _leave_open(
        self,
        model: Any,
        make: Callable[..., Executable],
        shapes: Mapping[str, Any],
        values: Mapping[str, Any],
        parameters: tuple[str, ...],
    ) -> bool:
        """Puts compiling off until inputs arrive; False if no dimension and no value is open."""
        from .frontend import open_model

        opened = open_model(model)
        if not parameters and not any(info.is_open for info in opened.inputs):
            return False
        inputs = tuple(info for info in opened.inputs if info.name not in values)
        self._inputs = [NodeArg(info) for info in inputs]
        self._outputs = [NodeArg(info) for info in opened.outputs]

        def compile_for(
            arrived: dict[str, tuple[int, ...]], known: dict[str, np.ndarray]
        ) -> InferenceSession:
            return InferenceSession(
                make(opened.proto, shapes={**shapes, **arrived}, values={**values, **known})
            )

        programs = self._programs = Programs(inputs, parameters, compile_for)

        def run(
            output_names: Sequence[str] | None,
            input_feed: Mapping[str, Any],
            run_options: Any = None,
        ) -> list[np.ndarray]:
            session = programs.session_for(input_feed)
            self.executable = session.executable
            return session.run(output_names, input_feed, run_options)

        self.__dict__["run"] = run
        return True

    def __getattr__(self, name: str) -> Any:
        if name == "executable":
            raise ShapeError(
                f"{', '.join(map(repr, self._inputs))}: nothing is compiled before all sizes and "
                "parameters are known; run the session, or make it with shapes, such as "
                'shapes={"batch": 1}, and values, such as values={"axes": [1]}'
            )
        raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")

    def __reduce_ex__(self, _protocol: SupportsIndex) -> NoReturn:
        refuse_copies(self, "session.executable")

    @property
    def programs(self) -> tuple[Program, ...]:
        """The programs that are kept, with the shapes and values that they were made for.

        Each has the attributes `shapes`, `values` and `executable`. A session of a model whose
        shapes and parameters are known has one program. Others keep at most eight, the one used
        last at the end; the log says (level INFO) when one is compiled.
        """
        if self._programs is None:
            return (Program.of(self.executable),)
        return self._programs.kept()

    def get_inputs(self) -> list[NodeArg]:
        """The inputs, without those whose values were given."""
        return list(self._inputs)

    def get_outputs(self) -> list[NodeArg]:
        """The outputs."""
        return list(self._outputs)

    def explain(self) -> Explanation:
        """As `Executable.explain`; of what ran last if shapes or parameters were open."""
        return self.executable.explain()

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: Any = None,
    ) -> list[np.ndarray]:
        """Runs the model.

        Parameters
        ----------
        output_names : sequence of str or None
            The outputs wanted, in the order wanted; None for all.
        input_feed : mapping from str to array_like
            A value for every input: an array of exactly its shape and type, or a list. Arrays of
            bfloat16 and of types with 2, 4 or 8 bits per element, of inputs and outputs, are those
            of the package ml_dtypes. Inputs whose values were given may be left out; otherwise they
            are checked.
        run_options : None
            Accepted for compatibility; only None.

        Returns
        -------
        list of numpy.ndarray
            Fresh arrays, which later runs do not touch.

        Raises
        ------
        FeedError
            If a name, shape or type is wrong, an input has another value than was given, or values
            make sizes that do not fit the model.
        ModelError, CompileError
            If a model with open shapes or parameters cannot be compiled for these inputs.
        IsaError
            If the model was compiled for a CPU that this one is not.
        """
        try:
            state = self._local.state
        except AttributeError:
            state = self._local.state = self._new_state()
        if self._threads > 1 and threads.current.count != self._threads:
            threads.use_threads(self._threads)
        try:
            tensors = [feed(input_feed[name]) for name, feed in state.feeds]
            if len(input_feed) != len(tensors):
                raise KeyError
        except (LookupError, AttributeError, TypeError):
            tensors = self._feed_slowly(state, input_feed)
        if run_options is not None:
            raise FeedError("run_options are not supported; pass None")
        places = None if output_names is None else self._find(output_names)
        try:
            result = state.main(*tensors)
        except RuntimeError as error:
            raise_size_error(error)
            raise
        if type(result) is Tensor:
            arrays = [from_dlpack(result)]
        else:
            arrays = [from_dlpack(tensor) for tensor in result]
        for place in self._bits:
            arrays[place] = arrays[place].view(BFLOAT16)
        for place, dtype in self._narrow.items():
            arrays[place] = from_stored(arrays[place], dtype)
        if self._copies:
            arrays = [a.copy() if s else a for a, s in zip(arrays, self._shared, strict=True)]
        return arrays if places is None else [arrays[place] for place in places]

    def _new_state(self) -> _ThreadState:
        """What the calling thread runs with; the first one may get the short way."""
        state = _ThreadState(self.executable)
        manifest = self.executable.manifest
        plain = manifest.unaligned_inputs == (True,) and manifest.shared_outputs == (False,)
        narrow = bool(self._narrow) or any(is_narrow(info.dtype) for info in manifest.inputs)
        if plain and not narrow and "run" not in self.__dict__:
            self.__dict__["run"] = _short_run(self.executable, state.main, self.run)
        return state

    def _feed_slowly(self, state: _ThreadState, feeds: Any) -> list[Any]:
        """Feeds anything acceptable, or says what is not."""
        names = [info.name for info in self.executable.inputs]
        if not isinstance(feeds, Mapping):
            raise FeedError(
                f"the feeds must be a dictionary from input names ({', '.join(names)}) to arrays, "
                f"not {type(feeds).__name__}"
            )
        feeds = without_values(feeds, self.executable.values)
        if missing := [name for name in names if name not in feeds]:
            raise FeedError(f"no value for input {', '.join(map(repr, missing))}")
        if extra := [name for name in feeds if name not in names]:
            raise FeedError(
                f"the model has no input {', '.join(map(repr, extra))}; "
                f"its inputs are {', '.join(map(repr, names))}"
            )
        infos = self.executable.inputs
        return [
            feed(to_array(feeds[name], info))
            for info, (name, feed) in zip(infos, state.feeds, strict=True)
        ]

    def _find(self, names: Sequence[str]) -> list[int]:
        known = ", ".join(map(repr, self._places))
        if isinstance(names, str) or not isinstance(names, Sequence):
            raise FeedError(f"output names must be a list, not {names!r}; there are {known}")
        if not names:
            raise FeedError("no output is asked for; pass None for all")
        for name in names:
            if not isinstance(name, str) or name not in self._places:
                raise FeedError(f"the model has no output {name!r}; its outputs are {known}")
        if len(set(names)) != len(names):
            raise FeedError(f"an output is asked for twice: {list(names)}")
        return [self._places[name] for name in names]
