"""What is asked about a scene: the question types of the embedded world.

A question is put to two scenes, a scene and its twin, that differ in one thing, and is chosen so that their answers differ.
Which of the two is drawn is a coin tossed after every word is fixed. So the joint distribution of (question, chosen,
rejected) is symmetric under swapping chosen and rejected: a judge that does not see the image is right half of the time.
"""

from collections.abc import Callable
from typing import NamedTuple

from mmrm.data.synthetic.rng import Rng
from mmrm.data.synthetic.scenes import (
    Change,
    Edit,
    Kind,
    Scene,
    SceneObject,
    come_or_go,
    move,
    recolour,
    rename,
    resize,
)
from mmrm.data.synthetic.wording import (
    Query,
    Side,
    answer,
    article,
    at,
    call,
    caption,
    coloured,
    entry,
    in_full,
    noun,
    plural,
    yes_or_no,
)


class _Group(NamedTuple):
    """The things that equal `like` in `fields` (any thing if there are none), and what one of them is called."""

    name: str
    like: SceneObject
    fields: tuple[str, ...] = ()

    def count(self, scene: Scene) -> int:
        """Count the things of `scene` that belong to the group."""
        return sum(
            all(getattr(thing, field) == getattr(self.like, field) for field in self.fields)
            for thing in scene.things
        )

    def say(self, count: int) -> str:
        """Say a number of things of the group."""
        return f"{count} {self.name if count == 1 else plural(self.name)}"


def _groups(change: Change) -> list[_Group]:
    """Return the groups whose number the change may have changed."""
    return [group for thing in change.things for group in _groups_of(thing)]


def _groups_of(thing: SceneObject) -> list[_Group]:
    """Return the groups that `thing` belongs to."""
    groups = [
        _Group(f"{thing.colour} thing", thing, ("colour",)),
        _Group(thing.kind, thing, ("kind",)),
        _Group("thing", thing),
    ]
    return [*groups, _Group(thing.what, thing, ("what",))] if thing.kind == "shape" else groups


def ask_counting(rng: Rng, change: Change) -> Query | None:
    """Ask how many things of a group there are; each pair of numbers on which the scenes differ is as likely."""
    numbers: dict[tuple[int, ...], list[_Group]] = {}
    for group in _groups(change):
        counts = tuple(map(group.count, change.scenes))
        if counts[0] != counts[1]:
            numbers.setdefault(counts, []).append(group)
    if not numbers:
        return None
    counts = rng.choice(list(numbers))
    group = rng.choice(numbers[counts])
    many = plural(group.name)
    questions = (
        f"how many {many} are there?",
        f"count the {many}.",
        f"how many {many} do you see?",
    )

    def side(count: int) -> Side:
        words, verb = group.say(count), "is" if count == 1 else "are"
        return answer((f"there {verb} {words}", f"i see {words}", f"i count {words}"), str(count))

    return Query(questions, *map(side, counts))


def ask_comparison(rng: Rng, change: Change) -> Query | None:
    """Compare two sizes where a size changed, else two numbers of things."""
    if len({thing.size for thing in change.things}) == 2:
        return _ask_bigger(rng, change)
    present = {
        group.name: group
        for scene in change.scenes
        for thing in scene.things
        for group in _groups_of(thing)
    }
    pairs = [
        (first, second)
        for group in _groups(change)
        for other in present.values()
        if other.fields == group.fields in (("colour",), ("what",)) and other.name != group.name
        for first, second in ((group, other), (other, group))
        if len({first.count(scene) > second.count(scene) for scene in change.scenes}) == 2
    ]
    if not pairs:
        return None
    first, second = rng.choice(pairs)
    more, than = plural(first.name), f"{plural(first.name)} than {plural(second.name)}"
    questions = (
        f"are there more {than}?",
        f"do you see more {than}?",
        f"do you count more {than}?",
    )

    def side(scene: Scene) -> Side:
        counts = first.count(scene), second.count(scene)
        fact = f"there {'is' if counts[0] == 1 else 'are'} {first.say(counts[0])} and {second.say(counts[1])}"
        yes = (f"there are more {more}", f"there are more {than}", f"i count more {than}")
        no = (
            f"there are not more {more}",
            f"there are not more {than}",
            f"i do not count more {than}",
        )
        return yes_or_no(counts[0] > counts[1], yes, no, fact)

    return Query(questions, *map(side, change.scenes))


def _partner(rng: Rng, change: Change, shapes: bool) -> SceneObject | None:
    """Return an unchanged thing to relate the changed one to; colour and noun name each of the two without doubt."""
    scene, before = change.scenes[0], change.things[0]
    alone = [
        thing
        for thing in scene.things
        if _Group(coloured(thing), thing, ("colour", "what")).count(scene) == 1
    ]
    others = [thing for thing in alone if thing != before and (thing.kind == "shape" or not shapes)]
    return rng.choice(others) if others and before in alone else None


def _relation(subject: str, relation: str, fact: str, holds: bool) -> Side:
    """Return the side that affirms or denies a relation of `subject`."""
    yes = (f"the {subject} is {relation}", f"it is {relation}", f"i see it is {relation}")
    no = (
        f"the {subject} is not {relation}",
        f"it is not {relation}",
        f"i see it is not {relation}",
    )
    return yes_or_no(holds, yes, no, fact)


def _ask_bigger(rng: Rng, change: Change) -> Query | None:
    """Ask whether one shape is bigger or smaller than another."""
    other = _partner(rng, change, shapes=True)
    if other is None:
        return None
    subject, relation = (
        coloured(change.things[0]),
        f"{rng.choice(('bigger', 'smaller'))} than the {coloured(other)}",
    )
    sizes = tuple(change.scenes[0].level.sizes)[:: 1 if relation.startswith("bigger") else -1]
    holds = [sizes.index(thing.size) > sizes.index(other.size) for thing in change.things]
    if holds[0] == holds[1]:
        return None
    questions = (f"is the {subject} {relation}?", f"do you see that the {subject} is {relation}?")

    def side(thing: SceneObject, true: bool) -> Side:
        return _relation(
            subject,
            relation,
            f"the {subject} is {thing.size} and the {coloured(other)} is {other.size}",
            true,
        )

    return Query(questions, *map(side, change.things, holds))


def ask_spatial(rng: Rng, change: Change) -> Query | None:
    """Ask where the moved thing is, or whether it stands on some side of another."""
    return (_ask_where if rng.coin() else _ask_side)(rng, change)


def _ask_side(rng: Rng, change: Change) -> Query | None:
    """Ask whether the moved thing stands on some side of another."""
    scene, other = change.scenes[0], _partner(rng, change, shapes=False)
    if other is None:
        return None
    holds = [_sides(thing.cell, other.cell, scene.grid) for thing in change.things]
    differing = sorted(holds[0] ^ holds[1])
    if not differing:
        return None
    word = rng.choice(differing)
    subject, relation = coloured(change.things[0]), f"{word} the {coloured(other)}"
    questions = (f"is the {subject} {relation}?", f"do you see the {subject} {relation}?")
    there = f"the {coloured(other)} is {at(scene, other.cell)}"

    def side(thing: SceneObject, true: set[str]) -> Side:
        return _relation(
            subject, relation, f"the {subject} is {at(scene, thing.cell)} and {there}", word in true
        )

    return Query(questions, *map(side, change.things, holds))


def _sides(cell: int, other: int, grid: int) -> set[str]:
    """Return on which sides of `other` the cell lies."""
    (row, column), (row2, column2) = divmod(cell, grid), divmod(other, grid)
    holds = {
        "left of": column < column2,
        "right of": column > column2,
        "above": row < row2,
        "below": row > row2,
    }
    return {word for word, true in holds.items() if true}


def _ask_where(rng: Rng, change: Change) -> Query | None:
    """Ask for the cell of the moved thing."""
    before = change.things[0]
    subject = _refer(rng, change, {coloured(before): ("colour", "what"), noun(before): ("what",)})
    if subject is None:
        return None
    questions = (f"where is the {subject}?", f"tell me where the {subject} is.")

    def side(thing: SceneObject) -> Side:
        where = at(change.scenes[0], thing.cell)
        return answer((f"the {subject} is {where}", f"it is {where}", f"i see it {where}"), where)

    return Query(questions, *map(side, change.things))


def _refer(rng: Rng, change: Change, names: dict[str, tuple[str, ...]]) -> str | None:
    """Return one of `names` that fits exactly one thing in both scenes, by what a thing shares with the changed one."""
    groups = [_Group(name, change.things[0], fields) for name, fields in names.items()]
    fitting = [
        group.name for group in groups if all(group.count(scene) == 1 for scene in change.scenes)
    ]
    return rng.choice(fitting) if fitting else None


def ask_description(rng: Rng, change: Change) -> Query | None:
    """Ask for a caption."""
    questions = (
        "describe the picture.",
        "what is in the picture?",
        "tell me what the picture shows.",
    )

    def side(scene: Scene, thing: SceneObject) -> Side:
        words = caption(scene)
        phrasings = (f"there is {words}", f"i see {words}", f"the picture shows {words}")
        return Side(phrasings, phrasings[2], entry(scene, thing), "the same")

    return Query(questions, *map(side, change.scenes, change.things))


def ask_code(rng: Rng, change: Change) -> Query | None:
    """Ask for drawing code."""
    questions = ("write the picture as code.", "write code that draws the picture.")

    def side(scene: Scene, thing: SceneObject) -> Side:
        lines = [call(scene, other) for other in scene.things]
        fact = f"the picture shows {caption(scene)}"
        return Side(("\n".join(lines), "; ".join(lines)), fact, call(scene, thing), "the same")

    return Query(questions, *map(side, change.scenes, change.things))


def ask_place(rng: Rng, change: Change) -> Query | None:
    """Ask what stands in the cell of the changed thing."""
    where = at(change.scenes[0], change.things[0].cell)
    questions = (f"what is {where}?", f"what do you see {where}?")

    def side(thing: SceneObject) -> Side:
        words = in_full(thing)
        return answer((f"{where} is {words}", f"there is {words}", f"i see {words}"), words)

    return Query(questions, *map(side, change.things))


def ask_attribute(rng: Rng, change: Change) -> Query | None:
    """Ask for the property that changed: colour, shape or size."""
    before, after = change.things
    names: dict[str, tuple[str, ...]] = {f"thing {at(change.scenes[0], before.cell)}": ("cell",)}
    if before.colour != after.colour:
        asked, values = "color", (before.colour, after.colour)
        names[noun(before)] = ("what",)
    elif before.what != after.what:
        asked, values = "shape", (article(before.what), article(after.what))
        names[f"{before.colour} thing"] = ("colour",)
    else:
        asked, values = "size", (before.size, after.size)
        names |= {noun(before): ("what",), coloured(before): ("what", "colour")}
    subject = _refer(rng, change, names)
    questions = (f"what {asked} is the {subject}?", f"tell me the {asked} of the {subject}.")

    def side(value: str) -> Side:
        return answer(
            (f"the {subject} is {value}", f"it is {value}", f"i see it is {value}"), value
        )

    return Query(questions, *map(side, values))


def ask_existence(rng: Rng, change: Change) -> Query | None:
    """Ask whether there is a thing of some description that one of the two scenes lacks."""
    found = []
    for thing in change.things:
        wanted = {
            coloured(thing): ("colour", "what"),
            noun(thing): ("what",),
            f"{thing.colour} thing": ("colour",),
        }
        for words, fields in wanted.items():
            holds = [_Group(words, thing, fields).count(scene) > 0 for scene in change.scenes]
            if holds[0] != holds[1]:
                found.append((words, holds))
    if not found:
        return None
    words, holds = rng.choice(found)
    some = article(words)
    questions = (f"is there {some}?", f"do you see {some}?", f"does the picture show {some}?")

    def side(true: bool) -> Side:
        seen = some if true else f"no {words}"
        said = (f"there is {seen}", f"i see {seen}", f"the picture shows {seen}")
        return yes_or_no(true, said, said, said[0])

    return Query(questions, *map(side, holds))


def ask_arithmetic(rng: Rng, change: Change) -> Query | None:
    """Ask for the sum of the digits; None unless there are two."""
    pairs = [
        [int(thing.what) for thing in scene.things if thing.kind == "digit"]
        for scene in change.scenes
    ]
    if len(pairs[0]) != 2:
        return None
    questions = (
        "what is the sum of the digits?",
        "add the two digits.",
        "what do the two digits add up to?",
    )

    def side(digits: list[int]) -> Side:
        total = sum(digits)
        phrasings = (
            f"the sum is {total}",
            f"they add up to {total}",
            f"the digits add up to {total}",
        )
        return answer(phrasings, str(total), f"{digits[0]} plus {digits[1]} is {total}")

    return Query(questions, *map(side, pairs))


def ask_reading(rng: Rng, change: Change) -> Query | None:
    """Ask what a written word or digit says."""
    before = change.things[0]
    kind, where = before.kind, at(change.scenes[0], before.cell)
    names = {
        kind: ("kind",),
        f"{before.colour} {kind}": ("kind", "colour"),
        f"{kind} {where}": ("cell",),
    }
    subject = _refer(rng, change, names)
    questions = (f"what is the {subject}?", f"read the {subject}.", f"tell me the {subject}.")

    def side(thing: SceneObject) -> Side:
        what = thing.what
        return answer(
            (f"the {kind} is {what}", f"it is {what}", f"i read {what}"),
            what,
            f"the {subject} is {what}",
        )

    return Query(questions, *map(side, change.things))


class QuestionType(NamedTuple):
    """How a question about an image comes about, and where it counts."""

    category: str
    ask: Callable[[Rng, Change], Query | None]
    """Asks about a scene and its twin; None if the change leaves nothing to ask."""
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
    "attribute": QuestionType(
        "hallucination", ask_attribute, (recolour, rename, resize), kinds=("shape",)
    ),
    "counting": QuestionType("reasoning", ask_counting, (recolour, rename, come_or_go, come_or_go)),
    "comparison": QuestionType(
        "reasoning", ask_comparison, (recolour, rename, resize, come_or_go), fewest=2
    ),
    "spatial": QuestionType("reasoning", ask_spatial, (move,), fewest=2),
    "arithmetic": QuestionType(
        "reasoning", ask_arithmetic, (rename,), kinds=("digit",), written=((2, 0),)
    ),
    "reading": QuestionType(
        "knowledge",
        ask_reading,
        (rename,),
        kinds=("digit", "word"),
        written=((1, 0), (0, 1), (1, 1), (2, 0)),
    ),
    "place": QuestionType("vqa", ask_place, (recolour, rename, resize)),
    "code": QuestionType("coding", ask_code, (recolour, rename, resize, move), fewest=2),
}
