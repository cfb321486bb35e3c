"""The texts of the generated data set: names of things, answers, critiques and rationales.

Questions are about a scene: a few coloured things, such as shapes and words, in cells of a grid.
"""

import re
from typing import NamedTuple

from mmrm.data.rubric import Check, Rubric, write_rubric
from mmrm.data.synthetic.scenes import Scene, SceneObject


class WordedAnswer(NamedTuple):
    """An answer to a question, in all the forms in which the generated texts use it."""

    phrasings: tuple[str, ...]
    """Ways to give the answer."""
    fact: str
    """The fact that makes the answer right, as a critique states it."""
    quote_if_wrong: str
    """The answer in a few words, as a critique quotes it if it is wrong."""
    quote_if_right: str
    """The answer in a few words, as a critique quotes it if it is right."""


class Query(NamedTuple):
    """A question with its right answer and a wrong answer.

    A question about an image is about a scene. Its wrong answer is the right one for the twin of
    the scene, a scene that differs in one thing.
    """

    questions: tuple[str, ...]
    """Ways to ask the question."""
    true: WordedAnswer
    """The right answer."""
    false: WordedAnswer
    """The wrong answer."""


def make_answer(phrasings: tuple[str, ...], quote: str, fact: str | None = None) -> WordedAnswer:
    """Return an answer that critiques quote in the same way whether it is right or wrong.

    Args:
        phrasings: Ways to give the answer.
        quote: The answer in a few words, as critiques quote it.
        fact: The fact that makes the answer right; None takes the first phrasing.
    """
    if fact is None:
        fact = phrasings[0]
    return WordedAnswer(phrasings, fact, quote_if_wrong=quote, quote_if_right=quote)


def yes_or_no_answer(
    is_yes: bool, yes: tuple[str, ...], no: tuple[str, ...], fact: str
) -> WordedAnswer:
    """Return the answer "yes" or "no" to a question.

    Args:
        is_yes: True for "yes".
        yes: Ways to continue after "yes, ".
        no: Ways to continue after "no, ".
        fact: The fact that makes the answer right.
    """
    word = "yes" if is_yes else "no"
    continuations = yes if is_yes else no
    phrasings = tuple(f"{word}, {continuation}" for continuation in continuations)
    return make_answer(phrasings, word, fact)


def cell_name(scene: Scene, cell: int) -> str:
    """Return the name of a cell of the scene's grid, such as "top left" or "row 1 column 2"."""
    if scene.level.places is not None:
        return scene.level.places[cell]
    row, column = divmod(cell, scene.grid)
    return f"row {row + 1} column {column + 1}"


def location(scene: Scene, cell: int) -> str:
    """Return the name of a cell with its preposition, such as "at the top left"."""
    preposition = "at" if scene.level.places is None else "at the"
    return f"{preposition} {cell_name(scene, cell)}"


def with_article(words: str) -> str:
    """Return `words` with "a" or "an" before them."""
    return f"an {words}" if words[0] in "aeiou" else f"a {words}"


def plural(name: str) -> str:
    """Return the plural of a name, such as "red crosses" for "red cross"."""
    ending = "es" if name.endswith("s") else "s"
    return name + ending


def short_name(thing: SceneObject) -> str:
    """Return the name of a thing without colour and size, such as "circle" or "word cat"."""
    return thing.what if thing.kind == "shape" else f"{thing.kind} {thing.what}"


def coloured_name(thing: SceneObject) -> str:
    """Return the name of a thing without its size, such as "red circle" or "blue word cat"."""
    return f"{thing.colour} {short_name(thing)}"


def full_name(thing: SceneObject) -> str:
    """Return the name of a thing with all its properties, such as "a small red circle"."""
    if not thing.size:
        return with_article(coloured_name(thing))
    return with_article(f"{thing.size} {coloured_name(thing)}")


def thing_with_location(scene: Scene, thing: SceneObject) -> str:
    """Return a thing and its cell in words, such as "a small red circle at the top left"."""
    return f"{full_name(thing)} {location(scene, thing.cell)}"


def caption(scene: Scene) -> str:
    """Return a description of a scene: all its things with their cells, in reading order."""
    return ", ".join(thing_with_location(scene, thing) for thing in scene.things)


def drawing_call(scene: Scene, thing: SceneObject) -> str:
    """Return a line of code that draws a thing, such as "draw(red, circle, small, top left)"."""
    cell = cell_name(scene, thing.cell)
    if thing.kind == "shape":
        return f"draw({thing.colour}, {thing.what}, {thing.size}, {cell})"
    return f"write({thing.colour}, {short_name(thing)}, {cell})"


class CritiqueTruth(NamedTuple):
    """The content of a critique of one response."""

    right: bool
    """The verdict: True if the critique calls the response right."""
    fact: str
    """The fact about the image, the numbers or the request that the critique states."""
    quote: str
    """The answer of the response, in a few words."""


def critique_truth(right_answer: WordedAnswer, stated_answer: WordedAnswer) -> CritiqueTruth:
    """Return the content of the correct critique of a response that gives `stated_answer`."""
    if stated_answer == right_answer:
        return CritiqueTruth(True, right_answer.fact, right_answer.quote_if_right)
    return CritiqueTruth(False, right_answer.fact, stated_answer.quote_if_wrong)


VERDICTS = {True: "yes", False: "no"}
"""Words that a backbone learns to write directly after an answer, by whether the answer is
right."""


def write_critique(truth: CritiqueTruth) -> str:
    """Return the text of a critique: the verdict, the fact, and the answer of the response."""
    verdict = "right" if truth.right else "wrong"
    return f"the response is {verdict}. {truth.fact}. the response says {truth.quote}."


CRITIQUE = re.compile(
    r"(?:the response is )?(right|wrong)\. (?>(.*?)\. the response says )(.*)\.", re.DOTALL
)
"""A critique, for `fullmatch`, with the verdict, the fact and the quote as groups.

The group around the fact is atomic, so that a text is read only once: if it does not end with a
full stop, no later "the response says" can make it match."""


def read_critique(text: str) -> CritiqueTruth | None:
    """Return the content of a critique, or None if it is not in the form of `write_critique`.

    The critique is true if its `fact` and `right` equal those of the correct critique.
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
"""The forms of a rationale, which compares two responses, named by their first part. There are
several because annotators differ in their habits, too."""


RUBRIC = "rubric"
"""The form of a rationale that is criteria and checks (data/rubric.py). It is no key of RATIONALES,
because it is not drawn: a source has rationales in this form only if its settings say so."""
GIVES_AN_ANSWER = "it gives an answer."
"""The last criterion of every rubric. Both responses meet it, also the wrong one."""


def write_rationale(
    right_answer: WordedAnswer, wrong_answer: WordedAnswer, chosen_first: bool, form: str
) -> str:
    """Return a rationale: a text that compares a right and a wrong response.

    Every form of RATIONALES ends with the number of the better response.

    Args:
        right_answer: The answer of the chosen response.
        wrong_answer: The answer of the rejected response.
        chosen_first: True if the chosen response is Response 1.
        form: A key of RATIONALES, or RUBRIC.
    """
    if form == RUBRIC:
        return write_rubric(_rubric(right_answer, chosen_first))
    quotes = [right_answer.quote_if_right, wrong_answer.quote_if_wrong]
    if not chosen_first:
        quotes.reverse()
    better = 1 if chosen_first else 2
    return RATIONALES[form].format(
        verdicts=compare_in_short(chosen_first),
        fact=right_answer.fact,
        better=f"Response {better} is better.",
        first=quotes[0],
        second=quotes[1],
    )


def _rubric(right_answer: WordedAnswer, chosen_first: bool) -> Rubric:
    """Return the criteria for a question with the checks of a right and a wrong response to it.

    The first criterion is the fact that makes the right answer right, so that the criteria depend
    on the question and the image alone.

    Args:
        right_answer: The answer of the chosen response.
        chosen_first: True if the chosen response is Response 1.
    """
    return Rubric(
        criteria=(f"{right_answer.fact}.", GIVES_AN_ANSWER),
        checks=(Check((chosen_first, not chosen_first)), Check((True, True))),
    )


def compare_in_short(chosen_first: bool) -> str:
    """Return one sentence on each of two responses that says if it is right or wrong.

    Response 2 comes first, because a model that writes this has read that response last.

    Args:
        chosen_first: True if Response 1 is right, False if Response 2 is.
    """
    verdicts = ["right", "wrong"]
    if not chosen_first:
        verdicts.reverse()
    return f"Response 2 is {verdicts[1]}. Response 1 is {verdicts[0]}."
