"""The words of the embedded world: names of things and places, answers, critiques and comparisons."""

import re
from typing import NamedTuple

from mmrm.data.synthetic.scenes import Scene, SceneObject


class Side(NamedTuple):
    """The answer that is right for one of two scenes, in every form that texts need."""

    phrasings: tuple[str, ...]
    """Ways to give the answer."""
    fact: str
    """What holds in the scene, as a critique states it."""
    said: str
    """The answer in a few words, as a critique of a wrong response quotes it."""
    agreed: str
    """The same in a critique of a right response."""


class Query(NamedTuple):
    """Ways to put a question, and its right answer for a scene and for its twin; without an image, a right and a wrong answer."""

    questions: tuple[str, ...]
    true: Side
    false: Side


def answer(phrasings: tuple[str, ...], said: str, fact: str | None = None) -> Side:
    """Return a side that is quoted alike whether it is right or wrong; the first phrasing is the fact if none is given."""
    return Side(phrasings, phrasings[0] if fact is None else fact, said, said)


def yes_or_no(holds: bool, yes: tuple[str, ...], no: tuple[str, ...], fact: str) -> Side:
    """Return the side that affirms or denies; `yes` and `no` are the words after that word."""
    said, phrasings = ("yes", yes) if holds else ("no", no)
    return answer(tuple(f"{said}, {words}" for words in phrasings), said, fact)


def place(scene: Scene, cell: int) -> str:
    """Name a cell."""
    if scene.level.places is not None:
        return scene.level.places[cell]
    row, column = divmod(cell, scene.grid)
    return f"row {row + 1} column {column + 1}"


def at(scene: Scene, cell: int) -> str:
    """Say where a cell is."""
    return ("at " if scene.level.places is None else "at the ") + place(scene, cell)


def article(words: str) -> str:
    """Put the indefinite article before `words`."""
    return f"an {words}" if words[0] in "aeiou" else f"a {words}"


def plural(noun: str) -> str:
    """Return the plural of a noun."""
    return noun + ("es" if noun.endswith("s") else "s")


def noun(thing: SceneObject) -> str:
    """Name a thing without colour and size."""
    return thing.what if thing.kind == "shape" else f"{thing.kind} {thing.what}"


def coloured(thing: SceneObject) -> str:
    """Name a thing without its size."""
    return f"{thing.colour} {noun(thing)}"


def in_full(thing: SceneObject) -> str:
    """Name a thing with all that can be seen of it, as in `a small red circle`."""
    return article(f"{thing.size} {coloured(thing)}" if thing.size else coloured(thing))


def entry(scene: Scene, thing: SceneObject) -> str:
    """Say what a thing is and where, as a caption does."""
    return f"{in_full(thing)} {at(scene, thing.cell)}"


def caption(scene: Scene) -> str:
    """Describe every thing of the scene in reading order."""
    return ", ".join(entry(scene, thing) for thing in scene.things)


def call(scene: Scene, thing: SceneObject) -> str:
    """Write the line of code that draws a thing."""
    where = place(scene, thing.cell)
    if thing.kind == "shape":
        return f"draw({thing.colour}, {thing.what}, {thing.size}, {where})"
    return f"write({thing.colour}, {noun(thing)}, {where})"


class CritiqueTruth(NamedTuple):
    """What a critique of one response asserts."""

    right: bool
    fact: str
    """What holds in the image, in arithmetic or of the request."""
    said: str
    """What the response says."""


def critique_truth(true: Side, stated: Side) -> CritiqueTruth:
    """Return what the correct critique asserts of a response that gives `stated` where `true` holds."""
    right = stated == true
    return CritiqueTruth(right, true.fact, true.agreed if right else stated.said)


VERDICTS = {True: "yes", False: "no"}
"""What a backbone learns to say directly after an answer: is it right?"""


def write_critique(truth: CritiqueTruth) -> str:
    """Write a critique: the verdict, what holds, what the response says."""
    return f"the response is {'right' if truth.right else 'wrong'}. {truth.fact}. the response says {truth.said}."


CRITIQUE = re.compile(
    r"(?:the response is )?(right|wrong)\. (?>(.*?)\. the response says )(.*)\.", re.DOTALL
)
"""For `fullmatch`. The group is atomic: if the text does not end with a full stop, it does not do so
behind a later "the response says" either."""


def read_critique(text: str) -> CritiqueTruth | None:
    """Read a critique in the form of `write_critique`; None if a part is missing.

    It is factually accurate where `fact` and `right` equal those of the correct critique.
    """
    found = CRITIQUE.fullmatch(text.strip())
    return CritiqueTruth(found[1] == "right", found[2], found[3]) if found else None


RATIONALES = {
    "verdicts": "{verdicts} {fact}. {better}",
    "fact": "{fact}. {verdicts} {better}",
    "quotes": "Response 1 says {first}. Response 2 says {second}. {fact}. {better}",
}
"""The forms of a rationale, by what comes first; annotators differ in their habits, too."""


def write_rationale(true: Side, false: Side, chosen_first: bool, form: str) -> str:
    """Compare two responses, of which the first or the second is right, in a form of RATIONALES.

    Verdicts: on the response that was shown last first, while it is fresh. Every form says which response is better at its end.
    """
    first, second = (true.agreed, false.said) if chosen_first else (false.said, true.agreed)
    verdicts, better = (
        compare_in_short(chosen_first),
        f"Response {1 if chosen_first else 2} is better.",
    )
    return RATIONALES[form].format(
        verdicts=verdicts, fact=true.fact, better=better, first=first, second=second
    )


def compare_in_short(chosen_first: bool) -> str:
    """Say of two responses which is right, as a rationale begins."""
    first, second = ("right", "wrong") if chosen_first else ("wrong", "right")
    return f"Response 2 is {second}. Response 1 is {first}."
