from . import ir as ir
