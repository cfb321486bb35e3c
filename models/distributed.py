"""Collective operations over ranks; in a single process each is the identity."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from typing import TypeVar

import torch
from torch import Tensor, distributed

from mmrm.data.errors import UserError

ItemT = TypeVar("ItemT")


ALONE: ContextVar[bool] = ContextVar("alone", default=False)
"""True inside `alone()`."""


@contextmanager
def alone() -> Iterator[None]:
    """Make every collective the identity inside the context.

    One rank can then work while the others do something else.
    """
    token = ALONE.set(True)
    try:
        yield
    finally:
        ALONE.reset(token)


def is_distributed() -> bool:
    """Return True if there is a process group and this rank is not inside `alone()`."""
    return distributed.is_available() and distributed.is_initialized() and not ALONE.get()


def rank() -> int:
    """Return the rank of this process; 0 without a process group."""
    return distributed.get_rank() if is_distributed() else 0


def world_size() -> int:
    """Return the number of processes; 1 without a process group."""
    return distributed.get_world_size() if is_distributed() else 1


def max_over_ranks(value: int, device: torch.device) -> int:
    """Return the largest `value` of all ranks; all ranks must call together."""
    if not is_distributed():
        return value
    largest = torch.tensor(value, device=device)
    distributed.all_reduce(largest, op=distributed.ReduceOp.MAX)
    return int(largest)


def sum_over_ranks(values: Tensor) -> Tensor:
    """Return the elementwise sum over all ranks; all must call with the same shape and dtype."""
    if not is_distributed():
        return values
    total = values.clone()
    distributed.all_reduce(total)
    return total


def gather(item: ItemT) -> list[ItemT]:
    """Return the `item` of every rank, in rank order, on every rank; items are pickled."""
    if not is_distributed():
        return [item]
    items: list[ItemT | None] = [None] * world_size()
    distributed.all_gather_object(items, item)
    return items  # type: ignore[return-value]


def barrier() -> None:
    """Wait until every rank has called this function."""
    if is_distributed():
        distributed.barrier()


@contextmanager
def locked_by_first_rank(lock: AbstractContextManager[object]) -> Iterator[None]:
    """Hold the lock of an output on the first rank while all ranks work; all must call together.

    Args:
        lock: The result of `locked_folder` or `locked_file` of data/storage/output_lock.py.

    Raises:
        UserError: On all ranks, if the first rank cannot take the lock.
    """
    with ExitStack() as stack:
        refusal: UserError | None = None
        if rank() == 0:
            try:
                stack.enter_context(lock)
            except UserError as error:
                refusal = error
        refusal = gather(refusal)[0]
        if refusal is not None:
            raise refusal
        yield
