from . import onnx as onnx
from . import torch as torch
