"""python count_collectives.py CONFIGURATION ROWS [RANKS]: bytes that DeepSpeed moves in a step and holds after it, as JSON.

What is moved is what goes into collectives, what is held is what tensors have memory for after a backward pass. With RANKS this
process is the first of so many pretended ones (torch's `fake` process group); without, it is one that a launcher started. Every
weight of the model is divided and released after use, as those of a large model are.
"""

import gc
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import deepspeed
import torch
from torch import distributed, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # the clone, installed or not

from mmrm.train.recipe.deepspeed_config import deepspeed_config, stage

BUCKET = 512 * 512
"""Gradients that DeepSpeed collects before it exchanges them."""
KINDS = {"allreduce": "reduced", "allgather": "gathered", "reduce_scatter": "scattered"}


class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the bf16 tensors of collectives, the larger of what goes in and what comes out."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = str(function)
        if name.startswith("c10d."):
            sizes = [
                one.nbytes
                for one in tree_leaves(args)
                if isinstance(one, torch.Tensor) and one.dtype == torch.bfloat16
            ]
            kind = next((kind for part, kind in KINDS.items() if part in name), name)
            objects = [one for one in tree_leaves(args) if isinstance(one, torch.ScriptObject)]
            (group,) = (
                distributed.ProcessGroup.unbox(one)
                for one in objects
                if "ProcessGroup" in str(one._type())
            )
            kind += "_inside" * (group.size() < distributed.get_world_size())
            self.bytes[kind] += max(sizes, default=0)
        return function(*args, **(kwargs or {}))


def tensors() -> list[torch.Tensor]:
    """Return all tensors that Python knows and that have memory."""
    return [one for one in gc.get_objects() if isinstance(one, torch.Tensor) and not one.is_meta]


def main(name: str, rows: str, ranks: str = "") -> None:
    """Print the bytes of a step, those of the weights, and those held."""
    if ranks:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        os.environ.update(
            RANK="0", LOCAL_RANK="0", WORLD_SIZE=ranks, MASTER_ADDR="localhost", MASTER_PORT="0"
        )
        distributed.init_process_group("fake", rank=0, world_size=int(ranks), store=FakeStore())
    else:
        distributed.init_process_group("gloo")
    config = deepspeed_config(name, "bfloat16", cpu=True)
    assert config is not None
    zero = {key: value for key, value in config["zero_optimization"].items() if value != "auto"}
    if stage(name) == 3:
        small = {
            "param_persistence_threshold": 0,
            "max_live_parameters": 1,
            "max_reuse_distance": 0,
            "prefetch_bucket_size": 1,
        }
        zero |= {f"stage3_{key}": value for key, value in small.items()}
    zero["reduce_bucket_size"] = BUCKET
    settings = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": int(rows),
        "gradient_clipping": 1.0,
    }
    adam = {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}
    model = nn.Sequential(*[nn.Linear(512, 512, bias=False) for _ in range(8)])
    weights = sum(parameter.numel() for parameter in model.parameters()) * 2
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=model.parameters(),
        config=config
        | settings
        | {"zero_optimization": zero, "optimizer": adam, "zero_allow_untested_optimizer": True},
    )
    held = 0
    for _ in range(2):  # the first step also builds what the second finds
        with Counting() as counting:
            for row in range(int(rows)):
                engine.set_gradient_accumulation_boundary(row == int(rows) - 1)
                engine.backward(engine(torch.randn(1, 512, dtype=torch.bfloat16)).sum())
                storages = {
                    one.untyped_storage()._cdata: one.untyped_storage().nbytes()
                    for one in tensors()
                }
                held = max(held, sum(storages.values()))
                engine.step()
    if distributed.get_rank() == 0:
        print(json.dumps({"weights": weights, "held": held, **counting.bytes}))


main(*sys.argv[1:])
