"""The texts of the embedded world: names of things, answers, critiques and rationales."""

import re
from typing import NamedTuple

from mmrm.data.synthetic.scenes import Scene, SceneObject


class Side(NamedTuple):
    """The right answer for one of two scenes, in every form that texts need."""

    phrasings: tuple[str, ...]
    """Ways to give the answer."""
    fact: str
    """The fact about the scene, as a critique states it."""
    said: str
    """The answer in a few words, as a critique of a wrong response quotes it."""
    agreed: str
    """The same in a critique of a right response."""


class Query(NamedTuple):
    """A question with the right answers for a scene and for its twin.

    Without an image these are a right and a wrong answer.
    """

    questions: tuple[str, ...]
    """Ways to ask the question."""
    true: Side
    false: Side


def answer(phrasings: tuple[str, ...], said: str, fact: str | None = None) -> Side:
    """Return a side that critiques quote in the same way whether it is right or wrong.

    The fact is the first phrasing if none is given.
    """
    return Side(phrasings, phrasings[0] if fact is None else fact, said, said)


def yes_or_no(holds: bool, yes: tuple[str, ...], no: tuple[str, ...], fact: str) -> Side:
    """Return the side that affirms or denies; `yes` and `no` are the words after "yes" and "no"."""
    said = "yes" if holds else "no"
    continuations = yes if holds else no
    return answer(tuple(f"{said}, {words}" for words in continuations), said, fact)


def place(scene: Scene, cell: int) -> str:
    """Return the name of a cell."""
    if scene.level.places is not None:
        return scene.level.places[cell]
    row, column = divmod(cell, scene.grid)
    return f"row {row + 1} column {column + 1}"


def at(scene: Scene, cell: int) -> str:
    """Return the words that locate a cell."""
    preposition = "at" if scene.level.places is None else "at the"
    return f"{preposition} {place(scene, cell)}"


def article(words: str) -> str:
    """Return `words` with the indefinite article before them."""
    return f"an {words}" if words[0] in "aeiou" else f"a {words}"


def plural(noun: str) -> str:
    """Return the plural of a noun."""
    ending = "es" if noun.endswith("s") else "s"
    return noun + ending


def noun(thing: SceneObject) -> str:
    """Return the name of a thing without colour and size."""
    return thing.what if thing.kind == "shape" else f"{thing.kind} {thing.what}"


def coloured(thing: SceneObject) -> str:
    """Return the name of a thing without its size."""
    return f"{thing.colour} {noun(thing)}"


def in_full(thing: SceneObject) -> str:
    """Return the name of a thing with all its properties, such as `a small red circle`."""
    if not thing.size:
        return article(coloured(thing))
    return article(f"{thing.size} {coloured(thing)}")


def entry(scene: Scene, thing: SceneObject) -> str:
    """Return the name of a thing and its place, as in a caption."""
    return f"{in_full(thing)} {at(scene, thing.cell)}"


def caption(scene: Scene) -> str:
    """Return a description of every thing of the scene in reading order."""
    return ", ".join(entry(scene, thing) for thing in scene.things)


def call(scene: Scene, thing: SceneObject) -> str:
    """Return the line of code that draws a thing."""
    where = place(scene, thing.cell)
    if thing.kind == "shape":
        return f"draw({thing.colour}, {thing.what}, {thing.size}, {where})"
    return f"write({thing.colour}, {noun(thing)}, {where})"


class CritiqueTruth(NamedTuple):
    """The content of a critique of one response."""

    right: bool
    """The verdict on the response."""
    fact: str
    """The fact about the image, the numbers or the request."""
    said: str
    """The answer of the response, in a few words."""


def critique_truth(true: Side, stated: Side) -> CritiqueTruth:
    """Return the content of the correct critique of a response that gives the answer `stated`.

    `true` is the right answer.
    """
    is_right = stated == true
    return CritiqueTruth(is_right, true.fact, true.agreed if is_right else stated.said)


VERDICTS = {True: "yes", False: "no"}
"""Words that a backbone learns to write directly after an answer, by whether the answer is
right."""


def write_critique(truth: CritiqueTruth) -> str:
    """Return a critique: the verdict, the fact, and the answer of the response."""
    verdict = "right" if truth.right else "wrong"
    return f"the response is {verdict}. {truth.fact}. the response says {truth.said}."


CRITIQUE = re.compile(
    r"(?:the response is )?(right|wrong)\. (?>(.*?)\. the response says )(.*)\.", re.DOTALL
)
"""A critique; it is only used with `fullmatch`. The group is atomic: if the text does not end with
a full stop, it does not do so behind a later "the response says" either."""


def read_critique(text: str) -> CritiqueTruth | None:
    """Return the content of a critique in the form of `write_critique`; None if a part is missing.

    The critique is factually accurate if its `fact` and `right` equal those of the correct
    critique.
    """
    match = CRITIQUE.fullmatch(text.strip())
    if match is None:
        return None
    return CritiqueTruth(match[1] == "right", match[2], match[3])


RATIONALES = {
    "verdicts": "{verdicts} {fact}. {better}",
    "fact": "{fact}. {verdicts} {better}",
    "quotes": "Response 1 says {first}. Response 2 says {second}. {fact}. {better}",
}
"""The forms of a rationale, named by their first part. Annotators differ in their habits, too."""


def write_rationale(true: Side, false: Side, chosen_first: bool, form: str) -> str:
    """Return a comparison of two responses, of which the first or the second is right.

    Every form ends with the number of the better response.

    Args:
        true: The right answer.
        false: The wrong answer.
        chosen_first: True if Response 1 gives the right answer.
        form: A key of RATIONALES.
    """
    answers = [true.agreed, false.said]
    if not chosen_first:
        answers.reverse()
    better = 1 if chosen_first else 2
    return RATIONALES[form].format(
        verdicts=compare_in_short(chosen_first),
        fact=true.fact,
        better=f"Response {better} is better.",
        first=answers[0],
        second=answers[1],
    )


def compare_in_short(chosen_first: bool) -> str:
    """Return the verdicts on two responses with which a rationale begins.

    The verdict on Response 2 comes first, because the model has read that response last.
    """
    verdicts = ["right", "wrong"]
    if not chosen_first:
        verdicts.reverse()
    return f"Response 2 is {verdicts[1]}. Response 1 is {verdicts[0]}."
