"""Every error that tvm_hybrid raises on purpose."""

from microkernels.base import errors
from microkernels.base.errors import *  # noqa: F403

__all__ = sorted(
    name
    for name, each in vars(errors).items()
    if isinstance(each, type) and issubclass(each, errors.TvmHybridError)
)
for _name in __all__:
    globals()[_name].__module__ = __name__  # tracebacks show the name that users import
