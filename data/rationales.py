"""Rationales for the other order of two responses: rewritten if every reference is recognised.

A rationale calls the responses by the order in which they were shown: "Response 1", "the second
response". If they are shown the other way round, these references have to change places. `swapped`
rewrites a rationale only if it recognises everything in it that could refer to a response by order.
The references that it exchanges and the words that it takes to be harmless are closed lists;
whatever else could be a reference is an obstacle, and the record keeps its order.
"""

import re
from collections.abc import Iterator
from typing import Literal

from mmrm.data.rubric import Check, Rubric, read_rubric, write_rubric

# 1. References that are exchanged.

NOUN = r"(?P<noun>[Rr]esponse|RESPONSE|Answer|ANSWER|Assistant|Model)"
"""A word before a label. "answer 2" in small letters may be the value of an answer, so it is no
reference."""
AFTER_LABEL = r"(?!\w|-\w|[.,:/]\d)"
"""A label ends there: "Response 1.5", "Response 1/2" and "Response 1st" are no references."""
UNIT = (
    r"(?! (?:times|words|sentences|lines|paragraphs|points|percent|days|hours|minutes|seconds)\b)"
)
LABELLED = re.compile(
    rf"(?<![\w-])(?<!\ba )(?<!\bA )(?<!\bits )(?<!\bone )(?<!\bthe )(?<!\bThe )"
    rf"{NOUN}(?P<gap>[ \u00a0]#?|_)(?P<label>[12AB]){AFTER_LABEL}{UNIT}"
)
"""One response: "Response 1", "response #2", "Model A"."""
LABELLED_PAIR = re.compile(
    rf"(?<![\w-])(?P<noun>[Rr]esponses|Answers) (?P<label>[12AB])(?P<between> (?:and|or|&|vs\.?) )"
    rf"(?P<other>(?!(?P=label))[12AB]){AFTER_LABEL}{UNIT}"
)
"""Both responses: "Responses 1 and 2"."""
VERDICT = re.compile(
    r"\b(?P<noun>[Bb]etter response)(?P<gap>: \[?)(?P<label>[12AB])(?=\]?(?:\.|\s*$))"
)
"""The last line of LLaVA-Critic's judgements: "The better response: [2]"."""
ORDINAL = re.compile(
    r"\b(?P<the>[Tt]he|THE) (?P<ordinal>first|second|First|Second|FIRST|SECOND|1st|2nd) "
    r"(?P<noun>response|Response|RESPONSE|answer|Answer|ANSWER)\b(?!-)"
    r"(?! (?:option|choice|sentence|line|word|part|paragraph|half|time|key|token)s?\b)"
    r"(?! (?:letter|section|item|point)s?\b)"
)
"""One response: "the first response". The article is part of the form, since "its first answer" is
none of the two."""
OTHER_LABEL = {
    "1": "2",
    "A": "B",
    "first": "second",
    "First": "Second",
    "FIRST": "SECOND",
    "1st": "2nd",
}
OTHER_LABEL |= {other: label for label, other in OTHER_LABEL.items()}
REFERENCES = (LABELLED_PAIR, LABELLED, ORDINAL, VERDICT)

# 2. Words that look like references and are none, in rationales of the generated shapes data and
# about arithmetic.

REFERENCE = "\x00"
"""Replaces a recognised reference in a text."""
HARMLESS = "\x01"
"""Replaces words that are proven to be no reference."""
CELL = r"(?:row \d+ column \d+|(?:top|middle|bottom) (?:left|middle|right)|center)"
DRAWN = rf"(?:{CELL}|(?:word|digit) \w+|[a-z]+)"
NO_NOUN = r"(?! (?:and|or|is|are|was|has|better|worse)\b)"
COUNT = rf"\d+{NO_NOUN} [a-z]+(?:{NO_NOUN} [a-z]+)?"
HARMLESS_FORMS = tuple(
    map(
        re.compile,
        (
            rf"\b(?:draw|write)\({DRAWN}(?:, {DRAWN})*\)",
            rf"\bat (?:the )?{CELL}\b",
            r"\bdigit \d+\b",
            rf"\bdigit (?:{HARMLESS} )?is \d+(?=\.)",
            r"\b\d+ plus \d+ is \d+(?=\.)",
            r"(?:^|(?<=\. ))\d+ is (?:larger|smaller) than \d+(?=\.)",
            rf"\bthere (?:is|are) {COUNT}(?: and {COUNT})?(?=\.)",
            rf"{REFERENCE} says \d+(?=\.)",
            rf"(?<={REFERENCE} is )right(?=[.,;!?]|$)",
            r"\b(?i:both|these|those|the) two (?:responses|answers)\b",
            r"\bnext to\b",
            r"\bin order to\b",
        ),
    )
)
"""Forms of such words. They are replaced one after the other, each in the result of the form
before."""

# 3. Obstacles: words that could be a reference, in a text without references and harmless words.

OBSTACLES = tuple(
    re.compile(pattern, flags)
    for pattern, flags in (
        (r"<\s*+(?:/\s*+)?(?:think|answer)[^>]*+>?", re.IGNORECASE),
        (
            r"\b(?:first|second|third|initial|previous|preced|subsequent|respectiv|alternat)\w*"
            r"|\b(?:former|latter|last|prior|above|below|earlier|later|next|following)\b"
            r"|\b(?:ones?|others?|another|two|left|right|top|bottom|upper|lower)\b"
            r"|\b(?:versus|vs|order|sequence|in turn|alpha|beta)\b"
            r"|\b(?:opening|closing|starting|primary|foremost|penultimate)\b"
            r"|\bfinal (?:answer|candidate|option|model|assistant|output|text|caption|summary)\b",
            re.IGNORECASE,
        ),
        # The number 1 or 2, alone, behind letters ("R1") or before them ("2nd"), but not in 12,
        # 1.5 or 1,000.
        (r"[A-Za-z#(\[]{0,12}(?<!\d)(?<!\d\.)0{0,9}[12](?!\d|\.\d|,\d{3}\b)\w{0,12}", 0),
        (r"\b[AB]\b|\bb\b|\bII\b|\bii\b|[(\[](?:a|i)[)\]]|\b[ai]\)", 0),
        (
            r"\b(?:response|answer|option|choice|candidate|model|assistant|version|output|text"
            r"|caption|description|summary|reply|completion) (?:a|i)\b",
            re.IGNORECASE,
        ),
        # Another script, an arrow, a digit in a circle.
        (r"[^\x00-\x7f\u00a0“”‘’–—…•·°×÷±≈≤≥≠−]", 0),
    )
)
RESPONSE = re.compile(r"(?:\b(?P<before>\w+)\s+)?\bresponses?\b", re.IGNORECASE)
HARMLESS_BEFORE_RESPONSE = {
    *("this", "that", "these", "those", "the", "a", "both", "all", "each", "every"),
    *("either", "neither", "no", "any", "better", "best"),
}
"""Words with which "response" refers back to what the text named before, or to no response by
order."""
QUOTED = re.compile(
    r"\"[^\"\n]*\"|“[^”\n]{0,1000}”|‘[^’\n]{0,1000}’|`[^`\n]*`|(?<!\w)'[^'\n]{0,1000}'(?!\w)"
)
SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n")
SCORE = re.compile(
    r"\b(?:score|rating|rate|rated|grade|mark|point)s?\b|\d\s*/\s*\d|\bout of\b", re.I
)
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
CONTEXT_CHARACTERS = 80
"""Number of characters on either side of an obstacle in which its context is looked for."""

# 4. Rationales of the generated shapes data, which describe the responses one after the other.

IN_TURN = re.compile(
    r"((?:[^.]*\. )?)"
    r"(Response ([12]) (?:is (?:right|wrong)|says [^.]*)\. )"
    r"(Response (?!\3)[12] (?:is (?:right|wrong)|says [^.]*)\. )"
    r"((?:[^.]*\. )?Response [12] is better\.)"
)
"""The three forms of a rationale in data/synthetic/wording.py, whole: two sentences in turn, a
fact, the verdict."""
REFERS_BACK = re.compile(
    r"\b(?:it|its|this|that|these|those|they)\b"
    r"|\b(?:too|also|else|instead|likewise|similarly|but|however)\b"
)
"""A sentence with one of these words may refer to the sentence before it, so that the two sentences
do not change places."""


def swapped(rationale: str) -> str | None:
    """Return `rationale` rewritten for the responses in the other order.

    The result is None if the rationale has words that could be unrecognised references to a
    response.

    All references change places: "Response 1" and "Response 2", "the first response" and "the
    second response". In rationales of the generated shapes data, the two sentences that describe
    the responses change places too, so that Response 1 is still described first. In rationales in
    rubric form, the results of each check change places. Rewriting the result again gives the
    original.
    """
    if obstacle(rationale) is not None:
        return None
    rubric = read_rubric(rationale)
    if rubric is not None:
        return write_rubric(_with_exchanged_checks(rubric))
    text = _with_exchanged_references(rationale)
    match = IN_TURN.fullmatch(text)
    if match is None:
        return text
    before, first_sentence, _number, second_sentence, after = match.groups()
    if REFERS_BACK.search(first_sentence) or REFERS_BACK.search(second_sentence):
        return text
    return before + second_sentence + first_sentence + after


def _with_exchanged_references(text: str) -> str:
    """Return a text in which all references to responses change places."""
    for pattern in REFERENCES:
        text = pattern.sub(_exchanged, text)
    return text


def _with_exchanged_checks(rubric: Rubric) -> Rubric:
    """Return a rubric for the responses in the other order."""
    checks: list[Check] = []
    for check in rubric.checks:
        first, second = check.meets
        checks.append(Check((second, first), _with_exchanged_references(check.reason)))
    return Rubric(rubric.criteria, tuple(checks))


def with_chosen_first(rationale: str, winner: int) -> tuple[str, Literal["chosen", "rejected"]]:
    """Return a rationale that calls the chosen response Response 1, if it can be rewritten so.

    The second value names the response that the returned rationale calls Response 1. It is
    "rejected" if the rationale could not be rewritten.

    Args:
        rationale: The rationale as it was written.
        winner: The number that the rationale gives to the chosen response, 1 or 2.
    """
    if winner == 1:
        return rationale, "chosen"
    rewritten = swapped(rationale)
    if rewritten is None:
        return rationale, "rejected"
    return rewritten, "chosen"


def obstacle(rationale: str) -> str | None:
    """Return the first words that keep a rationale from being rewritten by `swapped`.

    `swapped` rewrites it for the other order of the two responses. The result is None if it can.
    """
    return next(_obstacles(rationale), None)


def _obstacles(rationale: str) -> Iterator[str]:
    """Yield everything that keeps a rationale from being rewritten for the other response order.

    The texts are words that could be unrecognised references to a response, with their context, or
    descriptions of other obstacles.
    """
    control = CONTROL.search(rationale)
    if control is not None:
        yield f"the control character {control[0]!r}"
        return
    rubric = read_rubric(rationale)
    if rubric is not None:
        yield from _obstacles_of_rubric(rubric)
        return
    references = _references(rationale)
    if not references:
        yield "no reference to a response that is recognised"
        return
    yield from _obstacles_beside_references(rationale, references)


def _references(text: str) -> list[re.Match[str]]:
    """Return all recognised references to a response in a text."""
    return [match for pattern in REFERENCES for match in pattern.finditer(text)]


def _obstacles_of_rubric(rubric: Rubric) -> Iterator[str]:
    """Yield everything in the criteria and reasons of a rubric that keeps it from being rewritten.

    Numbers and results of checks are no obstacles. A criterion is the same in both orders, so it
    must not refer to a response.
    """
    for criterion in rubric.criteria:
        references = _references(criterion)
        if references:
            yield f"a criterion that names a response: {references[0][0]}"
        yield from _obstacles_beside_references(criterion, references)
    for check in rubric.checks:
        yield from _obstacles_beside_references(check.reason, _references(check.reason))


def _obstacles_beside_references(rationale: str, references: list[re.Match[str]]) -> Iterator[str]:
    """Yield everything in a text that keeps it from being rewritten, with its recognised references."""
    mixed_references = _mixed_references(references)
    if mixed_references is not None:
        yield mixed_references
    yield from _quoted_references(rationale)

    # Recognised references and harmless words are replaced, so that only other words are searched.
    text = rationale
    for pattern in REFERENCES:
        text = pattern.sub(REFERENCE, text)
    for form in HARMLESS_FORMS:
        text = form.sub(HARMLESS, text)
    for pattern in OBSTACLES:
        for match in pattern.finditer(text):
            yield _with_context(text, match)
    for match in RESPONSE.finditer(text):
        word_before = match["before"] or ""
        if word_before.lower() not in HARMLESS_BEFORE_RESPONSE:
            yield _with_context(text, match)
    for sentence in SENTENCE_END.split(text):
        if _scores_in_order(sentence):
            yield sentence.strip()


def _exchanged(match: re.Match[str]) -> str:
    """Return a matched reference with the label of the other response.

    `match` is a match of one of REFERENCES, whose groups differ.
    """
    groups = match.groupdict()
    if "ordinal" in groups:  # "the first response"
        return f"{groups['the']} {OTHER_LABEL[groups['ordinal']]} {groups['noun']}"
    if "other" in groups:  # "Responses 1 and 2"
        return f"{groups['noun']} {groups['other']}{groups['between']}{groups['label']}"
    # "Response 1"
    return f"{groups['noun']}{groups['gap']}{OTHER_LABEL[groups['label']]}"


def _mixed_references(references: list[re.Match[str]]) -> str | None:
    """Return two references of different kinds, such as "Response 1 and Answer B", or None.

    The result is None if all references have the same noun, and all labels are digits or all are
    letters. If they differ, one of them may be no reference to a response.
    """
    example_by_noun: dict[str, str] = {}
    example_by_kind_of_label: dict[bool, str] = {}
    for match in references:
        # "Better response", "Responses" and "response" have the same noun.
        noun = match["noun"].lower().split()[-1].rstrip("s")
        example_by_noun[noun] = match[0]
        label = match.groupdict().get("label")
        if label is not None:
            example_by_kind_of_label[label.isdigit()] = match[0]
    if len(example_by_noun) > 1:
        return " and ".join(example_by_noun.values())
    if len(example_by_kind_of_label) > 1:
        return " and ".join(example_by_kind_of_label.values())
    return None


def _quoted_references(rationale: str) -> Iterator[str]:
    """Yield each quotation in a rationale that contains a reference such as "Response 1".

    The quotation may come from a response, so that its words must not be changed. If a quotation
    mark is not closed, a message about it is yielded too.
    """
    if rationale.count('"') % 2 or rationale.count("`") % 2:
        yield "a quotation mark that is not closed"
    for quotation in QUOTED.finditer(rationale):
        if any(pattern.search(quotation[0]) for pattern in REFERENCES):
            yield quotation[0]


def _scores_in_order(sentence: str) -> bool:
    """Return True if a sentence may give the scores of Response 1 and Response 2, in this order.

    Such a sentence has numbers and no reference to a response, such as "Scores: 8 and 6.". Changing
    the order of the responses would make it wrong. Recognised references in `sentence` have been
    replaced by REFERENCE.
    """
    has_digits = re.search(r"\d", sentence) is not None
    if REFERENCE in sentence or not has_digits:
        return False
    # Numbers alone, such as "8, 6", or numbers and a word such as "score".
    has_words = re.search(r"[A-Za-z]", sentence) is not None
    return not has_words or SCORE.search(sentence) is not None


def _with_context(text: str, match: re.Match[str]) -> str:
    """Return the matched words with up to two words of `text` on either side, for a message."""
    # Only this part of the text is split, so that the time does not grow with the text.
    start = max(0, match.start() - CONTEXT_CHARACTERS)
    end = match.end() + CONTEXT_CHARACTERS
    words_before = text[start : match.start()].split()[-2:]
    words_after = text[match.end() : end].split()[:2]
    words = " ".join([*words_before, match[0].strip(), *words_after])
    return words.replace(REFERENCE, "[response]").replace(HARMLESS, "[…]")
