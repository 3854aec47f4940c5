"""Executable: a compiled model that runs, explains itself, and can be exported."""

from __future__ import annotations

import functools
import os
import shutil
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex

import msgspec
import numpy as np
from tvm import IRModule
from tvm.runtime import Tensor

from microkernels.base.errors import ArtifactError, FeedError
from microkernels.base.files import replacing, require_writable
from microkernels.base.old_names import old_property
from relay_passes.ir import entries
from relay_passes.ir.constants import bytes_of, constants_of

from ..explain.explanation import Explanation
from ..explain.profile import Profile, profile_runs
from ..explain.program_graph import Outline, ProgramGraph, storage_plan
from ..library.artifact import complete_library, read_manifest
from ..library.manifest import Manifest
from ..runtime import feeds, tensors
from ..runtime.places import PoolSetting
from ..runtime.thread_pool.native import note_user
from ..runtime.threads import current, use_setting
from .machine_code import MachineCode, description, releasing, report_fallback, takes_fallback

if TYPE_CHECKING:
    from ..explain.program_facts import SingleKernel
    from ..library.export import LinkableProgram


class Executable:
    """A compiled model; made by `tvm_hybrid.compile` and `tvm_hybrid.load`.

    It may be run from several threads at once: each gets its own virtual machine over shared code
    and weights. It cannot be copied or pickled: for processes of `multiprocessing`, export it once,
    and load the library in each process.

    Parameters
    ----------
    manifest : Manifest
        Describes the program.
    module : callable
        Returns the module that has `vm_load_executable`.
    linkable : tuple of tvm.runtime.Module and IRModule, or None
        For export: the module that imports the machine code, and the module that the virtual
        machine's code is made from; None if the executable comes from a library.
    library : Path or None
        The library that the executable comes from.
    kernel : SingleKernel or None
        The model's only kernel, if the model is one kernel and its constants are at hand.
    fallback : Executable or None
        The second program, if there is one and it does not come from a library.
    whole : Manifest or None
        The manifest of the first program, if this is the second program.
    setting : PoolSetting or None
        Number of threads of a run, their CPUs, and how they wait; None: on any CPUs.
    graph : ProgramGraph or None
        The program's kernels and tensors; a library has them in its manifest.
    declared : DeclaredInterface or None
        Inputs and outputs as an ONNX model with dynamic sizes declares them; None for another model
        or a library.
    """

    def __init__(
        self,
        manifest: Manifest,
        module: Callable[[], Any],
        linkable: tuple[Any, IRModule] | None = None,
        *,
        library: Path | None = None,
        kernel: SingleKernel | None = None,
        fallback: Executable | None = None,
        whole: Manifest | None = None,
        setting: PoolSetting | None = None,
        graph: ProgramGraph | None = None,
        declared: tensors.DeclaredInterface | None = None,
    ) -> None:
        self.manifest = manifest
        self.declared = declared
        self._graph = graph
        self._linkable = linkable
        self._library = library
        self._held: Path | None = None
        self._kernel = kernel
        self._fallback = fallback
        self._whole = whole or manifest
        self._first: Executable | None = None
        if fallback is not None:
            fallback._first, fallback._whole = self, manifest
        self.setting = setting or PoolSetting.of(manifest.threads)
        self._parallel = self.setting.count > 1
        self._code = MachineCode(module, manifest, self.setting.count, library)
        self._local = threading.local()
        if self._parallel:
            note_user(self, self.setting.spin)

    @property
    def inputs(self) -> tuple[tensors.TensorInfo, ...]:
        """The inputs, in the order in which `run` takes them."""
        return self.manifest.inputs

    @property
    def outputs(self) -> tuple[tensors.OutputInfo, ...]:
        """The outputs, in the order in which `run` returns them."""
        return self.manifest.outputs

    @property
    def values(self) -> tuple[feeds.InputValue, ...]:
        """The model's inputs that this program does not take: it was compiled for these values."""
        return self.manifest.values

    @functools.cached_property
    def outline(self) -> Outline | None:
        """Graph and memory; None for a library of version 0.2 or older."""
        if self._graph is not None:
            code = self.program().code
            # Entries of the module share constants, so each memory address counts once.
            kept = {each.value.data_ptr(): bytes_of(each.value) for each in constants_of(code)}
            return Outline(self._graph, storage_plan(code[entries.MAIN]), sum(kept.values()))
        packed = self.manifest.outline
        return Outline.unpacked(packed) if packed else None

    @property
    def graph(self) -> ProgramGraph | None:
        """Kernels and the tensors between them; None for a library of version 0.2 or older."""
        if self._graph is not None:
            return self._graph
        return None if self.outline is None else self.outline.graph

    @property
    def num_threads(self) -> int:
        """The number of threads that a run uses."""
        return self.setting.count

    @property
    def cpus(self) -> tuple[int, ...]:
        """CPUs of a run's threads, one per bound worker; empty if workers are not bound.

        The first CPU is for the calling thread, which is not bound.
        """
        return self.setting.cpus

    @property
    def spin(self) -> str:
        """How long threads of a run wait actively: "run", "always" or "never"."""
        return self.setting.spin

    @property
    def main(self) -> Any:
        """The calling thread's plain function from tensors to tensors; it checks nothing.

        It returns a tensor if the model has one output, else an array of them.
        """
        try:
            main = self._local.main
        except AttributeError:
            main = self._local.main = releasing(self.for_host().new_machine(), entries.MAIN)
        if self._parallel and current.setting is not self.setting:
            use_setting(self.setting)
        return main

    @property
    def main_into(self) -> tuple[Any, Any]:
        """The calling thread's functions of `into_entries`; they check nothing."""
        try:
            both: tuple[Any, Any] = self._local.main_into
        except AttributeError:
            both = self._local.main_into = self.for_host().into_entries()
        if self._parallel and current.setting is not self.setting:
            use_setting(self.setting)
        return both

    def numpy_main(self) -> Any:
        """Like `main`, but bfloat16 tensors are taken and returned as their bits (uint16)."""
        name = entries.BITS_ENTRY if self.has_bfloat16 else entries.MAIN
        return releasing(self.new_machine(), name)

    def into_entries(self) -> tuple[Any, Any]:
        """Two functions of a new virtual machine, for a program with `manifest.bound_outputs`.

        The first takes the inputs and a tensor for each bound output, and returns all outputs. The
        second returns the shapes of these tensors for given inputs.
        """
        machine = self.new_machine()
        return machine[entries.INTO_ENTRY], machine[entries.SHAPES_ENTRY]

    def bare_kernel(self) -> tuple[Any, tuple[Tensor, ...]] | None:
        """The model's only kernel, and the constants that it takes between input and output.

        None if the model has more than one kernel, or only the virtual machine has its constants,
        as in a library. The kernel checks types and shapes as `numpy_main` does: it takes bfloat16
        tensors as their bits.
        """
        if not self.has_bare_kernel or self._kernel is None:
            return None
        return self._code.function(self._kernel.function), self._kernel.constants

    @property
    def has_bare_kernel(self) -> bool:
        """Whether there is a `bare_kernel`; this makes no machine code."""
        kernel = self._kernel
        return kernel is not None and (kernel.takes_bits or not self.has_bfloat16)

    @property
    def has_bfloat16(self) -> bool:
        """Whether an input or output is of type bfloat16."""
        dtypes = [info.dtype for info in self.inputs] + [info.dtype for info in self.outputs]
        return "bfloat16" in dtypes

    def run(self, *inputs: Any) -> list[Tensor]:
        """Runs the model.

        Parameters
        ----------
        *inputs : tvm.runtime.Tensor or array_like
            One for each input, in order; or a single dictionary from names to inputs. Prepared
            tensors are fast; anything else is copied into a tensor. A dictionary may also hold the
            inputs that the program was compiled for; their values are checked.

        Returns
        -------
        list of tvm.runtime.Tensor
            One for each output. An output that is a view of an input or a weight (see
            `manifest.shared_outputs`) shares its memory. Integers of 2 or 4 bits come as tensors of
            8 bits, floats of 4 or 8 bits as uint8 tensors of their bits; prepared inputs likewise.

        Raises
        ------
        FeedError
            If the inputs do not fit the model.
        IsaError
            If the program was compiled for another CPU, and this one cannot run it.
        """
        for value in inputs:
            if type(value) is not Tensor:
                inputs = self._prepare(inputs)
                break
        try:
            result = self.main(*inputs)
        except Exception as error:
            self._check(inputs)
            feeds.raise_size_error(error)
            raise
        return [result] if type(result) is Tensor else list(result)

    def for_host(self) -> Executable:
        """The program that runs here: this one, or its fallback if only the fallback runs.

        Choosing the fallback is logged. If neither runs, it is this program, whose run raises an
        error.
        """
        if self._fallback is None or not takes_fallback(self.manifest):
            return self
        report_fallback(self.manifest, "this model")
        return self._fallback

    def explain(self) -> Explanation:
        """The decision for every node: taken or not, kernel, configuration, reason."""
        program = [f"made for {', '.join(map(str, self.values))}"] if self.values else []
        if self.is_dynamic:
            program.append(feeds.dynamic_dimensions(self.inputs, self.manifest.limits))
        if self._whole is not self.manifest:
            ours, first = description(self.manifest), description(self._whole)
            program.append(f"fallback for {ours}, instead of {first}")
        return Explanation(self.manifest.decisions, "; ".join(program))

    def profile(
        self, inputs: Mapping[str, Any] | Sequence[Any] | None = None, repeat: int = 10
    ) -> Profile:
        """Times every kernel.

        Parameters
        ----------
        inputs : mapping or sequence, optional
            As for `run`; zeros by default, with dynamic dimensions of size 1.
        repeat : int
            Number of runs.

        Raises
        ------
        FeedError
            If the inputs do not fit the model, or `repeat` is not positive.
        """
        if repeat < 1:
            raise FeedError(f"repeat must be at least 1, not {repeat}")
        given: Sequence[Any]
        if inputs is None:
            shapes = feeds.sample_shapes(self.inputs)
            dtypes = [tensors.numpy_dtype(info.dtype) for info in self.inputs]
            given = [np.zeros(*each) for each in zip(shapes, dtypes, strict=True)]
        else:
            given = [inputs] if isinstance(inputs, Mapping) else inputs
        if self._parallel:
            use_setting(self.setting)
        prepared, program = self._prepare(given), self.for_host()
        return profile_runs(program.new_machine(), prepared, program.manifest.decisions, repeat)

    def report(
        self,
        path: str | os.PathLike[str],
        inputs: Mapping[str, Any] | Sequence[Any] | None = None,
        repeat: int = 10,
    ) -> None:
        """Writes one HTML file, for any browser, that shows where the time goes.

        An interrupted call leaves no partial file. The machine's peak rates are measured for it,
        which takes some seconds.

        Parameters
        ----------
        path : path-like
            The file.
        inputs, repeat
            As for `profile`.

        Raises
        ------
        FeedError
            If the inputs do not fit the model, or `repeat` is not positive.
        OutputError
            If the file cannot be written.
        """
        from ..report.page.collect import collect
        from ..report.page.data import write_page

        require_writable(path)
        write_page(collect(self, inputs, repeat=repeat), path)

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Writes a shared library that runs with TVM's runtime alone.

        An interrupted call leaves no partial file. The fallback is in the library too.

        Parameters
        ----------
        path : path-like
            The file; its name should end in ".so", as TVM's loader requires.

        Raises
        ------
        CompileError
            If there is no C++ compiler, or it fails.
        ArtifactError
            If the file cannot be written.
        """
        from ..library.export import link_library

        target = Path(path)
        if self._first is not None:
            return self._first.export(target)
        if self._linkable is None:
            if self._library is None:
                raise ArtifactError("this executable has neither code to link nor a library")
            source = self._held or self._library
            if read_manifest(source) != self._whole:
                raise ArtifactError(f"{self._library} was replaced after it was loaded")
            with replacing(target, ArtifactError) as draft:
                shutil.copyfile(source, draft)
            return target
        require_writable(target, ArtifactError)
        with replacing(target, ArtifactError) as draft:
            digest, weights = link_library(draft, [part.program() for part in self._parts()])
            complete_library(draft, self._as_exported(digest), weights)
        return target

    def hold_library(self, descriptor: int) -> None:
        """Keeps the library's open file, so that it can be exported after its name is gone.

        Parameters
        ----------
        descriptor : int
            The open file's descriptor; it is closed with the executable.
        """
        self._held = Path(f"/proc/self/fd/{descriptor}")
        weakref.finalize(self, os.close, descriptor)

    def program(self) -> LinkableProgram:
        """The program to link for an export; only if it does not come from a library."""
        from ..library.export import LinkableProgram

        assert self._linkable is not None
        module, code = self._linkable
        return LinkableProgram(module, code, self.manifest.cpu, self.manifest.features)

    def constant_bytes(self) -> int:
        """Upper bound for the bytes of constants that an export writes."""
        codes = [part._linkable[1] for part in self._parts() if part._linkable is not None]
        return sum(bytes_of(each.value) for code in codes for each in constants_of(code))

    def _as_exported(self, digest: str) -> Manifest:
        """The manifest for an exported library whose program has this digest."""
        below = self._fallback
        return msgspec.structs.replace(
            self.manifest,
            model_sha256=digest,
            outline=b"" if self.outline is None else self.outline.packed(),
            fallback=None if below is None else below._as_exported(""),
        )

    def _parts(self) -> list[Executable]:
        return [self] if self._fallback is None else [self, self._fallback]

    def make_code(self) -> None:
        """Makes the machine code of the program that runs here; otherwise the first run makes it.

        Raises
        ------
        IsaError
            If the program was compiled for another CPU, and this one cannot run it.
        """
        second = self._fallback
        runs = self if second is None or not takes_fallback(self.manifest) else second
        runs._code.make()

    def new_machine(self) -> Any:
        """Makes a new virtual machine over the executable's code and weights.

        Raises
        ------
        IsaError
            If the program was compiled for another CPU, and this one cannot run it.
        """
        return self._code.machine()

    def weights(self) -> list[Tensor]:
        """The large constants, as kernels read them; none for a library of version 0.2 or older.

        Raises
        ------
        IsaError
            If the program was compiled for another CPU, and this one cannot run it.
        """
        if self._linkable is not None:
            return entries.weights_in(self._linkable[1])
        machine = self.new_machine()
        known = machine.module.implements_function(entries.WEIGHTS_ENTRY)
        return list(machine[entries.WEIGHTS_ENTRY]()) if known else []

    def _prepare(self, inputs: Sequence[Any]) -> tuple[Tensor, ...]:
        """The caller's inputs as tensors in order."""
        if len(inputs) == 1 and isinstance(inputs[0], Mapping):
            names = [info.name for info in self.inputs]
            given = feeds.named_feeds(inputs[0], names, self.values)
            return tuple(map(self._tensor, given.values(), self.inputs))
        self._check_count(inputs)
        return tuple(map(self._tensor, inputs, self.inputs))

    def _tensor(self, value: Any, info: tensors.TensorInfo) -> Tensor:
        return (
            value
            if type(value) is Tensor
            else feeds.to_tensor(tensors.to_stored(feeds.to_array(value, info)))
        )

    def _check_count(self, inputs: Sequence[Any]) -> None:
        if len(inputs) != len(self.inputs):
            raise FeedError(
                f"the model takes {len(self.inputs)} inputs "
                f"({'; '.join(map(str, self.inputs))}), not {len(inputs)}"
            )

    def _check(self, inputs: Sequence[Tensor]) -> None:
        """Raises the error for tensors that the virtual machine refused."""
        self._check_count(inputs)
        feeds.check_feeds(inputs, [info.stored for info in self.inputs], self.manifest.limits)

    @property
    def is_dynamic(self) -> bool:
        """Whether an input has a dynamic size."""
        return any(info.static_shape is None for info in self.inputs)

    is_open = old_property("is_open", "is_dynamic")

    def __reduce_ex__(self, _protocol: SupportsIndex) -> NoReturn:
        tensors.refuse_copies(self, "executable")

    def __repr__(self) -> str:
        inputs, outputs = "; ".join(map(str, self.inputs)), "; ".join(map(str, self.outputs))
        values = "".join(f", {value}" for value in self.values)
        cpu, threads = self.manifest.cpu, self.num_threads
        return f"Executable(({inputs}) -> ({outputs}), {cpu}, {threads}T{values})"
