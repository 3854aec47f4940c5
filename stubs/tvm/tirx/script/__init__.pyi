from . import builder as builder
