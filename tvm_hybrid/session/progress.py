"""Progress: reports the stages of compiling; after two seconds, as a line on standard error.

    tvm_hybrid: compiling model.onnx: stage 9 of 10 (3 of 12 done), kernels optimised by LLVM

A terminal shows and updates the line until compiling ends; then the line says how long it took, and
whether the program is kept. Elsewhere the line is written once. Each compilation has a thread that
writes its line, and that ends with it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from microkernels.base.errors import OptionError
from relay_passes.ir.stages import Listener, Stage, has_listener, listening

PROGRESS_VARIABLE = "TVM_HYBRID_PROGRESS"
DELAY = 2.0  # seconds until the line appears
REFRESH = 0.25  # seconds between updates on a terminal
KEPT = "kept for the next start"

ProgressLike = Listener | bool | None


class Progress:
    """Reports the progress of a session's compilations.

    Parameters
    ----------
    wanted : callable, bool or None
        A callable gets every `Stage`, and no line is written. False: no report. True: the line is
        written. None: the line is written unless TVM_HYBRID_PROGRESS=0 or `quiet`.
    name : str
        Name of the model.
    quiet : bool
        Whether the session logs only errors.

    Raises
    ------
    OptionError
        If `wanted` is something else.
    """

    def __init__(self, wanted: ProgressLike, name: str, quiet: bool) -> None:
        if not (wanted is None or isinstance(wanted, bool) or callable(wanted)):
            raise OptionError(
                f"progress must be a callable, True, False or None, not {wanted!r}; "
                "a callable gets every stage of compiling"
            )
        self._name = name
        self._listener = wanted if callable(wanted) else None
        silent = quiet or os.environ.get(PROGRESS_VARIABLE) == "0"
        self._writes = not silent if wanted is None else wanted is True

    @contextmanager
    def shown(self, which: str = "", not_kept: str = "") -> Iterator[Outcome]:
        """Reports the stages of compiling in this thread, inside the context.

        Parameters
        ----------
        which : str
            Which program of the model is compiled; "" if there is only one.
        not_kept : str
            Why the program will not be kept for the next start; "" if it will, unless the yielded
            outcome gets a reason.
        """
        outcome = Outcome(not_kept)
        if self._listener is not None:
            with listening(self._listener):
                yield outcome
        elif self._writes and not has_listener():
            line = _Line(f"{self._name} ({which})" if which else self._name, outcome)
            with line.running(), listening(line.note):
                yield outcome
        else:
            yield outcome


class Outcome:
    """Whether a program is kept for the next start; `not_kept` is the reason if it is not."""

    def __init__(self, not_kept: str) -> None:
        self.not_kept = not_kept

    def __str__(self) -> str:
        return f"not kept for the next start: {self.not_kept}" if self.not_kept else KEPT


class _Line:
    """The line of one compilation."""

    _writing = threading.Lock()  # protects standard error and `_owner`
    _owner: _Line | None = None  # the line on the terminal; other lines are written above it

    def __init__(self, what: str, outcome: Outcome) -> None:
        self._what = what
        self._outcome = outcome
        self._stage: Stage | None = None
        self._said: str | None = None  # the outcome that was last written; None: no line yet
        self._ended = threading.Event()

    def note(self, stage: Stage) -> None:
        """Remembers the stage for the next update."""
        self._stage = stage

    @contextmanager
    def running(self) -> Iterator[None]:
        """Writes and updates the line if the context takes longer than two seconds."""
        began = time.monotonic()
        thread = threading.Thread(target=self._watch, name="tvm_hybrid progress", daemon=True)
        thread.start()
        try:
            yield
        except BaseException:
            self._end(thread, "")
            raise
        took = time.monotonic() - began
        self._end(thread, f"compiled {self._what} in {took:.1f} s; it is {self._outcome}")

    def _watch(self) -> None:
        if self._ended.wait(DELAY):
            return
        self._write()
        while _is_terminal() and not self._ended.wait(REFRESH):
            self._write()

    def _write(self) -> None:
        stage, done = self._stage, ""
        where = "reading the model"
        if stage is not None:
            done = f" ({stage.done} of {stage.parts} done)" if stage.parts else ""
            where = f"stage {stage.number} of {stage.count}{done}, {stage.title}"
        text = f"compiling {self._what}: {where}"
        with self._writing:
            first, self._said = self._said is None, str(self._outcome)
            if not _is_terminal():
                _put(f"tvm_hybrid: {text}; it is {self._said}\n")
            elif _Line._owner in (None, self):
                _Line._owner = self
                _put(f"\r{_fitting(f'tvm_hybrid: {text}')}\x1b[K")
            elif first:
                _put(f"\r\x1b[Ktvm_hybrid: {text}\n")

    def _end(self, thread: threading.Thread, text: str) -> None:
        """Ends the thread, and the line with a final text; "" removes it from a terminal."""
        self._ended.set()
        thread.join()
        if self._said is None:
            return
        with self._writing:
            if _is_terminal():
                if _Line._owner is self:
                    _Line._owner = None
                _put(f"\r\x1b[Ktvm_hybrid: {text}\n" if text else "\r\x1b[K")
            elif text and str(self._outcome) != self._said:
                _put(f"tvm_hybrid: {text}\n")


def _is_terminal() -> bool:
    """Whether standard error is a terminal on which a line can be overwritten."""
    try:
        return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    except (AttributeError, ValueError):  # standard error is missing or closed
        return False


def _fitting(text: str) -> str:
    """Cuts a text to the terminal's width, because a wrapped line cannot be overwritten."""
    width = shutil.get_terminal_size().columns - 1
    return text if len(text) <= width else text[: max(0, width - 3)] + "..."


def _put(text: str) -> None:
    """Writes to standard error; ignores errors, which must not end the program."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        sys.stderr.write(text)
        sys.stderr.flush()
