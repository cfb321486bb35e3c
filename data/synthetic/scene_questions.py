"""The question types of the embedded world about a scene.

A question is about a scene and its twin, which differ in one thing, and is chosen so that the two
have different answers. A coin that is tossed after every word is fixed decides which of the two is
drawn. So the joint distribution of (question, chosen, rejected) does not change if chosen and
rejected are swapped: a judge that does not see the image is right half of the time.
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
    """Things that agree with a given thing in some properties."""

    name: str
    """The name of one thing of the group."""
    like: SceneObject
    fields: tuple[str, ...] = ()
    """The properties, as fields of SceneObject; without any, every thing belongs to the group."""

    def has(self, thing: SceneObject) -> bool:
        """Return True if `thing` belongs to the group."""
        return all(getattr(thing, field) == getattr(self.like, field) for field in self.fields)

    def count(self, scene: Scene) -> int:
        """Return the number of things of `scene` that belong to the group."""
        return sum(self.has(thing) for thing in scene.things)

    def say(self, count: int) -> str:
        """Return a number of things of the group in words, such as "2 red things"."""
        return f"{count} {self.name if count == 1 else plural(self.name)}"


def _groups(change: Change) -> list[_Group]:
    """Return the groups whose number of things the change may have changed."""
    return [group for thing in change.things for group in _groups_of(thing)]


def _groups_of(thing: SceneObject) -> list[_Group]:
    """Return the groups that `thing` belongs to."""
    groups = [
        _Group(f"{thing.colour} thing", thing, ("colour",)),
        _Group(thing.kind, thing, ("kind",)),
        _Group("thing", thing),
    ]
    if thing.kind == "shape":
        groups.append(_Group(thing.what, thing, ("what",)))
    return groups


def ask_counting(rng: Rng, change: Change) -> Query | None:
    """Ask for the number of things of a group.

    Each pair of different numbers in the two scenes has the same probability.
    """
    groups_by_counts: dict[tuple[int, int], list[_Group]] = {}
    for group in _groups(change):
        before, after = map(group.count, change.scenes)
        if before != after:
            groups_by_counts.setdefault((before, after), []).append(group)
    if not groups_by_counts:
        return None
    counts = rng.choice(list(groups_by_counts))
    group = rng.choice(groups_by_counts[counts])
    many = plural(group.name)
    questions = (
        f"how many {many} are there?",
        f"count the {many}.",
        f"how many {many} do you see?",
    )
    sides = []
    for count in counts:
        words = group.say(count)
        verb = "is" if count == 1 else "are"
        phrasings = (f"there {verb} {words}", f"i see {words}", f"i count {words}")
        sides.append(answer(phrasings, str(count)))
    return Query(questions, *sides)


def ask_comparison(rng: Rng, change: Change) -> Query | None:
    """Compare two sizes if a size changed, and two numbers of things otherwise."""
    sizes = {thing.size for thing in change.things}
    if len(sizes) == 2:
        return _ask_bigger(rng, change)
    pairs = _comparable_groups(change)
    if not pairs:
        return None
    first, second = rng.choice(pairs)
    more = plural(first.name)
    than = f"{plural(first.name)} than {plural(second.name)}"
    questions = (
        f"are there more {than}?",
        f"do you see more {than}?",
        f"do you count more {than}?",
    )
    yes = (f"there are more {more}", f"there are more {than}", f"i count more {than}")
    no = (
        f"there are not more {more}",
        f"there are not more {than}",
        f"i do not count more {than}",
    )
    sides = []
    for scene in change.scenes:
        first_count = first.count(scene)
        second_count = second.count(scene)
        verb = "is" if first_count == 1 else "are"
        fact = f"there {verb} {first.say(first_count)} and {second.say(second_count)}"
        sides.append(yes_or_no(first_count > second_count, yes, no, fact))
    return Query(questions, *sides)


def _comparable_groups(change: Change) -> list[tuple[_Group, _Group]]:
    """Return pairs of groups of which the first has more things in one of the two scenes only.

    Both are groups by colour, or both are groups by shape.
    """
    groups_by_name: dict[str, _Group] = {}
    for scene in change.scenes:
        for thing in scene.things:
            for group in _groups_of(thing):
                groups_by_name[group.name] = group
    pairs = []
    for group in _groups(change):
        if group.fields not in (("colour",), ("what",)):
            continue
        for other in groups_by_name.values():
            if other.fields != group.fields or other.name == group.name:
                continue
            for first, second in ((group, other), (other, group)):
                before, after = (
                    first.count(scene) > second.count(scene) for scene in change.scenes
                )
                if before != after:
                    pairs.append((first, second))
    return pairs


def _partner(rng: Rng, change: Change, shapes: bool) -> SceneObject | None:
    """Return an unchanged thing to which the changed one can be compared, with `shapes` a shape.

    Colour and noun name each of the two unambiguously. The result is None if there is no such
    thing.
    """
    scene = change.scenes[0]
    changed = change.things[0]
    unambiguous = []
    for thing in scene.things:
        if _Group(coloured(thing), thing, ("colour", "what")).count(scene) == 1:
            unambiguous.append(thing)
    others = []
    for thing in unambiguous:
        if thing != changed and (thing.kind == "shape" or not shapes):
            others.append(thing)
    if changed not in unambiguous or not others:
        return None
    return rng.choice(others)


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
    partner = _partner(rng, change, shapes=True)
    if partner is None:
        return None
    subject = coloured(change.things[0])
    comparative = rng.choice(("bigger", "smaller"))
    relation = f"{comparative} than the {coloured(partner)}"
    sizes = list(change.scenes[0].level.sizes)
    if comparative == "smaller":
        sizes.reverse()
    holds = [sizes.index(thing.size) > sizes.index(partner.size) for thing in change.things]
    if holds[0] == holds[1]:
        return None
    questions = (f"is the {subject} {relation}?", f"do you see that the {subject} is {relation}?")
    sides = []
    for thing, is_true in zip(change.things, holds, strict=True):
        fact = f"the {subject} is {thing.size} and the {coloured(partner)} is {partner.size}"
        sides.append(_relation(subject, relation, fact, is_true))
    return Query(questions, *sides)


def ask_spatial(rng: Rng, change: Change) -> Query | None:
    """Ask for the cell of the moved thing, or on which side of another thing it is."""
    if rng.coin():
        return _ask_where(rng, change)
    return _ask_side(rng, change)


def _ask_side(rng: Rng, change: Change) -> Query | None:
    """Ask whether the moved thing is on a given side of another thing."""
    scene = change.scenes[0]
    partner = _partner(rng, change, shapes=False)
    if partner is None:
        return None
    sides_of_partner = [_sides(thing.cell, partner.cell, scene.grid) for thing in change.things]
    differing = sorted(sides_of_partner[0] ^ sides_of_partner[1])
    if not differing:
        return None
    word = rng.choice(differing)
    subject = coloured(change.things[0])
    relation = f"{word} the {coloured(partner)}"
    questions = (f"is the {subject} {relation}?", f"do you see the {subject} {relation}?")
    place_of_partner = f"the {coloured(partner)} is {at(scene, partner.cell)}"
    sides = []
    for thing, words in zip(change.things, sides_of_partner, strict=True):
        fact = f"the {subject} is {at(scene, thing.cell)} and {place_of_partner}"
        sides.append(_relation(subject, relation, fact, word in words))
    return Query(questions, *sides)


def _sides(cell: int, other: int, grid: int) -> set[str]:
    """Return the words for the sides of the cell `other` on which `cell` is."""
    row, column = divmod(cell, grid)
    other_row, other_column = divmod(other, grid)
    words = set()
    if column < other_column:
        words.add("left of")
    if column > other_column:
        words.add("right of")
    if row < other_row:
        words.add("above")
    if row > other_row:
        words.add("below")
    return words


def _ask_where(rng: Rng, change: Change) -> Query | None:
    """Ask for the cell of the moved thing."""
    before = change.things[0]
    subject = _refer(rng, change, {coloured(before): ("colour", "what"), noun(before): ("what",)})
    if subject is None:
        return None
    questions = (f"where is the {subject}?", f"tell me where the {subject} is.")
    sides = []
    for thing in change.things:
        where = at(change.scenes[0], thing.cell)
        phrasings = (f"the {subject} is {where}", f"it is {where}", f"i see it {where}")
        sides.append(answer(phrasings, where))
    return Query(questions, *sides)


def _refer(rng: Rng, change: Change, names: dict[str, tuple[str, ...]]) -> str | None:
    """Return a name that fits exactly one thing in both scenes, or None.

    `names` has the properties of the changed thing that each name mentions.
    """
    fitting = []
    for name, fields in names.items():
        group = _Group(name, change.things[0], fields)
        if all(group.count(scene) == 1 for scene in change.scenes):
            fitting.append(name)
    return rng.choice(fitting) if fitting else None


def ask_description(rng: Rng, change: Change) -> Query | None:
    """Ask for a caption."""
    questions = (
        "describe the picture.",
        "what is in the picture?",
        "tell me what the picture shows.",
    )
    sides = []
    for scene, thing in zip(change.scenes, change.things, strict=True):
        words = caption(scene)
        phrasings = (f"there is {words}", f"i see {words}", f"the picture shows {words}")
        sides.append(Side(phrasings, phrasings[2], entry(scene, thing), "the same"))
    return Query(questions, *sides)


def ask_code(rng: Rng, change: Change) -> Query | None:
    """Ask for drawing code."""
    questions = ("write the picture as code.", "write code that draws the picture.")
    sides = []
    for scene, thing in zip(change.scenes, change.things, strict=True):
        lines = [call(scene, other) for other in scene.things]
        phrasings = ("\n".join(lines), "; ".join(lines))
        fact = f"the picture shows {caption(scene)}"
        sides.append(Side(phrasings, fact, call(scene, thing), "the same"))
    return Query(questions, *sides)


def ask_place(rng: Rng, change: Change) -> Query | None:
    """Ask for the thing in the cell of the changed thing."""
    where = at(change.scenes[0], change.things[0].cell)
    questions = (f"what is {where}?", f"what do you see {where}?")
    sides = []
    for thing in change.things:
        words = in_full(thing)
        phrasings = (f"{where} is {words}", f"there is {words}", f"i see {words}")
        sides.append(answer(phrasings, words))
    return Query(questions, *sides)


def ask_attribute(rng: Rng, change: Change) -> Query | None:
    """Ask for the property that changed: colour, shape or size."""
    before, after = change.things
    names: dict[str, tuple[str, ...]] = {f"thing {at(change.scenes[0], before.cell)}": ("cell",)}
    if before.colour != after.colour:
        attribute = "color"
        values = [before.colour, after.colour]
        names[noun(before)] = ("what",)
    elif before.what != after.what:
        attribute = "shape"
        values = [article(before.what), article(after.what)]
        names[f"{before.colour} thing"] = ("colour",)
    else:
        attribute = "size"
        values = [before.size, after.size]
        names[noun(before)] = ("what",)
        names[coloured(before)] = ("what", "colour")
    subject = _refer(rng, change, names)
    questions = (
        f"what {attribute} is the {subject}?",
        f"tell me the {attribute} of the {subject}.",
    )
    sides = []
    for value in values:
        phrasings = (f"the {subject} is {value}", f"it is {value}", f"i see it is {value}")
        sides.append(answer(phrasings, value))
    return Query(questions, *sides)


def ask_existence(rng: Rng, change: Change) -> Query | None:
    """Ask whether there is a thing of some description that only one of the two scenes has."""
    candidates: list[tuple[str, list[bool]]] = []
    for thing in change.things:
        descriptions = {
            coloured(thing): ("colour", "what"),
            noun(thing): ("what",),
            f"{thing.colour} thing": ("colour",),
        }
        for description, fields in descriptions.items():
            group = _Group(description, thing, fields)
            holds = [group.count(scene) > 0 for scene in change.scenes]
            if holds[0] != holds[1]:
                candidates.append((description, holds))
    if not candidates:
        return None
    description, holds = rng.choice(candidates)
    some = article(description)
    questions = (f"is there {some}?", f"do you see {some}?", f"does the picture show {some}?")
    sides = []
    for is_there in holds:
        seen = some if is_there else f"no {description}"
        words = (f"there is {seen}", f"i see {seen}", f"the picture shows {seen}")
        sides.append(yes_or_no(is_there, words, words, fact=words[0]))
    return Query(questions, *sides)


def ask_arithmetic(rng: Rng, change: Change) -> Query | None:
    """Ask for the sum of the digits; return None unless there are two."""
    digits_of_scenes = [_digits(scene) for scene in change.scenes]
    if len(digits_of_scenes[0]) != 2:
        return None
    questions = (
        "what is the sum of the digits?",
        "add the two digits.",
        "what do the two digits add up to?",
    )
    sides = []
    for digits in digits_of_scenes:
        total = sum(digits)
        phrasings = (
            f"the sum is {total}",
            f"they add up to {total}",
            f"the digits add up to {total}",
        )
        fact = f"{digits[0]} plus {digits[1]} is {total}"
        sides.append(answer(phrasings, str(total), fact))
    return Query(questions, *sides)


def _digits(scene: Scene) -> list[int]:
    """Return the written digits of a scene in reading order."""
    return [int(thing.what) for thing in scene.things if thing.kind == "digit"]


def ask_reading(rng: Rng, change: Change) -> Query | None:
    """Ask for a written word or digit."""
    before = change.things[0]
    kind = before.kind
    names: dict[str, tuple[str, ...]] = {
        kind: ("kind",),
        f"{before.colour} {kind}": ("kind", "colour"),
        f"{kind} {at(change.scenes[0], before.cell)}": ("cell",),
    }
    subject = _refer(rng, change, names)
    questions = (f"what is the {subject}?", f"read the {subject}.", f"tell me the {subject}.")
    sides = []
    for thing in change.things:
        phrasings = (f"the {kind} is {thing.what}", f"it is {thing.what}", f"i read {thing.what}")
        sides.append(answer(phrasings, thing.what, f"the {subject} is {thing.what}"))
    return Query(questions, *sides)


class QuestionType(NamedTuple):
    """A type of question about an image."""

    category: str
    ask: Callable[[Rng, Change], Query | None]
    """Makes a question about a scene and its twin; None if the change allows no such question."""
    edits: tuple[Edit, ...]
    """Changes that lead to a twin with another answer, drawn with equal probability."""
    kinds: tuple[Kind, ...] = ("shape", "digit", "word")
    """Kinds of things that may change."""
    written: tuple[tuple[int, int], ...] | None = None
    """Numbers of (digits, words) that a scene may have; None allows all of the level."""
    fewest: int = 1
    """The smallest number of things in a scene."""


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
