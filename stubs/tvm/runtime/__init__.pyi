from ._tensor import Tensor as Tensor
from ._tensor import empty as empty
from ._tensor import from_dlpack as from_dlpack
from ._tensor import tensor as tensor
from .executable import Executable as Executable
from .module import Module as Module
from .module import load_module as load_module
from .module import num_threads as num_threads
