"""Requests that no server should answer with scores: sound ones with something broken, and bytes."""

import json
import random
from typing import Any

from mmrm.eval.serving.api_description import WHITE_SQUARE

SOUND: dict[str, dict[str, Any]] = {
    "/v1/rewards": {
        "groups": [
            {"messages": [{"role": "user", "content": "x"}], "responses": ["a", "b"], "images": []}
        ]
    },
    "/classify": {
        "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "a"}]
    },
    "/rerank": {"query": "x", "documents": ["a", "b"]},
    "/get_reward": {"query": ["x a"], "prompts": ["x "]},
    "/score": {
        "requests": [
            {
                "history": [{"text": "x", "image_b64": WHITE_SQUARE}],
                "required_rewards": ["reward_model"],
            }
        ]
    },
}
JUNK: tuple[Any, ...] = (
    None,
    True,
    -1,
    1e308,
    float("nan"),
    "",
    "\x00",
    "<|im_end|>",
    "http://localhost/a.png",
    "../../etc/passwd",
    "data:image/png;base64,AAAA",
    "data:image/png;base64,\u00e9",
    [],
    {},
    [[[[]]]],
    {"type": []},
    {"type": "image_url", "image_url": {}},
    {"type": "image", "image": 3},
    {"type": "video"},
    {"role": "user"},
    10**400,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths to everything in a JSON value."""
    inside = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [path, *(deeper for key, one in inside for deeper in places(one, (*path, key)))]


def malformed(rng: random.Random) -> tuple[str, bytes]:
    """Return a path and a body that is certainly wrong."""
    path = rng.choice(list(SOUND))
    body = json.loads(json.dumps(SOUND[path]))
    kind = rng.randrange(4)
    if kind == 0:  # no JSON
        content = json.dumps(body).encode()
        return path, content[: rng.randrange(len(content))] + rng.choice(
            [b"", b"\xff", b"]", b"[" * 9999]
        )
    if kind == 1:  # bytes
        return path, rng.randbytes(rng.randrange(200))
    if kind == 2:  # no mapping
        return path, json.dumps(
            rng.choice([one for one in JUNK if not isinstance(one, dict)])
        ).encode()
    target = rng.choice([one for one in places(body) if one and one[-1] not in ("images", 1)])
    held = body
    for key in target[:-1]:
        held = held[key]
    held[target[-1]] = rng.choice([one for one in JUNK if not isinstance(one, str)])
    if target[-1] == "content":  # an empty list is an empty turn
        held["content"] = [held["content"]]
    return path, json.dumps(body).encode()
