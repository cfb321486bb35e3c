"""Models of the released shapes on tensors that have shapes and no values: 7B runs its forward and backward on a laptop.

PyTorch's fake tensors run every kernel's own shape rule, those of the varlen kernel and its backward too. What cannot be
seen so are values, times, and on a CPU-only build of PyTorch mistakes about devices.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from mmrm.models.activations import set_checkpointing
from mmrm.models.compatibility import check_transformers
from mmrm.models.config import CheckpointingMode
from mmrm.models.packing import attention
from mmrm.models.packing.packed_batch import PackedBatch, divide, pack
from mmrm.models.packing.segments import SegmentTree
from mmrm.models.packing.sequence_group import SequenceGroup
from mmrm.train.studies.speed.workload import (
    FULL,
    build,
    config_of,
    pair_sizes,
    pair_tree,
    vision_tokens,
)

CPU = torch.device("cpu")
VARLEN = "torch_attn._varlen_attn.default"
ASKED = "aten._local_scalar_dense.default"
"""The host asks for a value, and on a device waits for it."""


class Host(Tensor):
    """A tensor that keeps its values, as image grids do: the model reads them on the CPU."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute with values; where they are sizes of a tensor without, take the numbers.

        Grids that are indexed by a tensor without values have been copied to its device, and are
        without values there.
        """
        given = args, kwargs or {}
        if any(isinstance(one, FakeTensor) for one in tree_leaves(given)):
            positional, named = tree_map(
                lambda one: one._for_fake() if isinstance(one, Host) else one, given
            )
            return func(*positional, **named)
        with unset_fake_temporarily():
            return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]

    def _for_fake(self) -> Any:
        """Return a number, or an empty tensor in place of several numbers."""
        if self.numel() == 1:
            return self.item()
        return torch.empty(tuple(self.shape), dtype=self.dtype)


class Kernels(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts kernels by name, and follows how many bytes are alive: at the peak, and of the largest tensor."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()
        self.alive = self.peak = self.largest = 0
        self._known: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one kernel."""
        self.counts[str(func)] += 1
        found = func(*args, **(kwargs or {}))
        self.add(one for one in tree_leaves(found) if isinstance(one, Tensor))
        return found

    def add(self, tensors: Iterator[Tensor]) -> None:
        """Count the memory of tensors, views not twice, until it is freed."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage not in self._known:
                self._known.add(storage)
                size = storage.nbytes()
                self.alive += size
                self.largest = max(self.largest, size)
                weakref.finalize(storage, self._free, size)
        self.peak = max(self.peak, self.alive)

    def _free(self, size: int) -> None:
        self.alive -= size


def _always(*query_and_choice: Any) -> bool:
    """Take the varlen kernel. A mock that returned True would keep every query alive."""
    return True


@dataclass(frozen=True)
class Shapes:
    """A model without values, and the mode under which it runs."""

    model: Any
    mode: FakeTensorMode

    def row(self, trees: Sequence[SegmentTree], group: SequenceGroup | None = None) -> PackedBatch:
        """Pack `trees`, and leave the shapes of the row, as this rank of a group computes it."""
        vision = vision_tokens(self.model.config)
        batch = pack(trees, vision)
        if group is not None:
            batch = divide(batch, group, vision)
        device = self.model.device
        with self.mode:
            fake = batch._map(
                lambda one: torch.empty_like(
                    self.mode.from_tensor(one, static_shapes=True), device=device
                )
            )
        return replace(fake, image_grid_thw=batch.image_grid_thw.as_subclass(Host))

    def pairs(self, count: int, seed: int = 0) -> list[SegmentTree]:
        """Return pairs of the workload of the speed targets; these have values."""
        vision = vision_tokens(self.model.config)
        return [
            pair_tree(size, vision, number)
            for number, size in enumerate(pair_sizes(count, seed, FULL))
        ]

    @contextmanager
    def run(self) -> Iterator[Kernels]:
        """Run what is inside without values, with the varlen kernel; weights count as memory that is there."""
        with (
            mock.patch.object(attention, "_takes_varlen", _always),
            self.mode,
            Kernels() as kernels,
        ):
            kernels.add(iter([*self.model.parameters(), *self.model.buffers()]))
            yield kernels


def shapes_of(
    kind: type[nn.Module],
    name: str,
    *,
    checkpointing: CheckpointingMode = "none",
    device: torch.device = CPU,
) -> Shapes:
    """Return a model of the class `kind` at the shape `3b` or `7b`, in bf16, ready to be trained.

    On `cuda`, which takes a build of PyTorch for CUDA and no device, gradients cannot be computed.
    """
    check_transformers(config_of(name).model_type)  # runs a small model, which needs values
    mode = FakeTensorMode(shape_env=ShapeEnv())
    with mode:
        model = build(kind, name, device, torch.bfloat16)
    set_checkpointing(model, checkpointing)
    return Shapes(model.train(), mode)
