"""InferenceSession: a replacement for ONNX Runtime's class of the same name."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex

import numpy as np
from tvm.runtime import Tensor

from microkernels.base.errors import ArtifactError, FeedError, IsaError, OptionError, ShapeError
from microkernels.base.logs import logger

from ..executable.executable import Executable
from ..explain.explanation import Explanation
from ..library.artifact import is_library
from ..options import CompileOptions, SessionKeywords, chosen_options, given, setting_of
from ..runtime.feeds import (
    BFLOAT16,
    check_feeds,
    named_feeds,
    output_places,
    raise_size_error,
    to_array,
)
from ..runtime.stream_threads import Names, Results
from ..runtime.tensors import Described, from_stored, is_narrow, refuse_copies
from ..runtime.threads import current, use_setting
from .bound_run import Bound, BoundRun, copied
from .fast_start.session_start import STARTS, SessionStart
from .io_binding import IOBinding
from .model_programs import DynamicSession, ModelPrograms
from .onnxruntime_api.model_surface import NodeArg, SessionFace, loaded
from .onnxruntime_api.ort_value import plain
from .onnxruntime_api.run_options import check_run_options, without_unused
from .programs import KeptProgram, Programs
from .progress import ProgressLike
from .thread_runs import ThreadState, short_way

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .sequences import SequencePrograms

from_dlpack = np.from_dlpack


class InferenceSession(SessionStart):
    """A model ready to run on NumPy arrays; the first four arguments are those of ONNX Runtime.

    Parameters
    ----------
    path_or_bytes : path-like, bytes, onnx.ModelProto, tvm.IRModule, ExportedProgram or Executable
        The model, or a library that `Executable.export` wrote.
    sess_options : SessionOptions, optional
        Options under ONNX Runtime's names. The arguments below override them.
    providers : sequence of str or (str, dict), optional
        Only "CPUExecutionProvider" exists; others are ignored, with a warning of Python's
        `warnings`.
    provider_options : sequence of dict, optional
        Options of each provider; none has a meaning here.
    options : CompileOptions, optional
        How the model is compiled.
    streams : int, optional
        Number of requests that run at once, each on its share of `num_threads`, at least one
        thread; they share the weights. Callers of `run` wait for their turn. A library or an
        Executable has the number of threads of one stream. None: callers of `run` do not wait for
        each other; `run_async` and `submit` use one stream.
    queue_size : int, optional
        Number of requests of `run_async` and `submit` that may wait; None: four for each stream.
    progress : callable, bool or None
        Reports the progress of compiling, here and in calls of `run` that compile. A callable gets
        every `Stage`, in the thread that compiles; an exception that it raises ends compiling.
        None: after two seconds a line on standard error reports it, unless TVM_HYBRID_PROGRESS=0,
        or the `log_severity_level` of `sess_options` or of the logger is 3 or more. True: always
        writes the line; False: no report.
    start : str
        "fast": if the program of an ONNX model is not in the cache, the session answers by NumPy
        while a thread compiles the program; calls of `run` use the program as soon as it is ready.
        Results differ like floats that are added in another order; errors of compiling are raised
        by `ready` and the next `run`. Everything that needs the program waits for it. "compiled":
        compiles the program first.
    **keywords
        Fields of `CompileOptions`, such as `target`, `shapes` and `num_threads`, which override
        those of `options`: all but `strict`, `dump_ir` and `keep_dynamic`. With `cache`, programs
        of an ONNX model are kept, too.

    Raises
    ------
    TvmHybridError
        See `tvm_hybrid.compile` and `tvm_hybrid.load`.
    TargetError
        If `streams` or `queue_size` is out of range, or `threads` is a place and there are streams.
    OptionError
        If an option of `sess_options` would change results, or one of these arguments has a wrong
        form.

    Notes
    -----
    `shapes` may give all dynamic dimensions, some, or none. An ONNX model with further dynamic
    dimensions is compiled once, for all sizes, if its products, convolutions and normalisations
    stay as fast; else it is compiled when inputs arrive, once for each combination of shapes.
    `explain` and the log (level INFO) say why.

    An ONNX model whose inputs include parameters, such as axes, shapes or the condition of a
    branch, has a program for each combination of those that `values` does not give. It is compiled
    when they arrive; both programs of a single boolean, such as `use_cache_branch`, are compiled
    here. `programs` lists the values of each program.

    A model with inputs or outputs that are sequences of tensors, or optional, takes and returns
    lists of arrays, and None for an absent value, as in ONNX Runtime. It has a program for each
    number of elements, compiled when they arrive. It has no fast start, no profile, and no IO
    binding.

    A library is compiled already: it has a fixed number of threads, and takes `threads`, `weights`
    and `spin` like `tvm_hybrid.load`. An Executable has fixed values of these, too.

    `run` may be called from several threads at once; without `streams` they do not wait for each
    other. `with InferenceSession(...) as session` closes the session at the end. A session cannot
    be copied or pickled: for processes of `multiprocessing`, export its executable once,
    `session.executable.export("model.so")`, and make a session of the library in each process.
    """

    def __init__(
        self,
        path_or_bytes: Any,
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Any] | None = None,
        *,
        options: CompileOptions | None = None,
        streams: int | None = None,
        queue_size: int | None = None,
        progress: ProgressLike = None,
        start: str = "compiled",
        **keywords: Unpack[SessionKeywords],
    ) -> None:
        if start not in STARTS:
            raise OptionError(f"start must be one of {', '.join(STARTS)}, not {start!r}")
        options = chosen_options(options, without_unused(keywords), SessionKeywords)
        self._make_streams(streams, queue_size, options.threads)
        model = path_or_bytes
        self._face = face = SessionFace(model, sess_options, providers, provider_options, progress)
        options = replace(
            options,
            shapes=face.shapes(options.shapes) or None,
            values=options.values or None,
            num_threads=face.num_threads(options.num_threads, options.threads),
        )
        if isinstance(model, (str, os.PathLike)) and is_library(Path(model)):
            model = loaded(Path(model), options)
            options = replace(options, threads=None, weights=None, spin=None)
        if isinstance(model, Executable):
            threads = options.threads
            wanted = options.num_threads if threads is None else threads
            if isinstance(wanted, int):
                wanted = self._share_of(wanted)
            if isinstance(wanted, int) and wanted != model.num_threads:
                raise ArtifactError(
                    f"this model is compiled for {model.num_threads} threads, not {wanted}; "
                    "compile it anew"
                )
            if given(options) & {"weights", "spin"} or not isinstance(threads, int | None):
                raise ArtifactError(
                    "an Executable has its threads and weights where it was compiled or loaded "
                    "to; give threads, weights and spin there"
                )
            self._require_unbound(model.setting.cpus)
            with (
                contextlib.suppress(IsaError),
                face.progress.shown(not_kept="it was compiled apart"),
            ):
                model.for_host().make_code()
            self._use(model)
            self._finish()
        else:
            setting = setting_of(options, here=True)
            if streams is not None:
                share = self._share_of(setting.count)
                options = replace(options, num_threads=share, threads=None)
            if face.has_sequences:
                if start == "fast":
                    self._start_note = "no fast start: the model's inputs or outputs are sequences"
                self._open_sequences(model, options, progress)
                return
            shapes, values = options.shapes, options.values
            programs = ModelPrograms(model, options, face.progress)
            if start != "fast" or not self._begin_fast(programs, shapes, values):
                self._compile(programs, shapes, values)
                self._finish()

    def _use(self, found: Executable) -> None:
        """Makes the session run this program, or its fallback."""
        self._programs: Programs | SequencePrograms | None = None
        self.executable = found.for_host()
        declared = found.declared if self.executable.is_dynamic else None
        known = {value.name for value in self.executable.values}
        inputs: Iterable[Described] = self.executable.inputs
        outputs: Iterable[Described] = self.executable.outputs
        if declared is not None:
            inputs = (info for info in declared.inputs if info.name not in known)
            outputs = declared.outputs
        self._inputs = [NodeArg(info) for info in inputs]
        self._outputs = [NodeArg(info) for info in outputs]
        self._names = {info.name for info in self.executable.inputs}
        self._places = {info.name: i for i, info in enumerate(self.executable.outputs)}
        self._shared = self.executable.manifest.shared_outputs
        self._copies = any(self._shared)
        outputs = self.executable.outputs
        self._bits = [i for i, info in enumerate(outputs) if info.dtype == "bfloat16"]
        self._narrow = {i: x.dtype for i, x in enumerate(outputs) if is_narrow(x.dtype)}
        self._setting = self.executable.setting
        self._parallel = self._setting.count > 1
        self._is_dynamic = self.executable.is_dynamic
        self._local = threading.local()
        with contextlib.suppress(IsaError):  # a program for another CPU can be inspected
            self.executable.make_code()
        self._runner = self._face.watched(self.executable)

    def _compile(
        self,
        programs: ModelPrograms,
        shapes: Mapping[str, Any] | None,
        values: Mapping[str, Any] | None,
    ) -> None:
        """Makes the program for all sizes, or prepares to compile when inputs arrive."""
        found = programs.for_all_sizes(shapes, values)
        if isinstance(found, Executable):
            self._use(found)
            return
        logger.info("a program for each combination of inputs: %s", found.reason)
        sizes, fixed = shapes or {}, values or {}
        inputs = tuple(info for info in found.declared.inputs if info.name not in fixed)
        self._inputs = [NodeArg(info) for info in inputs]
        self._outputs = [NodeArg(info) for info in found.declared.outputs]

        watched = self._face.watched

        def program_for(
            arrived: dict[str, tuple[int, ...]] | None, known: dict[str, np.ndarray]
        ) -> InferenceSession | DynamicSession:
            known = {**fixed, **known}
            made: Executable | DynamicSession
            if arrived is None:
                made = programs.for_all_sizes(sizes, known)
            else:
                made = programs.for_sizes({**sizes, **arrived}, known)
            if isinstance(made, DynamicSession):
                return made
            session = InferenceSession(made, progress=False)
            session._runner = watched(session.executable)
            return session

        several = Programs(inputs, found, program_for)
        several.make_for_flag()

        def run(output_names: Names, input_feed: Any, run_options: Any = None) -> Results:
            session = several.session_for(input_feed)
            self.executable = session.executable
            return session.run(output_names, several.without_parameters(input_feed), run_options)

        self._programs = several
        self.__dict__["run"] = run

    def _open_sequences(self, model: Any, options: CompileOptions, progress: ProgressLike) -> None:
        """Prepares a session for each number of elements of the model's sequences."""
        from .sequences import SequencePrograms

        if self._face.profiler is not None:
            raise OptionError("enable_profiling: a model of sequences cannot be profiled")
        several = SequencePrograms(
            model, lambda flat: InferenceSession(flat, options=options, progress=progress)
        )
        self._inputs, self._outputs, self._programs = several.inputs, several.outputs, several

        def run(output_names: Names, input_feed: Any, run_options: Any = None) -> Results:
            session, results = several.run(output_names, input_feed, run_options)
            self.executable = session.executable
            return results

        self.__dict__["run"] = run
        self._finish()

    def __getattr__(self, name: str) -> Any:
        if self._waited_for(name):
            return getattr(self, name)
        programs = vars(self).get("_programs")
        if name == "executable" and programs is not None:
            raise ShapeError(
                f"{', '.join(map(repr, self._inputs))}: the session has a program for each "
                "combination of parameters or sizes, and no program has run yet; run the session, "
                'or make it with shapes, such as shapes={"batch": 1}, and values, such as '
                f'values={{"axes": [1]}} (there is no single program because '
                f"{programs.reason})"
            )
        raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")

    def __reduce_ex__(self, _protocol: SupportsIndex) -> NoReturn:
        refuse_copies(self, "session.executable")

    @property
    def programs(self) -> tuple[KeptProgram, ...]:
        """The kept programs, with the shapes and values that they were compiled for.

        Each has the attributes `shapes`, `values` and `executable`. A session has one program if
        its model has static shapes and no parameters, or is compiled for all sizes; then `shapes`
        has the names of dynamic dimensions. Other sessions keep at most eight programs, the most
        recently used last; the log says (level INFO) when one is compiled.
        """
        if self._programs is None:
            return (KeptProgram.of(self.executable),)
        return self._programs.kept()

    def get_inputs(self) -> list[NodeArg]:
        """The inputs, except those with known values."""
        return list(self._inputs)

    def get_outputs(self) -> list[NodeArg]:
        """The outputs."""
        return list(self._outputs)

    def explain(self) -> Explanation:
        """Explains the program, or of several the last one that ran; see `Executable.explain`.

        Streams have a note. While the program is compiled, it says that NumPy runs every node.
        """
        if self._answers is not None and "executable" not in vars(self):
            return self._answers.explain()
        executable = self.executable
        explained = executable.explain()
        if self._programs is not None:
            explained = explained.noting(self._programs.why_several(executable))
        explained = explained.noting(self._stream_note(self.executable.num_threads))
        return explained.noting(self._start_note)

    def run(
        self, output_names: Names, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> Results:
        """Runs the model.

        Parameters
        ----------
        output_names : sequence of str or None
            The wanted outputs in order; None, or an empty sequence, for all.
        input_feed : mapping from str to array_like
            A value for every input: an array of exactly its shape and type, or a list. Arrays of
            bfloat16, and of types with 2, 4 or 8 bits per element, use the types of the package
            ml_dtypes. Inputs with known values may be left out; otherwise they are checked.
        run_options : RunOptions or None
            Only checked; see `RunOptions`.

        Returns
        -------
        list of numpy.ndarray
            New arrays, which later runs do not change.

        Raises
        ------
        FeedError
            If a name, shape or type is wrong, an input differs from its known value, or values lead
            to sizes that do not fit the model.
        OptionError
            If `run_options` has a wrong type, or asks to end the run.
        ModelError, CompileError
            If a model with dynamic shapes or parameters cannot be compiled for these inputs.
        IsaError
            If the model was compiled for another CPU.
        SessionClosedError
            If the session is closed.
        """
        try:
            state = self._local.state
        except AttributeError:
            state = self._local.state = self._new_state()
        if self._parallel and current.setting is not self._setting:
            use_setting(self._setting)
        try:
            tensors = [feed(input_feed[name]) for name, feed in state.feeds]
            if len(input_feed) != len(tensors):
                raise KeyError
        except (LookupError, AttributeError, TypeError):
            tensors = self._feed_slowly(state, input_feed)
        if run_options is not None:
            check_run_options(run_options)
        places = None if output_names is None else output_places(output_names, self._places)
        try:
            result = state.main(*tensors)
        except Exception as error:
            if self._is_dynamic:
                self._check_feeds(input_feed)
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

    def io_binding(self) -> IOBinding:
        """Makes an empty binding of inputs and outputs, for `run_with_iobinding`."""
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: Any = None) -> None:
        """Runs the model on bound arrays; outputs are in these, and in `get_outputs`.

        Parameters
        ----------
        iobinding : IOBinding
            Every input must be bound, and the wanted outputs.
        run_options : RunOptions or None
            See `run`.

        Raises
        ------
        FeedError
            See `run`; also if an output is bound to an array of another shape or type, or that
            overlaps an input or another output.
        ModelError, CompileError, IsaError
            See `run`.
        """
        if run_options is not None:
            check_run_options(run_options)
        feeds, bound = iobinding.bound_inputs, iobinding.bound_outputs
        if not bound:
            raise FeedError("no output is bound; bind_output(name) has the session make an array")
        session = self if self._programs is None else self._programs.session_for(feeds)
        self.executable = session.executable
        arrays = session._run_bound(feeds, bound)
        iobinding.keep([arrays[session._places[name]] for name in bound])

    def _run_bound(self, feeds: Mapping[str, Any], bound: Bound) -> list[np.ndarray]:
        """Returns all outputs, with the bound arrays among them."""
        if not self.executable.manifest.bound_outputs:
            arrays = InferenceSession.run(self, None, feeds)  # needs no other stream's slot
            for place, info in enumerate(self.executable.outputs):
                if (given := bound.get(info.name)) is not None:
                    arrays[place] = copied(arrays[place], info, given)
            return arrays
        try:
            runner = self._local.bound
        except AttributeError:
            runner = self._local.bound = BoundRun(self._runner)
        if self._parallel and current.setting is not self._setting:
            use_setting(self._setting)
        feeds = self._named_feeds(feeds)
        try:
            return runner.run(feeds, bound)
        except FeedError:
            raise
        except Exception as error:
            self._check_feeds(feeds)
            raise_size_error(error)
            raise

    def _check_feeds(self, feeds: Mapping[str, Any]) -> None:
        """Raises an error that names the wrong sizes; the program only says that some are wrong."""
        manifest = self.executable.manifest
        values = [plain(feeds[info.name]) for info in manifest.inputs]
        check_feeds(values, manifest.inputs, manifest.limits)

    def _new_state(self) -> ThreadState:
        """Makes the calling thread's state; the first thread may get the short way."""
        state = ThreadState(self._runner)
        if "run" not in self.__dict__:
            short = short_way(self._runner, state.main, self.run)
            if short is not None:
                self.__dict__["run"] = short
        return state

    def _feed_slowly(self, state: ThreadState, feeds: Any) -> list[Any]:
        """Converts any acceptable feeds, or says what is wrong."""
        feeds = self._named_feeds(feeds)
        infos = self.executable.inputs
        return [
            feed(to_array(feeds[name], info))
            for info, (name, feed) in zip(infos, state.feeds, strict=True)
        ]

    def _named_feeds(self, feeds: Any) -> Mapping[str, Any]:
        """Feeds of exactly the program's inputs."""
        if type(feeds) is dict and feeds.keys() == self._names:
            return feeds
        names = [info.name for info in self.executable.inputs]
        return named_feeds(feeds, names, self.executable.values)
