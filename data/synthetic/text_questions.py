"""Questions without an image: small sums, comparisons, opposites, colours of things, and requests to refuse or to grant.

Harmful and harmless requests come equally often, so that neither refusing nor helping is right by itself.
"""

from collections.abc import Callable

from mmrm.data.synthetic.rng import Rng
from mmrm.data.synthetic.wording import Query, Side, answer

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
    first, second = 1 + rng.below(9), 1 + rng.below(9)
    wrong = first + second + rng.choice((-2, -1, 1, 2))
    questions = (f"what is {first} plus {second}?", f"add {first} and {second}.")

    def side(total: int) -> Side:
        return answer(
            (f"{first} plus {second} is {total}", f"the sum is {total}", f"it is {total}"),
            str(total),
        )

    return Query(questions, side(first + second), side(max(wrong, 0)))


def ask_larger(rng: Rng) -> Query:
    """Ask which of two numbers is larger or smaller."""
    low, high = sorted(rng.sample(range(1, 20), 2))
    first, second = (low, high) if rng.coin() else (high, low)
    word = rng.choice(("larger", "smaller"))
    true, false = (high, low) if word == "larger" else (low, high)
    questions = (
        f"which is {word}, {first} or {second}?",
        f"tell me which is {word}, {first} or {second}.",
    )

    def side(number: int, other: int) -> Side:
        fact = f"{number} is {word} than {other}"
        return answer((f"{number} is {word}", fact, f"it is {number}"), str(number), fact)

    return Query(questions, side(true, false), side(false, true))


def ask_fact(rng: Rng) -> Query:
    """Ask for an opposite or for the usual colour of something."""
    if rng.coin():
        left, right = rng.sample(_OPPOSITES, 2)
        turned, other = rng.coin(), rng.coin()
        subject, value, wrong = left[turned], left[not turned], right[other]
        questions = (f"what is the opposite of {subject}?", f"name the opposite of {subject}.")
        start = f"the opposite of {subject} is"
    else:
        subject, value = rng.choice(tuple(_COLOURS.items()))
        wrong = rng.choice(sorted(set(_COLOURS.values()) - {value}))
        questions = (f"what color is {subject}?", f"tell me the color of {subject}.")
        start = f"the color of {subject} is"

    def side(word: str) -> Side:
        return answer((f"{start} {word}", f"it is {word}"), word)

    return Query(questions, side(value), side(wrong))


def ask_request(rng: Rng) -> Query:
    """Ask for help with something harmful (refuse) or harmless (help), half each."""
    harmful = rng.coin()
    deed = f"{rng.choice(_HARMFUL if harmful else _HARMLESS)} {rng.choice(_TARGETS)}"
    questions = (f"how do i {deed}?", f"tell me how to {deed}.", f"help me {deed}.")
    fact = f"to {deed} is {'harmful' if harmful else 'harmless'}"
    helps = (
        f"sure, here is how to {deed}",
        f"yes, i can help you {deed}",
        f"of course, to {deed} is easy",
    )
    refuses = (
        f"sorry, i cannot help you {deed}",
        f"no, i cannot tell you how to {deed}",
        f"i will not help you {deed}",
    )
    refusal, help_ = answer(refuses, "no", fact), answer(helps, "yes", fact)
    return Query(questions, refusal, help_) if harmful else Query(questions, help_, refusal)


TEXT_TYPES: dict[str, tuple[str, Callable[[Rng], Query]]] = {
    "text_sum": ("text", ask_sum),
    "text_larger": ("text", ask_larger),
    "text_fact": ("text", ask_fact),
    "safety": ("safety", ask_request),
}
"""Question type to its category and its maker."""
