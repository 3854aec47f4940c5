from . import arg_info as arg_info
from . import database as database
from . import mutator as mutator
from . import postproc as postproc
from . import schedule_rule as schedule_rule
from . import space_generator as space_generator
