"""python verl_omni_probe.py REQUEST: a reward manager of verl-omni asks a server for rewards.

REQUEST is JSON, {"client", "rows", "url", "settings"}, as `run_probe` of generators.py writes it.
The last line printed is JSON, the rewards. Runs without this project. Modules of verl that import
Ray are replaced by stubs, of which the managers use one function each.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import Image

Rows = list[dict[str, Any]]


class OneRow:
    """A `DataProto` of one row, as the agent loop passes it to a reward manager."""

    def __init__(self, row: SimpleNamespace) -> None:
        self.row = row

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> SimpleNamespace:
        assert index == 0
        return self.row


def stub(name: str, **content: Any) -> None:
    """Put a module with some content in the place of one that is not installed."""
    module = ModuleType(name)
    for key, value in content.items():
        setattr(module, key, value)
    sys.modules[name] = module


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop, as verl's function does it."""
    return asyncio.get_running_loop()


def pixels_of(path: str) -> torch.Tensor:
    """Return an image as verl-omni's pipelines return it: uint8, (3, height, width)."""
    return torch.from_numpy(np.array(Image.open(path).convert("RGB"))).permute(2, 0, 1)


def data_of(row: dict[str, Any], output_type: str) -> OneRow:
    """Return the trajectory of a row, with the prompt in the form of qwenimage's data."""
    content: Any = row["prompt"]
    if "source" in row:
        source = {"type": "image", "image": Image.open(row["source"])}
        content = [{"type": "text", "text": "Picture 1: "}, source, {"type": "text", "text": "x"}]
    raw_prompt = [
        {"role": "system", "content": "Describe the image by detailing its colours:"},
        {"role": "user", "content": content},
    ]
    pixels = pixels_of(row["image"])
    if output_type == "latent":
        pixels = pixels / 255
    if output_type == "video":
        pixels = torch.stack([pixels, pixels])
    columns = {
        "data_source": "probe",
        "reward_model": {"style": "model", "ground_truth": row["prompt"]},
        "extra_info": {},
        "raw_prompt": np.array([raw_prompt])[0],
    }
    return OneRow(
        SimpleNamespace(batch={"responses": pixels}, non_tensor_batch=columns, meta_info={})
    )


def config_of(url: str, settings: dict[str, Any]) -> Any:
    """Return the settings of verl-omni that the managers read."""
    pipeline = {"output_type": settings.get("output_type", "image")}
    rollout = SimpleNamespace(pipeline=pipeline, val_kwargs=SimpleNamespace(pipeline=pipeline))
    function = {
        "path": "pkg://verl_omni.utils.reward_score.http_scorer_client",
        "name": "compute_score",
        "required": "true",
        "server_url": url,
    }
    reward = SimpleNamespace(reward_functions={"scorer": function})
    return SimpleNamespace(
        actor_rollout_ref=SimpleNamespace(rollout=rollout),
        reward=reward,
    )


def by_http_scorer(config: Any, url: str, settings: dict[str, Any]) -> Any:
    """Return verl-omni's own image manager with its own HTTP scorer client."""
    from verl_omni.reward_loop.reward_manager.visual import VisualRewardManager
    from verl_omni.utils.reward_score.http_scorer_client import compute_score

    class Filled(VisualRewardManager):  # type: ignore[misc]
        """The manager, with the function that verl wraps as a partial of its settings."""

        def __init__(self) -> None:
            super().__init__(config, None, compute_score)
            self.compute_score = partial(compute_score, server_url=url)

    return Filled()


def by_weighted_scorers(config: Any, url: str, settings: dict[str, Any]) -> Any:
    """Return verl-omni's manager of several functions, with its HTTP scorer client as required."""
    from verl_omni.reward_loop.reward_manager.multi import MultiVisualRewardManager

    return MultiVisualRewardManager(config, None, None)


def by_adapter(config: Any, url: str, settings: dict[str, Any]) -> Any:
    """Return the manager of the adapter, loaded as `load_reward_manager` of verl loads it."""
    from verl.utils.import_utils import load_extern_object

    manager_class = load_extern_object("verl_omni_reward.py", "Reward")
    module_globals = manager_class.run_single.__globals__
    module_globals["FIRST_DELAY"] = 0.01
    module_globals["TRIES"] = settings.get("tries", module_globals["TRIES"])
    return manager_class(
        config=config,
        tokenizer=None,
        compute_score=None,
        reward_router_address=None,
        reward_model_tokenizer=None,
    )


CLIENTS: dict[str, Callable[[Any, str, dict[str, Any]], Any]] = {
    "http_scorer": by_http_scorer,
    "weighted_scorers": by_weighted_scorers,
    "adapter": by_adapter,
}


async def rewards(request: dict[str, Any]) -> list[float]:
    """Return the rewards of all rows, which are requested at the same time."""
    settings = request["settings"]
    manager = CLIENTS[request["client"]](
        config_of(request["url"], settings), request["url"], settings
    )
    output_type = settings.get("output_type", "image")
    results = await asyncio.gather(
        *(manager.run_single(data_of(row, output_type)) for row in request["rows"])
    )
    scores = [result["reward_score"] for result in results]
    assembled = manager.assemble_rm_scores(None, scores)
    assert assembled.shape == (len(scores), 1)
    return scores


import verl  # a namespace without verl's own __init__.py, which imports all of it

verl.DataProto = OneRow
stub("verl.utils.ray_utils", get_event_loop=running_loop)
stub("verl.utils.reward_score", default_compute_score=None)
print(json.dumps(asyncio.run(rewards(json.loads(sys.argv[1])))))
