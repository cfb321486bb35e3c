"""Collective operations over ranks. In a single process, each returns its argument."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import TypeVar

import torch
from torch import Tensor, distributed

from mmrm.data.errors import UserError

ItemT = TypeVar("ItemT")


ALONE: ContextVar[bool] = ContextVar("alone", default=False)
"""True inside the context `alone()`."""


@contextmanager
def alone() -> Iterator[None]:
    """Let this rank work without the others inside the context.

    The functions of this module then behave as in a single process: they exchange nothing and wait
    for no other rank.
    """
    token = ALONE.set(True)
    try:
        yield
    finally:
        ALONE.reset(token)


def is_distributed() -> bool:
    """Return True if there is a process group over which this rank is to communicate.

    Inside the context `alone()`, a rank works without the others, and this is False.
    """
    return distributed.is_available() and distributed.is_initialized() and not ALONE.get()


def rank() -> int:
    """Return the rank of this process; 0 if `is_distributed()` is False."""
    return distributed.get_rank() if is_distributed() else 0


def world_size() -> int:
    """Return the number of ranks; 1 if `is_distributed()` is False."""
    return distributed.get_world_size() if is_distributed() else 1


def max_over_ranks(value: int, device: torch.device) -> int:
    """Return the largest `value` of all ranks; all ranks must call together."""
    if not is_distributed():
        return value
    largest = torch.tensor(value, device=device)
    distributed.all_reduce(largest, op=distributed.ReduceOp.MAX)
    return int(largest)


def sum_over_ranks(values: Tensor) -> Tensor:
    """Return the elementwise sum of `values` over all ranks.

    All ranks must call together, with tensors of the same shape and dtype.
    """
    if not is_distributed():
        return values
    total = values.clone()
    distributed.all_reduce(total)
    return total


def gather(item: ItemT) -> list[ItemT]:
    """Return the items of all ranks in rank order; all ranks must call together.

    Every rank gets the same list. Items are pickled.
    """
    if not is_distributed():
        return [item]
    items: list[ItemT | None] = [None] * world_size()
    distributed.all_gather_object(items, item)
    return items  # type: ignore[return-value]


def barrier() -> None:
    """Wait until every rank has called this function."""
    if is_distributed():
        distributed.barrier()


def on_first_rank(work: Callable[[], None], timeout: timedelta) -> None:
    """Call a function on the first rank, while the others wait; all ranks must call together.

    The ranks wait in a group of their own, because a collective operation of the default group
    fails after minutes, in which long work does not end.

    Args:
        work: The function.
        timeout: The longest time for which the other ranks wait.

    Raises:
        UserError: On all ranks, if the function raises it on the first rank.
    """
    if not is_distributed():
        work()
        return
    group = distributed.new_group(backend="gloo", timeout=timeout)
    refusal: UserError | None = None
    if rank() == 0:
        try:
            work()
        except UserError as error:
            refusal = error
    refusals: list[UserError | None] = [None] * world_size()
    distributed.all_gather_object(refusals, refusal, group=group)
    distributed.destroy_process_group(group)
    if refusals[0] is not None:
        raise refusals[0]


@contextmanager
def locked_by_first_rank(lock: AbstractContextManager[object]) -> Iterator[None]:
    """Hold the lock of an output on the first rank while all ranks work inside the context.

    All ranks must enter the context together.

    Args:
        lock: The lock, which the first rank alone enters: the result of `locked_folder` or
            `locked_file` of data/storage/output_lock.py.

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
        # All ranks raise together: a rank that went on alone would wait for the others for ever.
        refusal_of_first_rank = gather(refusal)[0]
        if refusal_of_first_rank is not None:
            raise refusal_of_first_rank
        yield
