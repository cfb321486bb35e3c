"""Values that nobody expects, and every place of a JSON value that one of them can be put in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any, Final

Place = tuple[str | int, ...]
"""Keys and list positions that lead to a value."""
GONE: Final = object()
"""In the place of a value: it is removed together with its key."""
SPECIAL = (
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|vision_start|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<|box_start|>",
)
"""Special tokens of `tools.attack.records.encoder`; the last is one of Qwen's that no template writes."""

TEXTS: dict[str, Any] = {
    "lone surrogate": "\ud800",
    "surrogate inside": "a \udfff b",
    "NUL": "a\0b.png",
    "empty": "",
    "blank": " \t\n",
    "zero width": "\u200b\u200d\u2060",
    "byte order mark": "\ufeff",
    "soft hyphen": "\u00ad\u00ad",
    "Hangul filler": "\u3164",
    "Braille blank": "\u2800",
    "variation selector": "\ufe0f\ufe0f",
    "tag characters": "\U000e0041\U000e0042",
    "direction marks": "\u202e\u2066",
    "not a character": "\ufffe\uffff",
    "many combining marks": "e" + "\u0301" * 3000,
    "line separators": "a\u2028b\x85c\x0bd",
    "long": "long " * 4000,
    "over-long path": "a/" * 3000 + "b.png",
    "over-long name": "n" * 5000,
    "outside": "../../../../etc/passwd",
    "absolute": "/etc/passwd",
    "device": "/dev/zero",
    "home": "~/one.png",
    "folder": ".",
    "loop": "loop.png",
    "loop below": "loop.png/one.png",
    "pipe": "pipe.png",
    "unreadable": "locked.png",
    "broken URI": "data:image/png;base64,@@@",
    "URI that is not ASCII": "data:image/png;base64,\u00e9\u00e9",
    "empty URI": "data:image/png;base64,",
    "URI without end": "data:",
    "marker": "<image>",
    "markers": "<image><image> and <image>",
    "video": "<video>",
    "number as text": "5",
    "number beyond floats as text": "9" * 400,
    "not a number as text": "nan",
    "infinity as text": "1e999",
    "JSON text": '{"a": [1]}',
    "JSON of depth 100,000": "[" * 100_000,
    "JSON of a long number": "[" + "9" * 5000 + "]",
    "format": "{0.__class__} %s %(x)s {{",
    "rich markup": "[/red] [link=x]",
    **{f"token {token}": f"a {token} b" for token in SPECIAL},
}
NUMBERS: dict[str, Any] = {
    "400 digits": 10**400,
    "minus 400 digits": -(10**400),
    "1e308": 1e308,
    "not a number": float("nan"),
    "infinity": float("inf"),
    "minus infinity": float("-inf"),
    "true": True,
    "false": False,
    "minus one": -1,
    "zero": 0,
    "two to the 64th": 2**64,
    "half": 0.5,
}
DEEP: Any = "x"
for _ in range(150):
    DEEP = [DEEP]


def split(token: str, pieces: int) -> list[dict[str, Any]]:
    """Return text parts that the template joins to `token`."""
    size = -(-len(token) // pieces)
    return [
        {"type": "text", "text": token[start : start + size]}
        for start in range(0, len(token), size)
    ]


OTHERS: dict[str, Any] = {
    "null": None,
    "empty list": [],
    "empty object": {},
    "list of null": [None],
    "list of numbers": [0, 1],
    "list of lists": [[[]]],
    "object": {"a": 1},
    "depth 150": DEEP,
    "text parts": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}],
    "empty text parts": [{"type": "text", "text": ""}, {"type": "text", "text": " "}],
    "image part": [{"type": "image"}, {"type": "text", "text": "a picture"}],
    "part without text": [{"type": "text"}],
    "part of null": [{"type": "text", "text": None}],
    "part of unknown type": [{"type": ["text"], "text": "x"}],
    "part whose type is a list": [{"type": [], "text": "x"}],
    "part of a number": [7],
    "turn of the system": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}],
    "turn without role": [{"content": "u"}],
    "turn whose role is a list": [{"role": ["user"], "content": "u"}],
    "turn of null": [{"role": "user", "content": None}],
    "ShareGPT turn": {"from": "gpt", "value": "x"},
    "ShareGPT turns": [{"from": "human", "value": "x"}, {"from": "gpt", "value": 3}],
    "image struct": {"bytes": None, "path": None},
    "image struct of numbers": {"bytes": 7, "path": 7},
    "bytes as text": {"bytes": "iVBORw0KGgo=", "path": None},
    "5,000 images": ["one.png"] * 5000,
    **{
        f"token {token} in {pieces} parts": split(token, pieces)
        for token in SPECIAL
        for pieces in (2, 3)
    },
}
VALUES = {**TEXTS, **NUMBERS, **OTHERS, "gone": GONE}


def places(value: Any, here: Place = ()) -> Iterator[Place]:
    """Yield where every value stands that `value` holds, at any depth."""
    entries: Sequence[tuple[str | int, Any]] = ()
    if isinstance(value, dict):
        entries = list(value.items())
    elif isinstance(value, list):
        entries = list(enumerate(value))
    for key, child in entries:
        yield (*here, key)
        yield from places(child, (*here, key))


def at(value: Any, place: Place) -> Any:
    """Return what stands at `place`."""
    for key in place:
        value = value[key]
    return value


def put(value: Any, place: Place, new: Any) -> Any:
    """Return a copy of `value` with `new` at `place`."""
    copied = deepcopy(value)
    holder = at(copied, place[:-1])
    if new is GONE:
        del holder[place[-1]]
    else:
        holder[place[-1]] = deepcopy(new)
    return copied


def dotted(place: Place) -> str:
    """Return a place as it is shown."""
    return ".".join(map(str, place))
