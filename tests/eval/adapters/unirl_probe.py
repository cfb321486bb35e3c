"""python unirl_probe.py REQUEST: a client of UniRL asks a server for the rewards of images.

REQUEST is JSON, {"client", "rows", "url", "settings"}, as `run_probe` of generators.py writes it.
The last line printed is JSON, the rewards. Runs without this project.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import unirl_reward
from PIL import Image
from reward_service.client import RewardClient
from reward_service.client import RewardRequest as ServiceRequest
from unirl.reward.base import RewardBackend
from unirl.reward.remote import RemoteRewardBackend, RemoteRewardSpec
from unirl.types.primitives import Images, Texts
from unirl.types.reward import RewardRequest

Rows = list[dict[str, Any]]


def pixels_of(paths: list[str]) -> torch.Tensor:
    """Return images as UniRL's pipelines decode them: (images, 3, height, width), from 0 to 1."""
    arrays = [np.asarray(Image.open(path).convert("RGB")) for path in paths]
    return torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2) / 255


def request_of(rows: Rows) -> RewardRequest:
    """Return the request that UniRL's RewardService passes to a backend."""
    primitives: dict[str, Any] = {"text": Texts(texts=[row["prompt"] for row in rows])}
    if "source" in rows[0]:
        primitives["image"] = Images(pixels=pixels_of([row["source"] for row in rows]))
    generated = {"image": Images(pixels=pixels_of([row["image"] for row in rows]))}
    return RewardRequest(primitives=primitives, generated=generated)


def rewards_of(backend: RewardBackend, rows: Rows) -> list[float]:
    """Return the rewards of a backend, as UniRL's RewardService uses them.

    Raises:
        RuntimeError: If a sample is marked as failed, as in `RewardService.score_and_attach`.
    """
    response = backend.compute_rewards(request_of(rows))
    failed = [
        error for ok, error in zip(response.successes, response.errors, strict=True) if not ok
    ]
    if failed:
        raise RuntimeError(f"{len(failed)} samples failed: {failed[0]}")
    return list(response.rewards)


def by_backend(rows: Rows, url: str, settings: dict[str, Any]) -> list[float]:
    """Return the rewards that UniRL's own remote backend receives."""
    values = {"required_rewards": ("reward_model",), "image_format": "PNG", "retry_delay": 0.01}
    spec = RemoteRewardSpec(base_url=url, **{**values, **settings})
    backend = RemoteRewardBackend(config=spec, base_device="cpu")
    assert backend.is_available()  # checks the names of the rewards in /health, too
    return rewards_of(backend, rows)


def by_service_client(rows: Rows, url: str, settings: dict[str, Any]) -> list[float]:
    """Return the rewards that the client of UniRL's reward service receives."""
    client = RewardClient(url, image_format="PNG", **settings)
    assert client.rewards() == ["reward_model"]
    assert client.health()["rewards"] == {"reward_model": ["ready"]}
    requests = []
    for row in rows:
        paths = [row["source"], row["image"]] if "source" in row else [row["image"]]
        history = [(row["prompt"], Image.open(path)) for path in paths]
        requests.append(ServiceRequest(history=history, required_rewards=["reward_model"]))
    return [result["reward_model"]["score"] for result in client.score(requests)]


def by_adapter(rows: Rows, url: str, settings: dict[str, Any]) -> list[float]:
    """Return the rewards that the adapter receives."""
    unirl_reward.FIRST_DELAY = 0.01
    unirl_reward.TRIES = settings.get("tries", unirl_reward.TRIES)
    return rewards_of(unirl_reward.Reward(url), rows)


CLIENTS: dict[str, Callable[[Rows, str, dict[str, Any]], list[float]]] = {
    "backend": by_backend,
    "service_client": by_service_client,
    "adapter": by_adapter,
}

request = json.loads(sys.argv[1])
print(json.dumps(CLIENTS[request["client"]](request["rows"], request["url"], request["settings"])))
