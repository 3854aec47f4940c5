"""Loads a library that `Executable.export` wrote."""

from __future__ import annotations

import os
import weakref
from pathlib import Path

import tvm
import tvm_ffi

from microkernels.base.errors import ArtifactError
from microkernels.base.tvm_compat.runtime import holds_program, open_library

from ..library.artifact import read_manifest
from ..library.library_loader import CHOSEN_PREFIX, loader_name, pin_copies, with_own_weights
from ..runtime.thread_pool.native import installed
from ..runtime.threads import ThreadsLike, require_runnable, resolve_setting
from ..runtime.topology import host_topology
from ..runtime.weights import nodes_for, place_weights
from .executable import Executable
from .machine_code import report_fallback, require_program


def load(
    path: str | os.PathLike[str],
    *,
    threads: ThreadsLike = None,
    weights: str | None = None,
    verify: bool = False,
    spin: str | None = None,
) -> Executable:
    """Loads a library that `Executable.export` wrote.

    Nothing of the library is executed before its code is found to be complete and fit for this CPU.
    A library is code: load only what you trust. Large weights are not read; kernels read them from
    the mapped file, whose pages programs and processes share.

    Parameters
    ----------
    path : path-like
        The library.
    threads : int, str, sequence of int or None
        Where its threads run on this machine, see `CompileOptions`. Their number is fixed when the
        library is compiled.
    weights : {"first-touch", "interleave", "replicate"} or None
        See `CompileOptions`. To place weights on NUMA nodes, every call of `load` copies them.
    verify : bool
        Whether to check the weights for damage too, which reads all of them.
        Whether to look for damage in the weights, too, which reads all of them.
    spin : {"run", "always", "never"} or None
        See `CompileOptions`.

    Returns
    -------
    Executable
        The compiled model.

    Raises
    ------
    ArtifactError
        If the file is missing, damaged, or not exported by tvm_hybrid, or was compiled for another
        number of threads.
    IsaError
        If it needs a CPU feature that this CPU lacks, or AMX tiles that Linux denies, and has no
        fallback that runs here.
    TargetError
        If it was compiled for more than four threads per CPU of this process, or for more than
        `threads` has; if the place for threads or weights, or the value of `spin`, is unknown.
    """
    return load_library(Path(path), threads, weights, verify=verify, spin=spin)


def load_library(
    library: Path,
    threads: ThreadsLike,
    weights: str | None,
    checked: bool = False,
    verify: bool = False,
    spin: str | None = None,
) -> Executable:
    """As `load`; `checked` means that all but the weights is known to be undamaged."""
    manifest = read_manifest(library, checked, verify)
    require_program(manifest, str(library))
    require_runnable(manifest.threads, str(library))
    if isinstance(threads, int) and threads != manifest.threads:
        raise ArtifactError(
            f"{library} is compiled for {manifest.threads} threads, not {threads}; compile it anew"
        )
    setting = resolve_setting(threads, manifest.threads, spin=spin)
    nodes = nodes_for(weights, setting, host_topology())
    try:
        name = loader_name(library)
        pin_copies(manifest.model_sha256, name)
        if setting.count > 1:
            installed()  # TVM passes its pool to the library's code while it opens the library
        module = open_library(name)
    except Exception as error:
        raise ArtifactError(f"TVM cannot open {library}: {error}") from error
    if not holds_program(module):
        raise ArtifactError(f"{library} holds no model, though its manifest describes one")
    own_weights = ""
    if nodes and manifest.weights:
        module, own_weights = with_own_weights(module, manifest.model_sha256)
    chosen = manifest
    if manifest.fallback and tvm.get_global_func(CHOSEN_PREFIX + manifest.model_sha256)():
        report_fallback(manifest, str(library))
        chosen = manifest.fallback
    executable = Executable(
        chosen, lambda: module, library=library, whole=manifest, setting=setting
    )
    if own_weights:
        weakref.finalize(executable, tvm_ffi.registry.remove_global_func, own_weights)
    if nodes:
        place_weights(executable.weights(), nodes)
    return executable
