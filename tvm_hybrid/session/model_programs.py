"""ModelPrograms: programs of one model with fixed options, from the cache or newly compiled."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from microkernels.base import errors
from microkernels.base.logs import logger
from microkernels.base.memory import return_what_compiling_took

from ..cache import program_cache
from ..cache.cache_folder import CACHE_VARIABLE, is_enabled
from ..cache.program_key import Note, ProgramKey, model_bytes, program_key
from ..executable.executable import Executable
from ..frontend.onnx.reader.model_bytes import ModelBytes, is_onnx
from ..options import CompileOptions
from ..runtime.tensors import DeclaredInterface
from .progress import Progress

if TYPE_CHECKING:
    from ..frontend.onnx.reader.load_graph import DynamicModel

Given = Mapping[str, Any] | None
MOST_SHOWN = 40  # longest text of a shape or value in the progress line
_FOR_ALL_SIZES: Mapping[str, Any] = {"keep_dynamic": True, "strict": "dynamic"}


class DynamicSession(NamedTuple):
    """What a session knows that compiles only when inputs arrive.

    Attributes
    ----------
    declared : DeclaredInterface
        The model's inputs and outputs.
    reason : str
        Why there is no single program for all sizes.
    parameters : tuple of str
        Inputs whose values are needed for compiling.
    """

    declared: DeclaredInterface
    reason: str
    parameters: tuple[str, ...]


class ModelPrograms:
    """Finds or compiles programs of a model.

    Parameters
    ----------
    model : Any
        See `compile`.
    options : CompileOptions
        Options of all programs. With `cache`, programs of an ONNX model are looked up in the cache,
        and kept there.
    progress : Progress
        Reports the progress of compiling.
    """

    def __init__(self, model: Any, options: CompileOptions, progress: Progress) -> None:
        self._model, self._options, self._progress = model, options, progress
        self._bytes: ModelBytes | None = None
        self._not_kept = ""  # why programs are not kept
        if not options.cache:
            self._not_kept = "cache=False"
        elif not is_enabled():
            self._not_kept = f"{CACHE_VARIABLE}=0"
        elif not is_onnx(model):
            self._not_kept = "only programs of ONNX models are"
        else:
            try:
                self._bytes = model_bytes(model)
            except (OSError, ValueError) as error:  # compiling will raise the real error
                self._not_kept = str(error)
                program_cache.say_once(f"programs of this model are not kept: {error}")

    def kept_for_all_sizes(
        self, shapes: Given, values: Given
    ) -> Executable | DynamicSession | None:
        """Returns what `for_all_sizes` would, if that needs no compilation; else None."""
        key = self._key(self._for(shapes, values, _FOR_ALL_SIZES))
        if key is None:
            return None
        if (found := self._find(key)) is not None:
            return found
        note = program_cache.find_refusal(key.text)
        if note is not None and note.declared is not None and self._take_snapshot():
            return DynamicSession(note.declared, note.refusal, note.inputs)
        return None

    def for_all_sizes(self, shapes: Given, values: Given) -> Executable | DynamicSession:
        """Returns one program for all sizes, or why a program for each combination is better.

        Raises
        ------
        TvmHybridError
            See `tvm_hybrid.compile`; if neither is possible.
        """
        if (kept := self.kept_for_all_sizes(shapes, values)) is not None:
            return kept
        options = self._for(shapes, values, _FOR_ALL_SIZES)
        key = self._key(options)
        try:
            # One program for all sizes only if every part is as fast as with static sizes.
            return self._compile(key, options)
        except (errors.CompileError, errors.ModelError) as error:
            dynamic = self._dynamic_session(shapes, error)
            if dynamic is None:
                raise
            # A failure of memory or a disk is not recorded: the next attempt may succeed.
            of_the_moment = isinstance(error.__cause__, (MemoryError, OSError))
            if key is not None and key.holds() and not of_the_moment:
                declared, reason, parameters = dynamic
                note = Note(declared=declared, refusal=reason, inputs=parameters)
                program_cache.keep_refusal(key.text, note)
            return dynamic

    def for_sizes(self, shapes: Given, values: Given) -> Executable:
        """Returns the program for these shapes and values.

        Raises
        ------
        TvmHybridError
            See `tvm_hybrid.compile`.
        """
        options = self._for(shapes, values)
        key = self._key(options)
        if key is None:
            return self._compile(None, options)
        if (found := self._find(key)) is not None:
            return found
        if (note := program_cache.find_refusal(key.text)) is not None:
            raise errors.InputValueError(note.refusal, inputs=note.inputs)
        try:
            return self._compile(key, options)
        except errors.InputValueError as error:
            if error.inputs and key.holds():
                note = Note(refusal=str(error), inputs=error.inputs)
                program_cache.keep_refusal(key.text, note)
            raise

    def open(self, shapes: Given, from_now_on: bool) -> DynamicModel:
        """Reads and checks the model; later changes to the caller's object have no effect.

        With `from_now_on`, a model in a file is not read again, which takes more memory.

        Raises
        ------
        CompileError
            If it is not an ONNX model.
        ModelError
            If it cannot be read or is not valid, or the shapes do not fit it.
        """
        if not is_onnx(self._model):
            raise errors.CompileError("NumPy runs ONNX models only")
        from ..frontend.onnx.reader.load_graph import read_dynamic_model

        opened = read_dynamic_model(self._model, shapes)
        in_file = isinstance(self._model, (str, os.PathLike))
        if in_file and not from_now_on:
            return opened
        if self._bytes is None or opened.proto is not self._model or not self._take_snapshot():
            self._model = opened.proto
        return opened

    def _dynamic_session(
        self, shapes: Given, error: errors.CompileError | errors.ModelError
    ) -> DynamicSession | None:
        """Makes a DynamicSession after an error; None if sizes or values would not help."""
        if not is_onnx(self._model):
            return None
        opened = self.open(shapes, from_now_on=True)
        parameters = error.inputs if isinstance(error, errors.InputValueError) else ()
        if not parameters and not any(info.is_dynamic for info in opened.inputs):
            return None
        declared = DeclaredInterface(opened.inputs, opened.outputs)
        return DynamicSession(declared, str(error), parameters)

    def _take_snapshot(self) -> bool:
        """Fixes the model to the bytes that were hashed; False if they are not available."""
        assert self._bytes is not None
        try:
            self._model = self._bytes.model(self._model)
        except (errors.ModelError, ValueError):
            return False
        return True

    def _for(self, shapes: Given, values: Given, how: Mapping[str, Any] = {}) -> CompileOptions:
        """Makes the options of one program."""
        return replace(self._options, shapes=shapes, values=values, **how)

    def _key(self, options: CompileOptions) -> ProgramKey | None:
        if self._bytes is None:
            return None
        try:
            return program_key(self._bytes, options)
        except (errors.TvmHybridError, OSError, TypeError, ValueError) as error:
            self._not_kept = str(error)
            program_cache.say_once(f"a program is not kept: {error}")  # compiling raises the rest
            return None

    def _find(self, key: ProgramKey, anew: bool = False) -> Executable | None:
        """Looks up a program in the cache; `anew` if it has just been compiled."""
        options = self._options
        found = program_cache.find(key.text, options.threads, options.weights, options.spin)
        if found is None or anew:
            return found
        logger.info("not compiled: the program is in the cache, %s", key.text)
        if options.precision == "bf16":
            from ..api import warn_if_slow

            warn_if_slow(found.manifest.cpu, found.manifest.isa)
        return found

    def _compile(self, key: ProgramKey | None, options: CompileOptions) -> Executable:
        from ..api import compile as compile_model  # late: a cached program needs no compiler

        if key is not None:
            logger.info("compiling: the program is not in the cache, %s", key.text)
        not_kept = self._not_kept if key is None else ""
        # Describe briefly which program of the model it is.
        given = {**(options.shapes or {}), **(options.values or {})}
        texts = ((name, str(np.asarray(each).tolist())) for name, each in given.items())
        which = ", ".join(f"{name}={text}" for name, text in texts if len(text) <= MOST_SHOWN)
        with self._progress.shown(which, not_kept) as outcome:
            found = compile_model(self._model, options)
            if key is not None:
                if key.holds():
                    outcome.not_kept = program_cache.keep(key.text, found)
                    if not found.has_bare_kernel:  # else the machine code is made already
                        found = self._find(key, anew=True) or found
                        return_what_compiling_took()
                else:
                    outcome.not_kept = "files have changed since they were read"
                    program_cache.say_once(
                        "a program is not kept: files of the model, of records or of this package "
                        "have changed since they were read"
                    )
            with contextlib.suppress(errors.IsaError):  # a program for another CPU can be inspected
                found.make_code()
        return found
