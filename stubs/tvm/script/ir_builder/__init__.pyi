from .base import IRBuilder as IRBuilder
