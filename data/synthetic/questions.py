"""What is asked about a scene: the question types of the embedded world.

A question is put to two scenes, a scene and its twin, that differ in one thing, and is chosen so that their answers differ.
Which of the two is drawn is a coin tossed after every word is fixed. So the joint distribution of (question, chosen,
rejected) is symmetric under swapping chosen and rejected: a judge that does not see the image is right half of the time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from data.synthetic.rng import Rng
from data.synthetic.scenes import Change, Edit, Kind, Level, Scene, SceneObject, come_or_go, move, recolour, rename, resize
from data.synthetic.wording import (
    Query,
    Side,
    answer,
    article,
    at,
    call,
    caption,
    coloured,
    entry,
    how_many,
    in_full,
    noun,
    plural,
    yes_or_no,
)

Test = Callable[[SceneObject], bool]


class _Group(NamedTuple):
    """Things that are counted together; groups of one family can be compared."""

    family: Literal["colour", "shape", "kind", "all"]
    one: str
    many: str
    fits: Test

    def count(self, scene: Scene) -> int:
        """Count the things of `scene` that belong to the group."""
        return sum(map(self.fits, scene.things))


def _groups(thing: SceneObject) -> list[_Group]:
    """Return the groups that `thing` belongs to."""
    colour, kind, what = thing.colour, thing.kind, thing.what
    groups = [
        _Group("colour", f"{colour} thing", f"{colour} things", lambda other: other.colour == colour),
        _Group("kind", kind, plural(kind), lambda other: other.kind == kind),
        _Group("all", "thing", "things", lambda other: True),
    ]
    if kind == "shape":
        groups.append(_Group("shape", what, plural(what), lambda other: other.what == what))
    return groups


def _changed_groups(change: Change) -> list[_Group]:
    """Return the groups whose number the change may have changed."""
    return [group for thing in (change.before, change.after) if thing for group in _groups(thing)]


def ask_counting(rng: Rng, level: Level, scene: Scene, change: Change) -> Query | None:
    """Ask how many things of a group there are; each pair of numbers on which the scenes differ is as likely."""
    numbers: dict[tuple[int, int], list[_Group]] = {}
    for group in _changed_groups(change):
        counts = group.count(scene), group.count(change.scene)
        if counts[0] != counts[1]:
            numbers.setdefault(counts, []).append(group)
    if not numbers:
        return None
    counts = rng.choice(list(numbers))
    group = rng.choice(numbers[counts])
    question = rng.choice((f"how many {group.many} are there?", f"count the {group.many}.", f"how many {group.many} do you see?"))

    def side(count: int) -> Side:
        words, verb = how_many(count, group.one, group.many), "is" if count == 1 else "are"
        return answer((f"there {verb} {words}", f"i see {words}", f"i count {words}"), str(count))

    return Query("counting", question, (side(counts[0]), side(counts[1])))


def ask_comparison(rng: Rng, level: Level, scene: Scene, change: Change) -> Query | None:
    """Compare two sizes where a size changed, else two numbers of things."""
    if change.before and change.after and change.before.size != change.after.size:
        return _ask_bigger(rng, level, scene, change)
    present = {group.many: group for thing in (*scene.things, *change.scene.things) for group in _groups(thing)}
    pairs = [
        pair
        for group in _changed_groups(change)
        for other in present.values()
        if other.family == group.family in ("colour", "shape") and other.many != group.many
        for pair in ((group, other), (other, group))
        if _more(*pair, scene) != _more(*pair, change.scene)
    ]
    if not pairs:
        return None
    first, second = rng.choice(pairs)
    than = f"{first.many} than {second.many}"
    question = rng.choice((f"are there more {than}?", f"do you see more {than}?", f"do you count more {than}?"))

    def side(picture: Scene) -> Side:
        counts = first.count(picture), second.count(picture)
        numbers = f"{how_many(counts[0], first.one, first.many)} and {how_many(counts[1], second.one, second.many)}"
        yes = (f"there are more {first.many}", f"there are more {than}", f"i count more {than}")
        no = (f"there are not more {first.many}", f"there are not more {than}", f"i do not count more {than}")
        return yes_or_no(counts[0] > counts[1], yes, no, f"there {'is' if counts[0] == 1 else 'are'} {numbers}")

    return Query("comparison", question, (side(scene), side(change.scene)))


def _more(first: _Group, second: _Group, scene: Scene) -> bool:
    """Tell whether the first group is the larger one."""
    return first.count(scene) > second.count(scene)


def _partner(rng: Rng, scene: Scene, change: Change, shapes: bool) -> SceneObject | None:
    """Return an unchanged thing to relate the changed one to; colour and noun name each of the two without doubt."""
    names = [coloured(thing) for thing in scene.things]
    others = [
        thing
        for thing, name in zip(scene.things, names, strict=True)
        if thing != change.before and names.count(name) == 1 and (thing.kind == "shape" or not shapes)
    ]
    if not others or change.before is None or names.count(coloured(change.before)) > 1:
        return None
    return rng.choice(others)


def _relation(subject: str, relation: str, fact: str, holds: bool) -> Side:
    """Return the side that affirms or denies a relation of `subject`."""
    yes = (f"the {subject} is {relation}", f"it is {relation}", f"i see it is {relation}")
    no = (f"the {subject} is not {relation}", f"it is not {relation}", f"i see it is not {relation}")
    return yes_or_no(holds, yes, no, fact)


def _ask_bigger(rng: Rng, level: Level, scene: Scene, change: Change) -> Query | None:
    """Ask whether one shape is bigger or smaller than another."""
    before, after, other = change.before, change.after, _partner(rng, scene, change, shapes=True)
    if before is None or after is None or other is None:
        return None
    subject, relation = coloured(before), f"{rng.choice(('bigger', 'smaller'))} than the {coloured(other)}"
    sizes = tuple(level.sizes)[:: 1 if relation.startswith("bigger") else -1]
    holds = [sizes.index(thing.size) > sizes.index(other.size) for thing in (before, after)]
    if holds[0] == holds[1]:
        return None
    question = rng.choice((f"is the {subject} {relation}?", f"do you see that the {subject} is {relation}?"))

    def side(size: str, true: bool) -> Side:
        return _relation(subject, relation, f"the {subject} is {size} and the {coloured(other)} is {other.size}", true)

    return Query("comparison", question, (side(before.size, holds[0]), side(after.size, holds[1])))


def ask_spatial(rng: Rng, level: Level, scene: Scene, change: Change) -> Query | None:
    """Ask where the moved thing is, or whether it stands on some side of another."""
    return (_ask_where if rng.coin() else _ask_side)(rng, level, scene, change)


def _ask_side(rng: Rng, level: Level, scene: Scene, change: Change) -> Query | None:
    """Ask whether the moved thing stands on some side of another."""
    before, after, other = change.before, change.after, _partner(rng, scene, change, shapes=False)
    if before is None or after is None or other is None:
        return None
    holds = [_sides(thing.cell, other.cell, scene.grid) for thing in (before, after)]
    differing = sorted(holds[0] ^ holds[1])
    if not differing:
        return None
    word = rng.choice(differing)
    subject, relation = coloured(before), f"{word} the {coloured(other)}"
    question = rng.choice((f"is the {subject} {relation}?", f"do you see the {subject} {relation}?"))
    there = f"the {coloured(other)} is {at(level, scene, other.cell)}"

    def side(cell: int, true: bool) -> Side:
        return _relation(subject, relation, f"the {subject} is {at(level, scene, cell)} and {there}", true)

    return Query("spatial", question, (side(before.cell, word in holds[0]), side(after.cell, word in holds[1])))


def _sides(cell: int, other: int, grid: int) -> set[str]:
    """Return on which sides of `other` the cell lies."""
    (row, column), (row2, column2) = divmod(cell, grid), divmod(other, grid)
    holds = {"left of": column < column2, "right of": column > column2, "above": row < row2, "below": row > row2}
    return {word for word, true in holds.items() if true}


def _ask_where(rng: Rng, level: Level, scene: Scene, change: Change) -> Query | None:
    """Ask for the cell of the moved thing."""
    before, after = _things(change)
    colour, what = before.colour, before.what
    subject = refer(
        rng,
        (scene, change.scene),
        {
            coloured(before): lambda thing: thing.colour == colour and thing.what == what,
            noun(before): lambda thing: thing.what == what,
        },
    )
    if subject is None:
        return None
    question = rng.choice((f"where is the {subject}?", f"tell me where the {subject} is."))

    def side(cell: int) -> Side:
        where = at(level, scene, cell)
        return answer((f"the {subject} is {where}", f"it is {where}", f"i see it {where}"), where)

    return Query("spatial", question, (side(before.cell), side(after.cell)))


def refer(rng: Rng, scenes: tuple[Scene, Scene], names: dict[str, Test]) -> str | None:
    """Return one of `names` that fits exactly one thing in both scenes."""
    fitting = [name for name, fits in names.items() if all(sum(map(fits, scene.things)) == 1 for scene in scenes)]
    return rng.choice(fitting) if fitting else None


Ask = Callable[[Rng, Level, Scene, Change], Query | None]
"""Asks about a scene and a change of it; None if the change leaves nothing to ask."""


def _things(change: Change) -> tuple[SceneObject, SceneObject]:
    """Return the thing before and after a change that neither adds nor removes."""
    assert change.before is not None
    assert change.after is not None
    return change.before, change.after


def ask_description(rng: Rng, level: Level, scene: Scene, change: Change) -> Query | None:
    """Ask for a caption."""
    question = rng.choice(("describe the picture.", "what is in the picture?", "tell me what the picture shows."))

    def side(picture: Scene, thing: SceneObject) -> Side:
        words = caption(level, picture)
        phrasings = (f"there is {words}", f"i see {words}", f"the picture shows {words}")
        return Side(phrasings, phrasings[2], entry(level, picture, thing), "the same")

    before, after = _things(change)
    return Query("description", question, (side(scene, before), side(change.scene, after)))


def ask_code(rng: Rng, level: Level, scene: Scene, change: Change) -> Query | None:
    """Ask for drawing code."""
    question = rng.choice(("write the picture as code.", "write code that draws the picture."))

    def side(picture: Scene, thing: SceneObject) -> Side:
        lines = [call(level, picture, other) for other in picture.things]
        fact = f"the picture shows {caption(level, picture)}"
        return Side(("\n".join(lines), "; ".join(lines)), fact, call(level, picture, thing), "the same")

    before, after = _things(change)
    return Query("code", question, (side(scene, before), side(change.scene, after)))


def ask_place(rng: Rng, level: Level, scene: Scene, change: Change) -> Query | None:
    """Ask what stands in the cell of the changed thing."""
    before, after = _things(change)
    where = at(level, scene, before.cell)
    question = rng.choice((f"what is {where}?", f"what do you see {where}?"))

    def side(thing: SceneObject) -> Side:
        words = in_full(thing)
        return answer((f"{where} is {words}", f"there is {words}", f"i see {words}"), words)

    return Query("place", question, (side(before), side(after)))


def ask_attribute(rng: Rng, level: Level, scene: Scene, change: Change) -> Query | None:
    """Ask for the property that changed: colour, shape or size."""
    before, after = _things(change)
    colour, what, where = before.colour, before.what, at(level, scene, before.cell)
    names: dict[str, Test] = {f"thing {where}": lambda thing: thing.cell == before.cell}
    if colour != after.colour:
        asked, values = "color", (colour, after.colour)
        names[noun(before)] = lambda thing: thing.what == what
    elif what != after.what:
        asked, values = "shape", (article(what), article(after.what))
        names[f"{colour} thing"] = lambda thing: thing.colour == colour
    else:
        asked, values = "size", (before.size, after.size)
        names[noun(before)] = lambda thing: thing.what == what
        names[coloured(before)] = lambda thing: thing.what == what and thing.colour == colour
    subject = refer(rng, (scene, change.scene), names)
    question = rng.choice((f"what {asked} is the {subject}?", f"tell me the {asked} of the {subject}."))

    def side(value: str) -> Side:
        return answer((f"the {subject} is {value}", f"it is {value}", f"i see it is {value}"), value)

    return Query("attribute", question, (side(values[0]), side(values[1])))


def ask_existence(rng: Rng, level: Level, scene: Scene, change: Change) -> Query | None:
    """Ask whether there is a thing of some description that one of the two scenes lacks."""
    found = []
    for thing in filter(None, (change.before, change.after)):
        wanted = {  # a colour and a shape; an empty one fits all
            coloured(thing): (thing.colour, thing.what),
            noun(thing): ("", thing.what),
            f"{thing.colour} thing": (thing.colour, ""),
        }
        for words, (colour, what) in wanted.items():
            holds = [
                any(colour in ("", other.colour) and what in ("", other.what) for other in picture.things)
                for picture in (scene, change.scene)
            ]
            if holds[0] != holds[1]:
                found.append((words, holds))
    if not found:
        return None
    words, holds = rng.choice(found)
    question = rng.choice(
        (f"is there {article(words)}?", f"do you see {article(words)}?", f"does the picture show {article(words)}?")
    )

    def side(true: bool) -> Side:
        some = article(words) if true else f"no {words}"
        said = (f"there is {some}", f"i see {some}", f"the picture shows {some}")
        return yes_or_no(true, said, said, said[0])

    return Query("existence", question, (side(holds[0]), side(holds[1])))


def ask_arithmetic(rng: Rng, level: Level, scene: Scene, change: Change) -> Query | None:
    """Ask for the sum of the digits; None unless there are two."""
    pairs = [[int(thing.what) for thing in picture.things if thing.kind == "digit"] for picture in (scene, change.scene)]
    if len(pairs[0]) != 2:
        return None
    question = rng.choice(("what is the sum of the digits?", "add the two digits.", "what do the two digits add up to?"))

    def side(digits: list[int]) -> Side:
        total = sum(digits)
        phrasings = (f"the sum is {total}", f"they add up to {total}", f"the digits add up to {total}")
        return answer(phrasings, str(total), f"{digits[0]} plus {digits[1]} is {total}")

    return Query("arithmetic", question, (side(pairs[0]), side(pairs[1])))


def ask_reading(rng: Rng, level: Level, scene: Scene, change: Change) -> Query | None:
    """Ask what a written word or digit says."""
    before, after = _things(change)
    kind, colour, where = before.kind, before.colour, at(level, scene, before.cell)
    names: dict[str, Test] = {
        kind: lambda thing: thing.kind == kind,
        f"{colour} {kind}": lambda thing: thing.kind == kind and thing.colour == colour,
        f"{kind} {where}": lambda thing: thing.cell == before.cell,
    }
    subject = refer(rng, (scene, change.scene), names)
    question = rng.choice((f"what is the {subject}?", f"read the {subject}.", f"tell me the {subject}."))

    def side(what: str) -> Side:
        return answer((f"the {kind} is {what}", f"it is {what}", f"i read {what}"), what, f"the {subject} is {what}")

    return Query("reading", question, (side(before.what), side(after.what)))


class QuestionType(NamedTuple):
    """How a question about a picture comes about, and where it counts."""

    category: str
    ask: Ask
    edits: tuple[Edit, ...]
    """Changes that lead to a twin with another answer; each as likely."""
    kinds: tuple[Kind, ...] = ("shape", "digit", "word")
    """Things that may change."""
    written: tuple[tuple[int, int], ...] | None = None
    """(digits, words) that a scene must offer; None: any."""
    fewest: int = 1
    """Fewest things that a scene must hold."""


QUESTION_TYPES: dict[str, QuestionType] = {
    "description": QuestionType("general", ask_description, (recolour, rename, resize, move)),
    "existence": QuestionType("hallucination", ask_existence, (recolour, rename, come_or_go)),
    "attribute": QuestionType("hallucination", ask_attribute, (recolour, rename, resize), kinds=("shape",)),
    "counting": QuestionType("reasoning", ask_counting, (recolour, rename, come_or_go, come_or_go)),
    "comparison": QuestionType("reasoning", ask_comparison, (recolour, rename, resize, come_or_go), fewest=2),
    "spatial": QuestionType("reasoning", ask_spatial, (move,), fewest=2),
    "arithmetic": QuestionType("reasoning", ask_arithmetic, (rename,), kinds=("digit",), written=((2, 0),)),
    "reading": QuestionType(
        "knowledge", ask_reading, (rename,), kinds=("digit", "word"), written=((1, 0), (0, 1), (1, 1), (2, 0))
    ),
    "place": QuestionType("vqa", ask_place, (recolour, rename, resize)),
    "code": QuestionType("coding", ask_code, (recolour, rename, resize, move), fewest=2),
}
