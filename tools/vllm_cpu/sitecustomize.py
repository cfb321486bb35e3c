"""For `make test-vllm` and `make side-by-side`, in every process: vLLM and others import torchvision, built for CUDA on PyPI.

Beside a torch for CPUs the import then stops at two operators that are registered nowhere. Nothing calls them here: they are
declared first, unless torchvision is the CPU build of PyTorch's own index, which brings them.
"""

import sys
from importlib.abc import MetaPathFinder
from importlib.metadata import version
from typing import Any

OPERATORS: list[Any] = []


class BeforeTorchvision(MetaPathFinder):
    """Declares the operators when torchvision is looked for, so that other processes need not load torch."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        """Leave the finding to the others."""
        if fullname == "torchvision":
            sys.meta_path.remove(self)
            import torch

            OPERATORS.append(torch.library.Library("torchvision", "DEF"))  # type: ignore[no-untyped-call]
            for name in ("nms", "qnms"):
                OPERATORS[0].define(
                    f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
                )


if not version("torchvision").endswith("+cpu"):
    sys.meta_path.insert(0, BeforeTorchvision())
