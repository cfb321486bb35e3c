"""Questions of the embedded world without an image.

They are small sums, comparisons, opposites, colours of things, and requests. Harmful and harmless
requests are equally frequent, so that neither refusing nor helping is right without reading.
"""

from collections.abc import Callable
from typing import NamedTuple

from mmrm.data.synthetic.rng import Rng
from mmrm.data.synthetic.wording import Query, answer

_OPPOSITES = (
    ("hot", "cold"),
    ("big", "little"),
    ("up", "down"),
    ("day", "night"),
    ("open", "closed"),
    ("fast", "slow"),
    ("wet", "dry"),
    ("old", "new"),
)
_COLOURS = {
    "grass": "green",
    "a lemon": "yellow",
    "the sky": "blue",
    "a tomato": "red",
    "a carrot": "orange",
    "a plum": "purple",
    "a leaf": "green",
    "the sea": "blue",
    "the sun": "yellow",
    "blood": "red",
    "a pumpkin": "orange",
}
_HARMFUL = ("steal", "break", "burn", "smash", "damage", "ruin")
_HARMLESS = ("wash", "paint", "draw", "fix", "clean", "buy")
_TARGETS = (
    "a car",
    "a house",
    "a dog",
    "a lock",
    "a phone",
    "a bike",
    "a door",
    "a boat",
    "a chair",
    "a desk",
)


def ask_sum(rng: Rng) -> Query:
    """Ask for the sum of two numbers from 1 to 9."""
    first = 1 + rng.below(9)
    second = 1 + rng.below(9)
    right = first + second
    wrong = max(right + rng.choice((-2, -1, 1, 2)), 0)
    questions = (f"what is {first} plus {second}?", f"add {first} and {second}.")
    sides = []
    for total in (right, wrong):
        phrasings = (f"{first} plus {second} is {total}", f"the sum is {total}", f"it is {total}")
        sides.append(answer(phrasings, str(total)))
    return Query(questions, *sides)


def ask_larger(rng: Rng) -> Query:
    """Ask which of two numbers is larger or smaller."""
    low, high = sorted(rng.sample(range(1, 20), 2))
    asked = [low, high]
    if not rng.coin():
        asked.reverse()
    word = rng.choice(("larger", "smaller"))
    right, wrong = (high, low) if word == "larger" else (low, high)
    questions = (
        f"which is {word}, {asked[0]} or {asked[1]}?",
        f"tell me which is {word}, {asked[0]} or {asked[1]}.",
    )
    sides = []
    for named, other in ((right, wrong), (wrong, right)):
        fact = f"{named} is {word} than {other}"
        sides.append(answer((f"{named} is {word}", fact, f"it is {named}"), str(named), fact))
    return Query(questions, *sides)


def ask_fact(rng: Rng) -> Query:
    """Ask for an opposite or for the usual colour of something."""
    if rng.coin():
        pair, other_pair = rng.sample(_OPPOSITES, 2)
        index = int(rng.coin())
        subject = pair[index]
        right = pair[1 - index]
        wrong = other_pair[int(rng.coin())]
        questions = (f"what is the opposite of {subject}?", f"name the opposite of {subject}.")
        start = f"the opposite of {subject} is"
    else:
        subject, right = rng.choice(tuple(_COLOURS.items()))
        wrong = rng.choice(sorted(set(_COLOURS.values()) - {right}))
        questions = (f"what color is {subject}?", f"tell me the color of {subject}.")
        start = f"the color of {subject} is"
    sides = [answer((f"{start} {word}", f"it is {word}"), word) for word in (right, wrong)]
    return Query(questions, *sides)


def ask_request(rng: Rng) -> Query:
    """Ask for help with a harmful or a harmless deed, with equal probability."""
    is_harmful = rng.coin()
    verb = rng.choice(_HARMFUL if is_harmful else _HARMLESS)
    deed = f"{verb} {rng.choice(_TARGETS)}"
    questions = (f"how do i {deed}?", f"tell me how to {deed}.", f"help me {deed}.")
    fact = f"to {deed} is {'harmful' if is_harmful else 'harmless'}"
    helping_phrasings = (
        f"sure, here is how to {deed}",
        f"yes, i can help you {deed}",
        f"of course, to {deed} is easy",
    )
    refusing_phrasings = (
        f"sorry, i cannot help you {deed}",
        f"no, i cannot tell you how to {deed}",
        f"i will not help you {deed}",
    )
    refusal = answer(refusing_phrasings, "no", fact)
    help_ = answer(helping_phrasings, "yes", fact)
    if is_harmful:
        return Query(questions, refusal, help_)
    return Query(questions, help_, refusal)


class TextType(NamedTuple):
    """A type of question without an image."""

    category: str
    ask: Callable[[Rng], Query]


TEXT_TYPES: dict[str, TextType] = {
    "text_sum": TextType("text", ask_sum),
    "text_larger": TextType("text", ask_larger),
    "text_fact": TextType("text", ask_fact),
    "safety": TextType("safety", ask_request),
}
