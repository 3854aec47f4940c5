from ..tirx import PrimFunc
from . import dlight as dlight
from . import meta_schedule as meta_schedule
from . import transform as transform
from ._tensor_intrin import TensorIntrin as TensorIntrin
from .schedule import Schedule as Schedule
from .schedule import ScheduleError as ScheduleError
from .stmt import MatchBufferRegion as MatchBufferRegion
from .stmt import SBlock as SBlock
from .stmt import SBlockRealize as SBlockRealize

def renew_defs(func: PrimFunc) -> PrimFunc: ...
