"""The graphs that `torch.compile` gave us, and how each runs; importable without torch."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

from ..executable.executable import Executable


@dataclass(eq=False)
class TorchProgram:
    """One graph that `torch.compile(..., backend="tvm_hybrid")` gave us.

    Attributes
    ----------
    name : str
        torch's number of the compilation, as its logs have it, such as "0/1".
    executable : Executable or None
        The executable that runs the graph; None if it runs in eager mode.
    reason : str
        Why the graph runs in eager mode; "" if it is compiled.
    compilations : int
        How often the graph was compiled: again whenever parameters had changed.
    parameters : int
        How many tensors of the module are constants of the executable.
    """

    name: str
    executable: Executable | None = None
    reason: str = ""
    compilations: int = 0
    parameters: int = 0

    @property
    def taken(self) -> bool:
        """Whether the graph is compiled, not run in eager mode."""
        return self.executable is not None

    def __str__(self) -> str:
        if self.executable is None:
            return f"{self.name}: eager: {self.reason}"
        return f"{self.name}: {self.executable.explain().summary()}"


_programs: list[weakref.ref[TorchProgram]] = []


def torch_programs() -> list[TorchProgram]:
    """The graphs that `torch.compile` gave to the backend "tvm_hybrid" in this process.

    Returns
    -------
    list of TorchProgram
        The graphs that torch still holds, oldest first. Each has a `name`, whether it is `taken`,
        its `executable`, or the `reason` why it runs in eager mode.
    """
    return [program for each in _programs if (program := each()) is not None]


def add_program(name: str) -> TorchProgram:
    """Adds a TorchProgram to the list, which holds it weakly; the caller must hold it."""
    _programs[:] = [each for each in _programs if each() is not None]
    program = TorchProgram(name)
    _programs.append(weakref.ref(program))
    return program
