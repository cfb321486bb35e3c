"""JSON as records hold it: what Python's reader takes without a word (a key twice, a lone surrogate, any depth) is refused."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from mmrm.data.errors import RecordError

DEPTH = 64
"""The deepest nesting of a row; no released data set reaches ten."""
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
"""How JSON writes half a character, which is a character only beside its other half."""
STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
"""A string of a JSON text, or the beginning of one that does not end."""
BLANKS = re.compile(r"[ \t\n\r]*")


def count_values(content: bytes) -> int:
    """Return an upper bound on the values in a JSON text, without parsing it: one more than its separators.

    A few million small values take a hundred times their text in memory.
    """
    outside_strings = STRING.sub(b"", content)
    return 1 + sum(map(outside_strings.count, (b",", b"[", b"{", b":")))


def parse_json(content: str | bytes) -> Any:
    """Return a JSON value; a byte order mark in front does not count.

    Raises: RecordError for what is no JSON or no UTF-8, a key twice in an object, half a character, a nesting beyond DEPTH.
    """
    try:
        text = content.decode("utf-8-sig") if isinstance(content, bytes) else content
        value = json.loads(text, object_pairs_hook=_object)
        level, depth = [value], 0
        while level := [
            below for one in level if isinstance(one, dict | list) for below in _children(one)
        ]:
            depth += 1
            if depth > DEPTH:
                raise RecordError(
                    f"the JSON is nested more than {DEPTH} deep. Flatten it, or leave it out."
                )
        if SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except RecordError:
        raise
    except UnicodeEncodeError as error:
        found = error.object[error.start : error.end]
        raise RecordError(
            f"the JSON holds {found!r}, half of a character, which no tokenizer reads. Write the whole character, or remove it."
        ) from error
    except (ValueError, RecursionError) as error:
        raise RecordError(f"no valid JSON ({error}).") from error
    return value


def items(text: str) -> Iterator[str]:
    """Yield the items of a JSON list, each as it is written there, on one line.

    Raises: ValueError where the list is none; RecursionError for an item of too deep a nesting.
    """
    scan = json.JSONDecoder(
        parse_int=len
    ).raw_decode  # numbers of any length: `parse_json` judges the items
    place = _after_blanks(text, 0)
    if text[place : place + 1] != "[":
        raise ValueError("it does not begin with '['")
    place = _after_blanks(text, place + 1)
    more = text[place : place + 1] != "]"
    while more:
        _, end = scan(text, place)
        yield text[place:end].replace("\n", " ").replace("\r", " ")  # strings hold none
        place = _after_blanks(text, end)
        if text[place : place + 1] not in (",", "]"):
            raise ValueError(f"character {place:,} is neither ',' nor ']'")
        more = text[place] == ","
        place = _after_blanks(text, place + 1) if more else place
    if (end := _after_blanks(text, place + 1)) != len(text):
        raise ValueError(f"the list ends before character {end:,}, but the file goes on")


def _after_blanks(text: str, place: int) -> int:
    found = BLANKS.match(text, place)
    return place if found is None else found.end()


def _children(value: dict[str, Any] | list[Any]) -> Any:
    return value.values() if isinstance(value, dict) else value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        count_by_key = Counter(key for key, _ in pairs)
        double = next(key for key in found if count_by_key[key] > 1)
        raise RecordError(
            f"the key {double[:60]!r} stands twice in an object, and nobody can tell which one counts."
        )
    return found
