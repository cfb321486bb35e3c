"""The few collectives that this project calls itself; each is the identity in a single process."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from typing import TypeVar

import torch
from torch import Tensor, distributed

from mmrm.data.errors import UserError

Item = TypeVar("Item")


ALONE: ContextVar[bool] = ContextVar("alone", default=False)


@contextmanager
def alone() -> Iterator[None]:
    """Work without the other ranks, which do something else meanwhile: inside, every collective is the identity."""
    before = ALONE.set(True)
    try:
        yield
    finally:
        ALONE.reset(before)


def is_distributed() -> bool:
    """Say whether a process group is up and is to be used."""
    return distributed.is_available() and distributed.is_initialized() and not ALONE.get()


def rank() -> int:
    """Return this process's rank, 0 without a process group."""
    return distributed.get_rank() if is_distributed() else 0


def world_size() -> int:
    """Return the number of processes, 1 without a process group."""
    return distributed.get_world_size() if is_distributed() else 1


def max_over_ranks(value: int, device: torch.device) -> int:
    """Return the largest `value` of all ranks; every rank must call."""
    if not is_distributed():
        return value
    largest = torch.tensor(value, device=device)
    distributed.all_reduce(largest, op=distributed.ReduceOp.MAX)
    return int(largest)


def sum_over_ranks(values: Tensor) -> Tensor:
    """Return the elementwise sum over all ranks; every rank must call with the same shape and dtype."""
    if not is_distributed():
        return values
    total = values.clone()
    distributed.all_reduce(total)
    return total


def gather(item: Item) -> list[Item]:
    """Return the `item` of every rank, in rank order, on every rank; items travel pickled."""
    if not is_distributed():
        return [item]
    items: list[Item | None] = [None] * world_size()
    distributed.all_gather_object(items, item)
    return items  # type: ignore[return-value]


def barrier() -> None:
    """Wait until every rank has come here."""
    if is_distributed():
        distributed.barrier()


@contextmanager
def locked_by_first_rank(lock: AbstractContextManager[object]) -> Iterator[None]:
    """Hold the lock of an output on the first rank, while all ranks work; all must call together.

    `lock` is what `locked_folder` or `locked_file` of data/storage/output_lock.py returned.

    Raises: UserError on all ranks if the first rank cannot have the lock.
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
