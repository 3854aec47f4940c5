"""`import tvm` makes our names known, and `import tvm_hybrid` costs next to nothing."""

from __future__ import annotations

import ast
import configparser
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_hybrid
from tests.tvm_hybrid.small_models import ROOT, mlp_module, mlp_reference, run_python
from tvm_hybrid import _autoload

pytestmark = pytest.mark.turns


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder that looks like an installation with setup.cfg's entry points."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    points = configparser.ConfigParser(delimiters=("=",))
    for line in setup["options.entry_points"]["tvm.backends"].strip().splitlines():
        name, _, place = line.partition("=")
        points["tvm.backends"] = {name.strip(): place.strip()}
    folder = tmp_path / "tvm_hybrid-0.1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.4\nName: tvm_hybrid\nVersion: 0.1.0\n")
    with (folder / "entry_points.txt").open("w") as file:
        points.write(file)
    return tmp_path


# Turning all hooks off would also disable TVM's own.
WITHOUT_HOOK = """
import sys, types
sys.modules["tvm_hybrid._autoload"] = types.SimpleNamespace(register=lambda: None)
"""
# Prints what the hook changes, and on the following lines what it could change of TVM.
STATE = """
import warnings
warnings.simplefilter("error")
import inspect, sys, tvm, tvm_ffi
from tvm.relax.pipeline import PIPELINE_MAP
from tvm.s_tir import TensorIntrin

heavy = ("onnx", "rich", "xgboost", "relay_passes", "tir_schedules", "microkernels.isa",
         "tvm.s_tir.tensor_intrin")
print([name for name in heavy if name in sys.modules])
registries = [tvm.target.list_tags(), PIPELINE_MAP, tvm_ffi.registry.list_global_func_names()]
print([sorted(name for name in names if "tvm_hybrid" in name) for names in registries])
print([sorted(name for name in names if "tvm_hybrid" not in name) for names in registries])
known = tvm.ir.Op.list_op_names()
print({name: tvm.ir.Op.get(name).get_attr("TScriptPrinterName") for name in sorted(known)})
print(sorted(module for module in sys.modules if module.startswith("tvm.backend")))
print(TensorIntrin.get("dot_16x4_vnni", allow_missing=True))
modules = [module for name, module in sys.modules.items() if name.split(".")[0] == "tvm"]
classes = [value for each in modules for value in vars(each).values() if inspect.isclass(value)]
for owner in [*modules, *{id(each): each for each in classes}.values()]:
    for key, value in vars(owner).items():
        function = value.__func__ if isinstance(value, staticmethod) else value
        if inspect.isfunction(function):  # a wrapper may have the name of what it wraps
            code = function.__code__
            print(owner.__name__, key, code.co_filename, code.co_firstlineno)
"""


def test_importing_tvm_registers_names_of_ours_and_changes_nothing_else(installed: Path) -> None:
    stock = run_python(WITHOUT_HOOK + STATE, path=installed)
    hooked = run_python(STATE, path=installed)
    assert stock.returncode == hooked.returncode == 0, stock.stderr + hooked.stderr
    assert hooked.stderr == ""
    heavy, ours, *theirs = hooked.stdout.splitlines()
    tags, pipelines, functions = ast.literal_eval(ours)
    assert heavy == "[]"
    assert {"tvm_hybrid/spr", "tvm_hybrid/sapphirerapids"} <= set(tags)
    assert pipelines == ["tvm_hybrid"] and functions == ["relax.ext.tvm_hybrid"]
    before = stock.stdout.splitlines()
    assert before[:2] == ["[]", "[[], [], []]"]
    assert any(line.startswith("TensorIntrin register ") for line in theirs)
    assert sorted(theirs) == sorted(before[2:])


QUICK = """
import gc, os, sys
from microkernels.base.tvm_compat.first_import import import_tvm
before = {**os.environ}
import_tvm()
assert gc.isenabled() and {**os.environ} == before
"""


def test_our_own_import_of_tvm_leaves_the_same_state(installed: Path) -> None:
    stock = run_python(STATE, path=installed)
    quick = run_python(QUICK + STATE, path=installed)
    assert stock.returncode == quick.returncode == 0, stock.stderr + quick.stderr
    assert "tirx.s_tir.ldg32" in quick.stdout
    # TVM tries to import tvm.runtime.disco, which fails until the last step has loaded a library.
    expected = stock.stdout.replace("'runtime.disco.create_process_pool', ", "").splitlines()
    expected = [line for line in expected if not line.startswith(("tvm.runtime.disco", "Disco"))]
    assert sorted(quick.stdout.splitlines()) == sorted(expected)


def test_our_own_import_of_tvm_raises_no_error_of_c(installed: Path) -> None:
    """The first such error takes 0.3 s for its backtrace."""
    code = """
import sys
found = []
def noting(frame, event, argument):
    if event == "exception" and argument[0].__module__.startswith("tvm"):
        found.append(str(argument[1]))
    return noting
sys.settrace(noting)
from microkernels.base.tvm_compat.first_import import import_tvm
import_tvm()
sys.settrace(None)
print(found)
"""
    done = run_python(code, path=installed)
    assert done.stdout == "[]\n", done.stderr


def test_threads_that_import_it_at_once_have_all_of_it(installed: Path) -> None:
    code = """
import sys, threading, time
from microkernels.base.tvm_compat import first_import
from microkernels.base.tvm_compat.first_import import import_tvm
found, stock = [], first_import._quick_errors
def slow():
    time.sleep(0.5)  # the other thread would be the first to ask
    return stock()
first_import._quick_errors = slow
def first():
    import_tvm()
    from tvm.backend.loader import is_loaded
    found.append(is_loaded("cuda"))
threads = [threading.Thread(target=first) for _ in range(2)]
for each in threads:
    each.start()
    while "tvm" not in sys.modules:
        time.sleep(0.001)
for each in threads:
    each.join()
print(found)
"""
    done = run_python(code, path=installed)
    assert done.stdout == "[True, True]\n", done.stderr


def test_our_own_import_leaves_backends_out_where_tvm_does(installed: Path) -> None:
    off = {"TVM_DEVICE_BACKEND_AUTOLOAD": "0"}
    code = "from tvm.backend.loader import is_loaded; print(is_loaded('cuda'))"
    done = run_python(QUICK + code, path=installed, **off)
    assert done.stdout.split() == ["False"], done.stderr


def test_the_hook_can_be_turned_off(installed: Path) -> None:
    done = run_python(
        "import tvm; print('tvm_hybrid/spr' in tvm.target.list_tags())",
        path=installed,
        TVM_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert done.stdout.split() == ["False"], done.stderr


def test_the_hook_is_silent_where_only_the_runtime_is(installed: Path) -> None:
    done = run_python(
        "import warnings; warnings.simplefilter('error'); import tvm; print(tvm.cpu())",
        path=installed,
        TVM_USE_RUNTIME_LIB="1",
    )
    assert done.stdout.split() == ["cpu:0"], done.stderr
    assert done.stderr == ""


def test_importing_the_package_after_tvm_registers_too() -> None:
    done = run_python("import tvm, tvm_hybrid; print(tvm.target.Target('tvm_hybrid/clx'))")
    assert "cascadelake" in done.stdout, done.stderr


def test_registering_twice_changes_nothing() -> None:
    _autoload.register()
    _autoload.register()


def test_importing_the_package_is_cheap() -> None:
    done = run_python(
        """
import time, tvm, sys
before = set(sys.modules)
start = time.thread_time()
import tvm_hybrid
print(time.thread_time() - start)
print(sorted(name for name in set(sys.modules) - before if "." not in name))
"""
    )
    seconds, modules = done.stdout.splitlines()
    # It takes under 0.02 s; the promised limit is 0.3 s.
    assert float(seconds) < 0.3, done.stderr
    for heavy in ("onnx", "rich", "xgboost", "relay_passes", "tir_schedules", "click"):
        assert f"'{heavy}'" not in modules


def test_the_package_imports_tvm_when_it_is_used_and_registers_once(installed: Path) -> None:
    done = run_python(
        "import sys, tvm_hybrid; print('tvm' in sys.modules); tvm_hybrid.resolve_target('spr')",
        path=installed,
    )
    assert (done.stdout.split(), done.stderr) == (["False"], "")


def test_every_public_name_is_there() -> None:
    for name in tvm_hybrid.__all__:
        assert getattr(tvm_hybrid, name) is not None
        assert name in dir(tvm_hybrid)
    with pytest.raises(AttributeError, match="nonesuch"):
        _ = tvm_hybrid.nonesuch


def test_tvm_compile_takes_the_pipeline_by_name() -> None:
    x = np.random.default_rng(3).standard_normal((1, 16)).astype(np.float32)
    target = tvm_hybrid.resolve_target(None)
    executable = tvm.compile(mlp_module(), target, relax_pipeline="tvm_hybrid")
    machine = relax.VirtualMachine(executable, tvm.cpu())
    result = machine["main"](tvm.runtime.tensor(x)).numpy()
    # 17 roundings of terms of size 1, at most 4 each.
    np.testing.assert_allclose(result, mlp_reference(x), atol=17 * 4 * 2.0**-23)
    assert any("tvm_hybrid_matmul" in line for line in executable.as_text().splitlines())


def test_partition_groups_what_we_take() -> None:
    mod = tvm_hybrid.partition_for_tvm_hybrid(mlp_module())
    names = [var.name_hint for var in mod.get_global_vars()]
    assert len(names) == 2 and "main" in names


def test_importing_us_imports_no_other_package() -> None:
    """Heavy modules are imported at the use of a name; of our own packages only the log is."""
    code = (
        "import sys; before = set(sys.modules); import tvm_hybrid;"
        "new = set(sys.modules) - before;"
        "print(sorted({name.partition('.')[0] for name in new} - sys.stdlib_module_names));"
        "print(sorted(name for name in new if name.startswith('microkernels.')))"
    )
    done = run_python(code)
    assert done.stdout.splitlines() == [
        "['microkernels', 'tvm_hybrid']",
        "['microkernels.base', 'microkernels.base.logs']",
    ], done.stderr
