"""SessionStart: lets an InferenceSession answer before its program is compiled."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from microkernels.base.errors import CompileError
from microkernels.base.logs import logger

from ...runtime.feeds import output_places
from ...runtime.stream_threads import Names, Results
from ..onnxruntime_api.model_surface import NodeArg, SessionMethods
from ..onnxruntime_api.ort_value import plain
from ..onnxruntime_api.run_options import check_run_options
from ..programs import Programs

if TYPE_CHECKING:
    from ..model_programs import Given, ModelPrograms
    from ..sequences import SequencePrograms
    from .background import Compilation, NumpyAnswers

Run = Callable[..., Results]
STARTS = ("compiled", "fast")
AWAITED = ("executable", "_programs", "_names", "_local", "_runner")
"""Attributes of a session that exist once its program is ready."""


class SessionStart(SessionMethods):
    """The part of a session that implements `start="fast"`."""

    _compilation: Compilation | None = None
    _answers: NumpyAnswers | None = None
    _start_note = ""  # why there was no fast start
    _programs: Programs | SequencePrograms | None
    _inputs: list[NodeArg]
    _outputs: list[NodeArg]
    _places: dict[str, int]

    if TYPE_CHECKING:

        def _compile(self, programs: ModelPrograms, shapes: Given, values: Given) -> None: ...

    def ready(self, timeout: float | None = None) -> bool:
        """Waits until the program is ready, if the session was made with `start="fast"`.

        Parameters
        ----------
        timeout : float, optional
            Most seconds to wait; 0 does not wait.

        Returns
        -------
        bool
            Whether calls of `run` use the program. If each combination of parameters or sizes has
            its own program: whether that is known already; NumPy answers while one is compiled.

        Raises
        ------
        TvmHybridError
            The error of compiling.
        """
        return self._compilation is None or self._compilation.wait(timeout)

    def _begin_fast(self, programs: ModelPrograms, shapes: Given, values: Given) -> bool:
        """Answers by NumPy and compiles in a thread; False if impossible or unnecessary."""
        from .background import Compilation, NumpyAnswers

        if programs.kept_for_all_sizes(shapes, values) is not None:
            return False
        try:
            opened = programs.open(shapes, from_now_on=False)
            answers = self._answers = NumpyAnswers(opened, values or {})
        except CompileError as error:
            self._start_note = f"no fast start: {error}"
            logger.info("%s", self._start_note)
            return False
        self._inputs = list(map(NodeArg, answers.inputs))
        self._outputs = list(map(NodeArg, answers.outputs))
        self._places = {info.name: place for place, info in enumerate(answers.outputs)}

        def run(output_names: Names, input_feed: Any, run_options: Any = None) -> Results:
            what = output_names, input_feed, run_options
            return self._run_early(compilation, self._direct_run, *what)

        def make() -> None:
            self._compile(programs, shapes, values)
            if vars(self).get("run") is run:
                del self.__dict__["run"]  # from now on, the class's method is called
            if isinstance(self._programs, Programs):
                self.__dict__["run"] = self._by_combination(self._programs, self.run)
            else:
                self._answers = None  # frees the weights
            self._finish()
            if self._requests.is_closed:
                self.close()

        self.__dict__["run"] = run
        compilation = self._compilation = Compilation(make)
        return True

    def _by_combination(self, programs: Programs, run: Run) -> Run:
        """Makes a `run` for one program per combination of inputs; NumPy answers meanwhile."""
        from .background import Compilation

        made: dict[Any, Compilation] = {}
        lock = threading.Lock()

        def combined(output_names: Names, input_feed: Any, run_options: Any = None) -> Results:
            what = output_names, input_feed, run_options
            key = programs.missing(input_feed)
            if key is None:
                return run(*what)
            copies = {name: np.array(plain(each)) for name, each in input_feed.items()}
            with lock:
                compilation = made.get(key)
                if compilation is None:
                    compilation = Compilation(partial(programs.session_for, copies))
                    made[key] = compilation
                elif compilation.is_done:  # it failed, or its program was dropped
                    del made[key]
                    return run(*what)
            return self._run_early(compilation, lambda: run, *what)

        return combined

    def _run_early(
        self, compilation: Compilation, program: Callable[[], Run], *what: Any
    ) -> Results:
        """Answers by NumPy or, if it is ready first, by the program."""
        names, feeds, run_options = what
        answers = self._answers
        if answers is None or compilation.is_done:
            compilation.wait()
            return program()(*what)
        if run_options is not None:
            check_run_options(run_options)
        places = None if names is None else output_places(names, self._places)
        arrays = answers.answer(answers.arrays_of(feeds), compilation)
        if arrays is None:
            compilation.wait()
            return program()(*what)
        return arrays if places is None else [arrays[place] for place in places]

    def _waited_for(self, name: str) -> bool:
        """Waits for the program if the attribute needs it; True if the attribute now exists."""
        compilation = self._compilation
        if compilation is None or compilation.is_done or name not in AWAITED:
            return False
        return threading.current_thread() is not compilation.thread and compilation.wait()
