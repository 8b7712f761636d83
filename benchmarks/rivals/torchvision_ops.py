"""Lets `import torchvision` pass beside a build of PyTorch without CUDA, for which its wheel has no operators.

FedLab and APPFL import it for data sets and image measures that are not used here. Only the names of the operators are
declared that its import looks up; to call one is an error. Import this module before them.
"""

from __future__ import annotations

import torch

OPERATORS = torch.library.Library("torchvision", "FRAGMENT")
for name in ("nms", "qnms"):
    if not hasattr(torch.ops.torchvision, name):
        OPERATORS.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
