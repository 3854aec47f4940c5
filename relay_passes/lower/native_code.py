"""Native code: compiles a lowered module's kernels to machine code, several at once.

Before

    module with main, kernel_a, kernel_b, ... kernel_z

After

    executable of main
      imports: LLVM module of kernel_a ... kernel_d, LLVM module of kernel_e ... kernel_h, ...

TVM compiles the kernels of a module one after the other. But they are independent, and TVM and LLVM
release Python's lock. So threads compile groups of kernels, one thread for each CPU that the
process may use. The groups depend only on the model, so that any number of CPUs makes the same
library.

With a store of kernels (`codegen`), stored code is not compiled again.

TVM hashes all constants of an executable for each function that uses them. So large constants stay
outside the executable (`weights`) until it is to run in this process: `with_weights`.

`with_native_code` prepares a module that TVM compiles: its kernels become modules of machine code,
which TVM's executable imports. TVM's passes then never see our unrolled loops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from typing import Any

import tvm
from tvm import IRModule, ir, relax, tirx
from tvm.ir.transform import PassContext
from tvm.target import Target

from microkernels.base.tvm_compat import relax as tvm_compat
from relay_passes.ir.constants import bytes_of, constants_of
from relay_passes.ir.entries import WEIGHTS_ENTRY
from relay_passes.ir.functions import with_renamed
from relay_passes.ir.rewrite import copy_module, is_kernel, is_relax
from relay_passes.ir.stages import wait_for, workers

from . import codegen
from .codegen import GLOBAL_SYMBOL, KernelCode, KernelStore, built, kernel_context, kernel_key
from .kernel_pipelines import for_threads, pipeline_for, pipeline_of_trusting, trusting
from .weights import OUTSIDE_BYTES, with_outside_weights

EXTERNAL = "external_mods"  # TVM's attribute of a module: the modules that its executable imports
SYSTEM_LIB_PREFIX = "system_lib_prefix"  # TVM's attribute of a module to be linked statically
HOST_FUNCTION = "tirx.is_host_func"  # TVM's attribute of kernels that compute sizes
NOTHING = "tvm_hybrid_nothing"
OUTSIDE_WEIGHT = "tvm_hybrid_outside_weight"  # in executables that never run
GROUP = 4  # kernels of a module; single kernels would take no longer, but make many modules
FEW = 8  # up to this many kernels stay in one module


def compile_native(
    mod: IRModule, target: Target, threads: int, store: KernelStore | None = None
) -> tuple[Any, IRModule]:
    """The executable of a module that is lowered for TVM's virtual machine.

    Parameters
    ----------
    mod : IRModule
        Relax functions, and the kernels that they call.
    target : tvm.target.Target
        An llvm target; one of its instances must have been asked for features before, which
        initialises LLVM.
    threads : int
        Number of threads that the kernels were made for.
    store : KernelStore, optional
        Where code of kernels is looked up and stored.

    Returns
    -------
    tuple of tvm.relax.VMExecutable and IRModule
        The executable imports one LLVM module for each group of kernels, and lacks large weights.
        The module is the source of the virtual machine's code: it calls kernels in LLVM modules by
        name. It has the weights and their entry, which the executable lacks.
    """
    kernels = _kernels(trusting(for_threads(mod, threads)))
    pipeline = pipeline_of_trusting(pipeline_for(threads))
    library: Callable[..., list[tvm.runtime.Module]] = _libraries
    if store is None or not codegen.has_texts(target):
        first, *others = _groups(kernels) or [{}]
    else:
        # Functions that compute sizes are small, and TVM orders their statements by address.
        first = {gvar: f for gvar, f in kernels.items() if HOST_FUNCTION in f.attrs}
        others = _groups({gvar: f for gvar, f in kernels.items() if gvar not in first})
        library = partial(_stored_libraries, store)
    context = kernel_context(first.values())
    calling = _calling(mod, others)
    rest = IRModule({**calling, **first}, attrs=mod.attrs, global_infos=mod.global_infos)
    inner, _ = with_outside_weights(_without_entry(rest), OUTSIDE_WEIGHT, OUTSIDE_BYTES)

    def executable() -> Any:
        with context:
            none = ir.transform.Sequential([])
            made = tvm.compile(inner, target, relax_pipeline=none, tir_pipeline=pipeline)
        if not first:
            made.mod.clear_imports()  # else an empty C source would have to be compiled
        return made

    if not others:
        return executable(), rest
    with workers(1 + len(others)) as pool:
        compiled = pool.submit(executable)
        modules = [
            pool.submit(library, group, target, pipeline, kernel_context(group.values()))
            for group in others
        ]
        wait_for([compiled, *modules])
        result = compiled.result()
        for module in chain.from_iterable(each.result() for each in modules):
            result.mod.import_module(module)
    return result, rest


def with_weights(executable: Any, code: IRModule) -> Any:
    """An executable with the code of one from `compile_native` and with all weights: it can run.

    Parameters
    ----------
    executable : tvm.relax.VMExecutable
        The executable; it is not changed.
    code : IRModule
        The module that `compile_native` returned with it.
    """
    inner = _without_entry(code)
    if not any(bytes_of(each.value) >= OUTSIDE_BYTES for each in constants_of(inner)):
        return executable
    module = tvm_compat.virtual_machine_code(inner)
    for imported in executable.mod.imports:
        module.import_module(imported)
    return relax.VMExecutable(module)


def _without_entry(mod: IRModule) -> IRModule:
    """A copy of a module without the weights entry."""
    inner = copy_module(mod)
    if WEIGHTS_ENTRY in inner:
        del inner[WEIGHTS_ENTRY]
    return inner


def with_native_code(mod: IRModule, target: Target, threads: int) -> IRModule:
    """A module for `tvm.compile` that calls its kernels by name and holds them as machine code.

    Parameters
    ----------
    mod, target, threads
        As for `compile_native`.

    Returns
    -------
    IRModule
        The Relax functions and one kernel that does nothing. The attribute "external_mods" holds
        the modules that its executable imports.
    """
    groups = _groups(_kernels(trusting(for_threads(mod, threads))))
    pipeline = pipeline_of_trusting(pipeline_for(threads))
    prefix = system_lib_prefix(mod)
    with workers(len(groups)) as pool:
        compiled = [
            pool.submit(_libraries, group, target, pipeline, kernel_context(group.values()), prefix)
            for group in groups
        ]
        modules = list(chain.from_iterable(each.result() for each in compiled))
    calling = _calling(mod, groups)
    # The executable of a module without kernels would import an empty C source instead, which a C
    # compiler would have to compile before it runs.
    name = (prefix or "") + NOTHING
    nothing = tirx.PrimFunc([], tirx.Evaluate(tirx.const(0, "int32")))
    functions = {**calling, ir.GlobalVar(name): nothing.with_attr(GLOBAL_SYMBOL, name)}
    return importing(IRModule(functions, mod.attrs, mod.global_infos), modules)


def system_lib_prefix(mod: IRModule) -> str | None:
    """The prefix of names in the system library that a module is for; None if it is for none."""
    prefix = dict(mod.attrs or {}).get(SYSTEM_LIB_PREFIX)
    return None if prefix is None else str(prefix)


def importing(mod: IRModule, modules: Iterable[Any]) -> IRModule:
    """A module whose executable imports these modules, too."""
    present = mod.attrs[EXTERNAL] if mod.attrs and EXTERNAL in mod.attrs else []
    return mod.with_attr(EXTERNAL, [*present, *modules])


Kernels = dict[ir.GlobalVar, tirx.PrimFunc]


def _kernels(mod: IRModule) -> Kernels:
    """The kernels of a module, in order of their names."""
    kernels = [(g, f) for g, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)]
    return dict(sorted(kernels, key=lambda item: str(item[0].name_hint)))


def _groups(kernels: Kernels) -> list[Kernels]:
    """The kernels of each LLVM module; those with exact buffers are grouped separately."""
    found: list[Kernels] = []
    for exact in (False, True):
        alike = [each for each in kernels.items() if codegen.has_exact_buffers(each[1]) == exact]
        count = -(-len(alike) // GROUP) if len(alike) > FEW else min(len(alike), 1)
        # Neighbours take similar times: each group gets some of every kind.
        found += (dict(alike[start::count]) for start in range(count))
    return found


def _libraries(
    group: Kernels, target: Target, pipeline: str, context: PassContext, prefix: str | None = None
) -> list[tvm.runtime.Module]:
    """The LLVM module of a group."""
    mod = IRModule(dict(group))
    if prefix is not None:
        mod = mod.with_attr(SYSTEM_LIB_PREFIX, prefix)
    with context:
        return [tvm.tirx.build(mod, target=target, pipeline=pipeline)]


def _stored_libraries(
    store: KernelStore, group: Kernels, target: Target, pipeline: str, context: PassContext
) -> list[tvm.runtime.Module]:
    """LLVM modules of a group: one of kernels with stored code, and one of all others."""
    codes: dict[str, KernelCode] = {}
    alone: Kernels = {}
    for gvar, kernel in group.items():
        key = kernel_key(kernel, target, pipeline, context)
        code = None if key is None else store.find(key)
        if code is None and key is not None:
            with context:
                text = built(kernel, target, pipeline).inspect_source("asm")
            code = codegen.code_of(text)
            if code is not None:
                store.keep(key, code)
        if code is None:
            alone[gvar] = kernel
        else:
            codes[str(kernel.attrs[GLOBAL_SYMBOL])] = code
    modules = [codegen.assembled(codes, target)] if codes else []
    return modules + (_libraries(alone, target, pipeline, context) if alone else [])


def _calling(mod: IRModule, groups: Iterable[Kernels]) -> dict[ir.GlobalVar, ir.BaseFunc]:
    """The other functions of a module, which call the kernels of the groups by name."""
    names: dict[relax.Expr, relax.Expr] = {
        gvar: relax.ExternFunc(str(kernel.attrs[GLOBAL_SYMBOL]))
        for group in groups
        for gvar, kernel in group.items()
    }
    calling = {gvar: each for gvar, each in mod.functions_items() if not is_kernel(each)}
    return {
        gvar: with_renamed(each, names) if names and is_relax(each) else each
        for gvar, each in calling.items()
    }
