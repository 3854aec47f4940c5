from . import ir_builder as ir_builder
