"""Native code: compiles a lowered module's kernels to machine code, several at once.

Before

    module with main, kernel_a, kernel_b, ... kernel_z

After

    executable of main
      imports: LLVM module of kernel_a ... kernel_d, LLVM module of kernel_e ... kernel_h, ...

TVM compiles the kernels of a module one after the other. But they are independent, and TVM and LLVM
release Python's lock. So as many threads as the process may use CPUs compile groups of kernels. The
groups depend only on the model, so that any number of CPUs makes the same library.

With a store of kernels (`codegen`), code that it has is not compiled again.

TVM hashes all constants of an executable, for each function that has them. So large ones stay
outside of it (`weights`) until it is to run in this process: `with_weights`.

`with_native_code` does the same for a module that TVM compiles: its kernels become modules of
machine code, which TVM's executable imports. TVM's passes never see our unrolled loops then.
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

EXTERNAL = "external_mods"  # TVM's attribute of a module: what its executable is to import
SYSTEM_LIB_PREFIX = "system_lib_prefix"  # TVM's attribute of a module to be linked statically
HOST_FUNCTION = "tirx.is_host_func"  # TVM's attribute of kernels that compute sizes
NOTHING = "tvm_hybrid_nothing"
OUTSIDE_WEIGHT = "tvm_hybrid_outside_weight"  # in executables that never run
GROUP = 4  # kernels of a module; one by one they would take no longer, but make many modules
FEW = 8  # kernels that stay in one module


def compile_native(
    mod: IRModule, target: Target, threads: int, store: KernelStore | None = None
) -> tuple[Any, IRModule]:
    """The executable of a module that is lowered as far as TVM's virtual machine wants.

    Parameters
    ----------
    mod : IRModule
        Relax functions, and the kernels that they call.
    target : tvm.target.Target
        An llvm target; one of its instances has been asked for features before, which is what
        initialises LLVM.
    threads : int
        For how many threads the kernels were made.
    store : KernelStore, optional
        Where code of kernels is looked for, and kept.

    Returns
    -------
    tuple of tvm.relax.VMExecutable and IRModule
        It imports one LLVM module for each group of kernels; large weights are not in it. The
        module is what the virtual machine's code is made of: what is in LLVM modules is called by
        name. It has the weights, and their entry, which no executable here has.
    """
    kernels = _kernels(trusting(for_threads(mod, threads)))
    pipeline = pipeline_of_trusting(pipeline_for(threads))
    library: Callable[..., list[tvm.runtime.Module]] = _libraries
    if store is None or not codegen.has_texts(target):
        first, *others = _groups(kernels) or [{}]
    else:
        # What computes sizes is small, and TVM orders its statements by address.
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
            made.mod.clear_imports()  # an empty C source, which would have to be compiled
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
    """An executable of `compile_native` that can run: one with all weights, over the same code.

    Parameters
    ----------
    executable : tvm.relax.VMExecutable
        It stays as it is.
    code : IRModule
        What `compile_native` returned with it.
    """
    inner = _without_entry(code)
    if not any(bytes_of(each.value) >= OUTSIDE_BYTES for each in constants_of(inner)):
        return executable
    module = tvm_compat.virtual_machine_code(inner)
    for imported in executable.mod.imports:
        module.import_module(imported)
    return relax.VMExecutable(module)


def _without_entry(mod: IRModule) -> IRModule:
    """A module without the entry of weights; it stays as it is."""
    inner = copy_module(mod)
    if WEIGHTS_ENTRY in inner:
        del inner[WEIGHTS_ENTRY]
    return inner


def with_native_code(mod: IRModule, target: Target, threads: int) -> IRModule:
    """A module for `tvm.compile` that calls its kernels by name, and has them as machine code.

    Parameters
    ----------
    mod, target, threads
        As for `compile_native`.

    Returns
    -------
    IRModule
        The Relax functions and one kernel that does nothing. Its attribute "external_mods" says
        what an executable of it imports.
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
    # The executable of a module without kernels would import an empty C source in their place,
    # which a C compiler would have to compile before it runs.
    name = (prefix or "") + NOTHING
    nothing = tirx.PrimFunc([], tirx.Evaluate(tirx.const(0, "int32")))
    functions = {**calling, ir.GlobalVar(name): nothing.with_attr(GLOBAL_SYMBOL, name)}
    return importing(IRModule(functions, mod.attrs, mod.global_infos), modules)


def system_lib_prefix(mod: IRModule) -> str | None:
    """What names begin with in the system library that a module is for; None if for none."""
    prefix = dict(mod.attrs or {}).get(SYSTEM_LIB_PREFIX)
    return None if prefix is None else str(prefix)


def importing(mod: IRModule, modules: Iterable[Any]) -> IRModule:
    """A module whose executable imports these as well."""
    present = mod.attrs[EXTERNAL] if mod.attrs and EXTERNAL in mod.attrs else []
    return mod.with_attr(EXTERNAL, [*present, *modules])


Kernels = dict[ir.GlobalVar, tirx.PrimFunc]


def _kernels(mod: IRModule) -> Kernels:
    """The kernels of a module, in order of their names."""
    kernels = [(g, f) for g, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)]
    return dict(sorted(kernels, key=lambda item: str(item[0].name_hint)))


def _groups(kernels: Kernels) -> list[Kernels]:
    """The kernels of each LLVM module; those with exact buffers apart."""
    found: list[Kernels] = []
    for exact in (False, True):
        alike = [each for each in kernels.items() if codegen.has_exact_buffers(each[1]) == exact]
        count = -(-len(alike) // GROUP) if len(alike) > FEW else min(len(alike), 1)
        # Neighbours are alike, and take long or not: every group gets some of each.
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
    """LLVM modules of a group: one of kernels that the store has or takes, and of each other."""
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
    """The other functions of a module, which call the kernels of groups by their names."""
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
