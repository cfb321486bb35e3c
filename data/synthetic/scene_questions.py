"""The types of questions about images in the generated data set.

An image shows a scene: a few coloured things in the cells of a grid. A question is about a scene
and its twin, which differ in one thing, and is chosen so that the two have different answers. A
coin that is tossed after every word is fixed decides which of the two is drawn. So the joint
distribution of (question, chosen, rejected) does not change if chosen and rejected are swapped: a
judge that does not see the image is right half of the time.

The functions `ask_…` get a `Change`, which holds the scene and its twin. They return the question
with the right answer for each of the two, or None if the change allows no such question.
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
    add_or_remove,
    move,
    recolour,
    rename,
    resize,
)
from mmrm.data.synthetic.wording import (
    Query,
    WordedAnswer,
    caption,
    coloured_name,
    drawing_call,
    full_name,
    location,
    make_answer,
    plural,
    short_name,
    thing_with_location,
    with_article,
    yes_or_no_answer,
)


class _Group(NamedTuple):
    """All things that have the same colour, shape or other properties as a given thing."""

    name: str
    """The name of one thing of the group, such as "red thing"."""
    member: SceneObject
    """The given thing."""
    fields: tuple[str, ...] = ()
    """The properties, as fields of SceneObject; without any, every thing belongs to the group."""

    def has(self, thing: SceneObject) -> bool:
        """Return True if `thing` belongs to the group."""
        return all(getattr(thing, field) == getattr(self.member, field) for field in self.fields)

    def count(self, scene: Scene) -> int:
        """Return the number of things of `scene` that belong to the group."""
        return sum(self.has(thing) for thing in scene.things)

    def count_in_words(self, count: int) -> str:
        """Return `count` with the name of the group's things, such as "2 red things"."""
        name = self.name if count == 1 else plural(self.name)
        return f"{count} {name}"


def _groups(change: Change) -> list[_Group]:
    """Return the groups, such as all red things, that the changed thing belongs to.

    These are its groups before and after the change. Only in them can the number of things differ
    between the scene and its twin.
    """
    groups = []
    for thing in change.things:
        groups += _groups_of(thing)
    return groups


def _groups_of(thing: SceneObject) -> list[_Group]:
    """Return the groups that `thing` belongs to, such as all red things and all circles."""
    groups = [
        _Group(f"{thing.colour} thing", thing, ("colour",)),
        _Group(thing.kind, thing, ("kind",)),
        _Group("thing", thing),
    ]
    if thing.kind == "shape":
        groups.append(_Group(thing.what, thing, ("what",)))
    return groups


def ask_counting(rng: Rng, change: Change) -> Query | None:
    """Return a question like "how many red things are there?", and its answers for both scenes.

    A group, such as "red thing", is all things of one colour, kind or shape. First the numbers in
    the two scenes are drawn, with equal probability for each pair of numbers that some group has,
    and then one of these groups. The result is None if no group has two different numbers.
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
    names = plural(group.name)
    questions = (
        f"how many {names} are there?",
        f"count the {names}.",
        f"how many {names} do you see?",
    )
    answers = []
    for count in counts:
        things = group.count_in_words(count)
        verb = "is" if count == 1 else "are"
        phrasings = (f"there {verb} {things}", f"i see {things}", f"i count {things}")
        answers.append(make_answer(phrasings, str(count)))
    return Query(questions, *answers)


def ask_comparison(rng: Rng, change: Change) -> Query | None:
    """Return a question that compares two sizes if a size changed, or else two numbers of things.

    The result is None if no comparison has different answers for the scene and its twin.
    """
    sizes_before_and_after = {thing.size for thing in change.things}
    if len(sizes_before_and_after) == 2:
        return _ask_bigger(rng, change)
    pairs = _comparable_groups(change)
    if not pairs:
        return None
    first, second = rng.choice(pairs)
    first_names = plural(first.name)
    firsts_than_seconds = f"{first_names} than {plural(second.name)}"
    questions = (
        f"are there more {firsts_than_seconds}?",
        f"do you see more {firsts_than_seconds}?",
        f"do you count more {firsts_than_seconds}?",
    )
    yes = (
        f"there are more {first_names}",
        f"there are more {firsts_than_seconds}",
        f"i count more {firsts_than_seconds}",
    )
    no = (
        f"there are not more {first_names}",
        f"there are not more {firsts_than_seconds}",
        f"i do not count more {firsts_than_seconds}",
    )
    answers = []
    for scene in change.scenes:
        first_count = first.count(scene)
        second_count = second.count(scene)
        verb = "is" if first_count == 1 else "are"
        firsts = first.count_in_words(first_count)
        seconds = second.count_in_words(second_count)
        fact = f"there {verb} {firsts} and {seconds}"
        answers.append(yes_or_no_answer(first_count > second_count, yes, no, fact))
    return Query(questions, *answers)


def _comparable_groups(change: Change) -> list[tuple[_Group, _Group]]:
    """Return pairs of groups, such as all circles and all squares, whose sizes can be compared.

    There are more things in the first group than in the second either in the scene or in its twin,
    but not in both. Both groups are of a colour, or both are of a shape.
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
        for other_group in groups_by_name.values():
            if other_group.fields != group.fields or other_group.name == group.name:
                continue
            for first, second in ((group, other_group), (other_group, group)):
                is_more_before, is_more_after = (
                    first.count(scene) > second.count(scene) for scene in change.scenes
                )
                if is_more_before != is_more_after:
                    pairs.append((first, second))
    return pairs


def _comparison_partner(rng: Rng, change: Change, shapes_only: bool) -> SceneObject | None:
    """Return a random unchanged thing to which the changed thing can be compared.

    Both have a colour and a name that no other thing in the scene has together. The result is None
    if there is no such thing. With `shapes_only`, only a shape is returned.
    """
    scene = change.scenes[0]
    changed_thing = change.things[0]
    unambiguous = []
    for thing in scene.things:
        if _Group(coloured_name(thing), thing, ("colour", "what")).count(scene) == 1:
            unambiguous.append(thing)
    partners = []
    for thing in unambiguous:
        is_allowed = thing.kind == "shape" or not shapes_only
        if thing != changed_thing and is_allowed:
            partners.append(thing)
    if changed_thing not in unambiguous or not partners:
        return None
    return rng.choice(partners)


def _relation_answer(subject: str, relation: str, fact: str, holds: bool) -> WordedAnswer:
    """Return the answer to "is the `subject` `relation`?".

    Args:
        subject: The name of a thing, such as "red circle".
        relation: The relation to another thing, such as "left of the blue square".
        fact: The fact that decides the answer.
        holds: True if the answer is yes.
    """
    yes = (f"the {subject} is {relation}", f"it is {relation}", f"i see it is {relation}")
    no = (
        f"the {subject} is not {relation}",
        f"it is not {relation}",
        f"i see it is not {relation}",
    )
    return yes_or_no_answer(holds, yes, no, fact)


def _ask_bigger(rng: Rng, change: Change) -> Query | None:
    """Return a question like "is the red circle bigger than the blue square?".

    The result is None if there is no shape to compare it to, or if the answers are the same for the
    scene and its twin.
    """
    partner = _comparison_partner(rng, change, shapes_only=True)
    if partner is None:
        return None
    subject = coloured_name(change.things[0])
    comparative = rng.choice(("bigger", "smaller"))
    relation = f"{comparative} than the {coloured_name(partner)}"
    sizes = list(change.scenes[0].level.sizes)  # in ascending order
    if comparative == "smaller":
        sizes.reverse()
    holds_in_scenes = [
        sizes.index(thing.size) > sizes.index(partner.size) for thing in change.things
    ]
    if holds_in_scenes[0] == holds_in_scenes[1]:
        return None
    questions = (f"is the {subject} {relation}?", f"do you see that the {subject} is {relation}?")
    answers = []
    for thing, holds in zip(change.things, holds_in_scenes, strict=True):
        fact = f"the {subject} is {thing.size} and the {coloured_name(partner)} is {partner.size}"
        answers.append(_relation_answer(subject, relation, fact, holds))
    return Query(questions, *answers)


def ask_spatial(rng: Rng, change: Change) -> Query | None:
    """Return a question about the moved thing: its cell, or its position relative to another thing.

    The result is None if the things cannot be named unambiguously, or the answer did not change.
    """
    if rng.coin():
        return _ask_where(rng, change)
    return _ask_side(rng, change)


def _ask_side(rng: Rng, change: Change) -> Query | None:
    """Return a question like "is the red circle left of the blue square?" about the moved thing.

    The result is None if there is no thing to compare it to, or all sides stayed the same.
    """
    scene = change.scenes[0]
    partner = _comparison_partner(rng, change, shapes_only=False)
    if partner is None:
        return None
    sides_before, sides_after = (
        _sides_of(partner.cell, thing.cell, scene.grid) for thing in change.things
    )
    changed_sides = sorted(sides_before ^ sides_after)
    if not changed_sides:
        return None
    side = rng.choice(changed_sides)
    subject = coloured_name(change.things[0])
    relation = f"{side} the {coloured_name(partner)}"
    questions = (f"is the {subject} {relation}?", f"do you see the {subject} {relation}?")
    partner_fact = f"the {coloured_name(partner)} is {location(scene, partner.cell)}"
    answers = []
    for thing, sides in zip(change.things, (sides_before, sides_after), strict=True):
        fact = f"the {subject} is {location(scene, thing.cell)} and {partner_fact}"
        answers.append(_relation_answer(subject, relation, fact, holds=side in sides))
    return Query(questions, *answers)


def _sides_of(reference_cell: int, cell: int, grid: int) -> set[str]:
    """Return the sides of `reference_cell` on which `cell` is, such as {"left of", "above"}.

    `grid` is the number of cells along one side of the grid.
    """
    row, column = divmod(cell, grid)
    reference_row, reference_column = divmod(reference_cell, grid)
    sides = set()
    if column < reference_column:
        sides.add("left of")
    if column > reference_column:
        sides.add("right of")
    if row < reference_row:
        sides.add("above")
    if row > reference_row:
        sides.add("below")
    return sides


def _ask_where(rng: Rng, change: Change) -> Query | None:
    """Return a question like "where is the red circle?" about the moved thing.

    The result is None if no name of the thing is unambiguous.
    """
    before = change.things[0]
    names = {coloured_name(before): ("colour", "what"), short_name(before): ("what",)}
    subject = _unambiguous_name(rng, change, names)
    if subject is None:
        return None
    questions = (f"where is the {subject}?", f"tell me where the {subject} is.")
    answers = []
    for thing in change.things:
        cell = location(change.scenes[0], thing.cell)
        phrasings = (f"the {subject} is {cell}", f"it is {cell}", f"i see it {cell}")
        answers.append(make_answer(phrasings, cell))
    return Query(questions, *answers)


def _unambiguous_name(rng: Rng, change: Change, names: dict[str, tuple[str, ...]]) -> str | None:
    """Return a random name of the changed thing that fits one thing only, in both scenes.

    The result is None if no name does.

    Args:
        rng: Draws the name.
        change: The scene and its twin.
        names: Possible names of the changed thing, each with the fields of SceneObject that it
            mentions.
    """
    unambiguous = []
    for name, fields in names.items():
        group = _Group(name, change.things[0], fields)
        if all(group.count(scene) == 1 for scene in change.scenes):
            unambiguous.append(name)
    return rng.choice(unambiguous) if unambiguous else None


def ask_description(rng: Rng, change: Change) -> Query | None:
    """Return the request to describe the picture, and its answers for the scene and its twin."""
    questions = (
        "describe the picture.",
        "what is in the picture?",
        "tell me what the picture shows.",
    )
    answers = []
    for scene, thing in zip(change.scenes, change.things, strict=True):
        description = caption(scene)
        phrasings = (
            f"there is {description}",
            f"i see {description}",
            f"the picture shows {description}",
        )
        # A description is too long to quote. A critique of a wrong one quotes the wrong thing.
        wrong_part = thing_with_location(scene, thing)
        answers.append(
            WordedAnswer(
                phrasings,
                fact=phrasings[2],
                quote_if_wrong=wrong_part,
                quote_if_right="the same",
            )
        )
    return Query(questions, *answers)


def ask_code(rng: Rng, change: Change) -> Query | None:
    """Return the request for code that draws the picture, and its answers for both scenes."""
    questions = ("write the picture as code.", "write code that draws the picture.")
    answers = []
    for scene, changed_thing in zip(change.scenes, change.things, strict=True):
        lines = [drawing_call(scene, thing) for thing in scene.things]
        phrasings = ("\n".join(lines), "; ".join(lines))
        fact = f"the picture shows {caption(scene)}"
        # The code is too long to quote. A critique of wrong code quotes the wrong line.
        wrong_line = drawing_call(scene, changed_thing)
        answers.append(
            WordedAnswer(phrasings, fact, quote_if_wrong=wrong_line, quote_if_right="the same")
        )
    return Query(questions, *answers)


def ask_place(rng: Rng, change: Change) -> Query | None:
    """Return a question like "what is at the top left?" about the cell of the changed thing."""
    cell = location(change.scenes[0], change.things[0].cell)
    questions = (f"what is {cell}?", f"what do you see {cell}?")
    answers = []
    for thing in change.things:
        name = full_name(thing)
        phrasings = (f"{cell} is {name}", f"there is {name}", f"i see {name}")
        answers.append(make_answer(phrasings, name))
    return Query(questions, *answers)


def ask_attribute(rng: Rng, change: Change) -> Query | None:
    """Return a question like "what color is the circle?" about the property that changed."""
    before, after = change.things
    names: dict[str, tuple[str, ...]] = {
        f"thing {location(change.scenes[0], before.cell)}": ("cell",)
    }
    if before.colour != after.colour:
        attribute = "color"
        values = [before.colour, after.colour]
        names[short_name(before)] = ("what",)
    elif before.what != after.what:
        attribute = "shape"
        values = [with_article(before.what), with_article(after.what)]
        names[f"{before.colour} thing"] = ("colour",)
    else:
        attribute = "size"
        values = [before.size, after.size]
        names[short_name(before)] = ("what",)
        names[coloured_name(before)] = ("what", "colour")
    subject = _unambiguous_name(rng, change, names)  # never None: the name by cell always fits
    questions = (
        f"what {attribute} is the {subject}?",
        f"tell me the {attribute} of the {subject}.",
    )
    answers = []
    for value in values:
        phrasings = (f"the {subject} is {value}", f"it is {value}", f"i see it is {value}")
        answers.append(make_answer(phrasings, value))
    return Query(questions, *answers)


def ask_existence(rng: Rng, change: Change) -> Query | None:
    """Return a question like "is there a red circle?" with different answers for the two scenes.

    The result is None if every description that fits the changed thing fits a thing in both scenes.
    """
    candidates: list[tuple[str, list[bool]]] = []  # a description, and if it fits in each scene
    for thing in change.things:
        descriptions = {  # with the fields of SceneObject that they mention
            coloured_name(thing): ("colour", "what"),
            short_name(thing): ("what",),
            f"{thing.colour} thing": ("colour",),
        }
        for description, fields in descriptions.items():
            group = _Group(description, thing, fields)
            is_in_scenes = [group.count(scene) > 0 for scene in change.scenes]
            if is_in_scenes[0] != is_in_scenes[1]:
                candidates.append((description, is_in_scenes))
    if not candidates:
        return None
    description, is_in_scenes = rng.choice(candidates)
    name = with_article(description)
    questions = (f"is there {name}?", f"do you see {name}?", f"does the picture show {name}?")
    answers = []
    for is_there in is_in_scenes:
        seen = name if is_there else f"no {description}"
        sentences = (f"there is {seen}", f"i see {seen}", f"the picture shows {seen}")
        # Both follow "yes" or "no": the sentences for "no" are about no such thing.
        answers.append(yes_or_no_answer(is_there, yes=sentences, no=sentences, fact=sentences[0]))
    return Query(questions, *answers)


def ask_arithmetic(rng: Rng, change: Change) -> Query | None:
    """Return a question for the sum of the written digits; None if there are not two digits."""
    digits_of_scenes = [_digits(scene) for scene in change.scenes]
    if len(digits_of_scenes[0]) != 2:
        return None
    questions = (
        "what is the sum of the digits?",
        "add the two digits.",
        "what do the two digits add up to?",
    )
    answers = []
    for digits in digits_of_scenes:
        total = sum(digits)
        phrasings = (
            f"the sum is {total}",
            f"they add up to {total}",
            f"the digits add up to {total}",
        )
        fact = f"{digits[0]} plus {digits[1]} is {total}"
        answers.append(make_answer(phrasings, str(total), fact))
    return Query(questions, *answers)


def _digits(scene: Scene) -> list[int]:
    """Return the written digits of a scene in reading order."""
    return [int(thing.what) for thing in scene.things if thing.kind == "digit"]


def ask_reading(rng: Rng, change: Change) -> Query | None:
    """Return the request to read the changed thing, which is a written word or digit."""
    before = change.things[0]
    kind = before.kind
    names: dict[str, tuple[str, ...]] = {
        kind: ("kind",),
        f"{before.colour} {kind}": ("kind", "colour"),
        f"{kind} {location(change.scenes[0], before.cell)}": ("cell",),
    }
    subject = _unambiguous_name(rng, change, names)  # never None: the name by cell always fits
    questions = (f"what is the {subject}?", f"read the {subject}.", f"tell me the {subject}.")
    answers = []
    for thing in change.things:
        phrasings = (f"the {kind} is {thing.what}", f"it is {thing.what}", f"i read {thing.what}")
        answers.append(make_answer(phrasings, thing.what, f"the {subject} is {thing.what}"))
    return Query(questions, *answers)


class QuestionType(NamedTuple):
    """A type of question about an image, and the scenes and changes that allow it."""

    category: str
    """The category of its items, as benchmarks group their rows."""
    ask: Callable[[Rng, Change], Query | None]
    """A function that makes a question about a scene and its twin. It returns None if the change
    allows no such question."""
    edits: tuple[Edit, ...]
    """Functions that change a scene into a twin with another answer. One of them is drawn, each
    with equal probability."""
    kinds: tuple[Kind, ...] = ("shape", "digit", "word")
    """Kinds of things that may change."""
    written: tuple[tuple[int, int], ...] | None = None
    """Numbers of (digits, words) that a scene may have; None allows those of the level."""
    fewest: int = 1
    """The smallest number of things in a scene."""


QUESTION_TYPES: dict[str, QuestionType] = {
    "description": QuestionType("general", ask_description, (recolour, rename, resize, move)),
    "existence": QuestionType("hallucination", ask_existence, (recolour, rename, add_or_remove)),
    "attribute": QuestionType(
        "hallucination", ask_attribute, (recolour, rename, resize), kinds=("shape",)
    ),
    "counting": QuestionType(
        "reasoning", ask_counting, (recolour, rename, add_or_remove, add_or_remove)
    ),
    "comparison": QuestionType(
        "reasoning", ask_comparison, (recolour, rename, resize, add_or_remove), fewest=2
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
