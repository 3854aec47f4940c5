"""The command line speaks of its own options."""

from __future__ import annotations

import pytest

from tvm_hybrid.cli.wording import in_options

ARGUMENTS = ["run", "m.onnx", "--dim", "batch=2", "--dim=my seq=3", "--shape", "x=1x3"]


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        (
            "give one, for example shapes={'x': (1, 3)} or shapes={'N': 1}",
            "give one, for example --shape x=1x3 or --dim N=1",
        ),
        ("give it as shapes={'x': (1, ...)}", "give it as --shape x=1x..."),
        ("shapes={'x': (7,)}, shapes={'s': ()}", "--shape x=7, --shape s=scalar"),
        ('shapes={"it\'s": 1}', "--dim 'it'\"'\"'s=1'"),
        ("shapes={'a b': (1, 2)}", "--shape 'a b=1x2'"),
        ("shapes['x'][1] is 4", "dimension 1 of --shape x is 4"),
        ("2 by shapes['batch'] but 3 by", "2 by --dim batch but 3 by"),
        ("shapes['my seq'] is 2", "--dim 'my seq' is 2"),
        ("shapes names 'w'; the", "--shape or --dim names 'w'; the"),
        (
            "give it, for example values={'axes': [0, 1], 'k': 1, 'go': True}",
            "give it, for example --value 'axes=[0, 1]' --value k=1 --value go=true",
        ),
        ("values['my k'] has the shape", "--value 'my k' has the shape"),
        ("values names 'w'; the", "--value names 'w'; the"),
        ("num_threads must be positive", "--threads must be positive"),
        (
            "threads='socket:0' has too few CPUs for 5 threads",
            "--threads socket:0 has too few CPUs for 5 threads",
        ),
        ("weights='replicate' needs", "--weights replicate needs"),
        ("the inputs' shapes differ", "the inputs' shapes differ"),
    ],
)
def test_keywords_become_options(message: str, wanted: str) -> None:
    assert in_options(message, ARGUMENTS) == wanted
