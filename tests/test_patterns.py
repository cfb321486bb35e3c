"""Regular expressions that meet a model's or a stranger's text: linear time, and the results of the patterns they replace.

`PATTERNS` has a row for every regular expression of the project, and a test holds it complete.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from mmrm.data import images, markers, prompts, rationales, text_shortcuts
from mmrm.data.errors import RecordError
from mmrm.data.point_prompt import PointPrompt
from mmrm.data.preparation import faults, row_index
from mmrm.data.scanning import contents_between
from mmrm.data.sources import helpsteer2, llava_critic, r1_reward
from mmrm.data.sources.shared import file_source as files
from mmrm.data.storage import strict_json
from mmrm.data.synthetic import wording
from mmrm.eval import verdict_form, verifiers
from mmrm.eval.adapters import slime_reward
from mmrm.eval.benchmarks import mmrb2, vl_rewardbench_scoring
from mmrm.eval.benchmarks import prediction_records as records
from mmrm.eval.contamination import index
from mmrm.eval.judges.points.judge import PromptedPoint
from mmrm.eval.judges.released import templates as released_templates
from mmrm.eval.serving import dialects
from mmrm.models.portable import conversations
from tests.growth import superlinear

CLONE = Path(__file__).resolve().parents[1]
Read = Callable[[str], Any]


@dataclass(frozen=True)
class Pattern:
    """A way to read a text, and texts that are made to slow it down."""

    read: Read
    """What the project does with a text."""
    pieces: Sequence[str]
    """Hostile texts repeat them: what the pattern looks for, and what its repetitions match."""
    released: Read | None = None
    """The pattern as its authors, or this project, released it; None if it is still the same."""
    sound: Sequence[str] = field(default=())
    """Texts that the released pattern matches."""


def finding(pattern: str, flags: int = 0) -> Read:
    return re.compile(pattern, flags).findall


def matching(pattern: re.Pattern[str]) -> Read:
    return pattern.match


def every_obstacle(text: str) -> list[str]:
    """Return all that keeps a rationale from being rewritten, so that every pattern sees the text.

    A rationale without a reference, or with a control character, is not looked at any further.
    """
    readable = text.replace("\0", "~")
    return list(rationales._obstacles(f"Response 1 is better. {readable}"))


def swapped(text: str) -> str | None:
    """Return `rationales.swapped` of a text without the control character that ends hostile texts."""
    return rationales.swapped(text.replace("\0", "~"))


def released_verdict(text: str) -> int | None:
    """cal.py of VL-RewardBench at 9b10abd."""
    pattern = (
        r"(?:Overall Judgment|Therefore)\s*.*\s*-*\s*Answer\s*(\d+)\s*is\s*(?:the\s*)?"
        r"(?:slightly\s*)?better"
    )
    found = re.search(pattern, text.replace("\n", "").replace("*", ""), re.IGNORECASE)
    return int(found.group(1)) if found else None


def released_answer_tag(text: str) -> int | None:
    tag = re.search(r"<answer>(.*?)</answer>", text, re.DOTALL)
    return {"1": 0, "2": 1}.get(tag[1].strip()) if tag else None


def released_better_answer(text: str) -> int | None:
    tags = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    named = set(re.findall(r"Answer ([12]) is better", tags[-1] if tags else text))
    return {"1": 0, "2": 1}[named.pop()] if len(named) == 1 else None


def released_final_answer(text: str) -> str | None:
    tagged = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL | re.IGNORECASE)
    return tagged[-1] if tagged else None


def final_answer_in_tags(text: str) -> str | None:
    tags = verifiers.OPENING_TAG, verifiers.CLOSING_TAG
    found = contents_between(text, *tags)
    assert not found or verifiers.final_answer(text) == found[-1]
    return found[-1] if found else None


NUMBER = verifiers.NUMBER.pattern
RELEASED_LETTER = r"[\s*_$\"'(\[{]*(?:\\text\{)?([A-Z])(?![\w'’])"


def released_fractions(text: str) -> list[tuple[int, str, str]]:
    found = re.finditer(rf"({NUMBER})\s*/\s*({NUMBER})", text)
    return [(one.end(), one[1], one[2]) for one in found]


def fractions(text: str) -> list[tuple[int, str, str]]:
    return [(one.end(), one[1], one[2]) for one in verifiers._fractions(text)]


def released_judgement(text: str) -> prompts.Judgement | None:
    """`mmrm.data.prompts.read_judgement` with the patterns of before; None if it reads nothing."""
    counts = [text.count(tag) for tag in prompts.TAGS]
    tag_like = re.findall(r"<\s*/?\s*(think|answer)\b[^>]*>", text, re.IGNORECASE)
    regular = max(counts) <= 1 and len(tag_like) == sum(counts)
    form = re.fullmatch(r"<think>(.*?)</think><answer>(.*?)</answer>", text, re.DOTALL)
    places = [text.find(tag) for tag in prompts.TAGS]
    in_order = regular and counts[0] == counts[1] and places == sorted(places)
    answered = None
    if in_order and counts[2:] == [1, 1]:
        answered = re.compile(r"<answer>\s*([12])\s*</answer>\s*").fullmatch(text, places[2])
    reasoning = text[places[0] + 7 : places[1]] if in_order and counts[0] else None
    answer: Any = None if answered is None else int(answered[1])
    found = prompts.Judgement(reasoning, answer, regular and form is not None)
    return None if found == prompts.Judgement(None, None, False) else found


def judgement(text: str) -> prompts.Judgement | None:
    found = prompts.read_judgement(text)
    return None if found == prompts.Judgement(None, None, False) else found


def released_conclusion(reasoning: str) -> int | None:
    """`mmrm.data.prompts.conclusion` with the patterns of before."""
    clauses = re.split(r"[.,;:!?\n]+(?=\s|$)|\n", reasoning)
    choices = finding(r"\b(?:response|answer|option)\s*#?\s*([12])\b", re.IGNORECASE)
    for clause in reversed(clauses):
        better, worse = prompts.BETTER.search(clause), prompts.WORSE.search(clause)
        verdict = better or worse
        if verdict is None:
            continue
        named = set(choices(clause[: verdict.start()])) or set(choices(clause[verdict.end() :]))
        if (better and worse) or len(named) != 1 or prompts.OPEN.search(clause):
            return None
        chosen = int(named.pop())
        return chosen if better else 3 - chosen
    return None


def released_turns(prompt: str) -> list[tuple[str, str]]:
    return re.findall(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>\n?", prompt, re.DOTALL)


def adapter_turns(prompt: str) -> list[tuple[str, str]]:
    """Return the turns that the adapters read; their two copies of `turns_of` are equal."""
    if "<|im_start|>" not in prompt:
        return []
    found = []
    for turn in slime_reward.turns_of(prompt):
        found.append((turn["role"], "".join(part.get("text", "") for part in turn["content"])))
    return found


def released_fault(text: str) -> str:
    pattern = (
        r"^[\w.:-]+:\d[\d.]*(?: \([^)]*\))?: |(?<= is )(\w+ ).*?(?=; required)"
        r"|(?<=image )'[^']*'|'[^']*[./\\][^']*'|'[^']{40,}'|\(?/[^\s,]+|\d[\d,.]*"
    )
    return re.sub(pattern, lambda found: found[1] or "", text, flags=re.DOTALL)


def fault(text: str) -> str:
    return faults.VARYING.sub(lambda found: found[1] or "", text)


def refusing(read: Read) -> Read:
    """Return `read`, which returns None where it raises RecordError."""

    def tried(text: str) -> Any:
        try:
            return read(text)
        except RecordError:
            return None

    return tried


def pictures_and_videos_or_refusals(text: str) -> list[Any]:
    """Return what `conversations` makes of a text in the place of an image, and of a video."""
    contents: list[Any] = []
    for read in (conversations.picture, conversations.video_file):
        try:
            contents.append(read(text))
        except conversations.ConversationError:
            contents.append(None)
    return contents


BLANKS = (" ", "\n", "\t \n", "a", "1")
TAGS = ("<answer>", "</answer>", "1", "2", " ", "\n", "<", "/", "Answer 1 is better", "x")
TURNS = ("<|im_start|>", "user", "\n", "<|im_end|>", "assistant", " ", "x", "<|im_start|>user\n")
VISION = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|", "x", "_")
DIGITS = ("1", "12", "123,", ".", "-", "e1")

PATTERNS: dict[str, Pattern] = {
    "mmrm.data.text_shortcuts.LIST_ITEM": Pattern(
        text_shortcuts.LIST_ITEM.findall, ("\n", " ", "\t", "-", "*", "1", "12", ".", ")", "a")
    ),
    "mmrm.data.text_shortcuts.HEADING": Pattern(
        text_shortcuts.HEADING.findall, ("\n", " ", "\t", "#", "a")
    ),
    "mmrm.data.text_shortcuts.BOLD": Pattern(
        text_shortcuts.BOLD.findall, ("**", "__", "*", "_", "a", "\n")
    ),
    "mmrm.data.text_shortcuts.CODE_FENCE": Pattern(
        text_shortcuts.CODE_FENCE.findall, ("\n", " ", "\t", "`", "~", "a")
    ),
    "mmrm.data.text_shortcuts.WORD": Pattern(text_shortcuts.WORD.findall, ("a", "_", "1", " ")),
    "mmrm.data.text_shortcuts.REFUSAL": Pattern(
        text_shortcuts.REFUSAL.findall, ("i ", "i am ", "i can", "as a", " language", "unable to ")
    ),
    "mmrm.eval.benchmarks.vl_rewardbench_scoring.VERDICT": Pattern(
        vl_rewardbench_scoring.named_answer,
        (
            "Therefore",
            "Overall Judgment",
            " ",
            "-",
            "Answer",
            "1",
            "2",
            "is",
            "the ",
            "better",
            "*",
        ),
        released_verdict,
        (
            "Overall Judgment: Answer 1 is better",
            "Therefore, - Answer 2 is the slightly better",
            "THEREFORE Answer 12isbetter",
        ),
    ),
    "mmrm.eval.judges.released.templates.OPENING_TAG": Pattern(
        released_templates.answer_tag,
        TAGS,
        released_answer_tag,
        ("<answer>1</answer>", "<answer> 2\n</answer>"),
    ),
    "mmrm.eval.judges.released.templates.IS_BETTER": Pattern(
        released_templates.answer_is_better,
        (*TAGS, "Answer ", "Answer 2 is better"),
        released_better_answer,
        ("Answer 1 is better", "<answer>Answer 2 is better</answer>"),
    ),
    "mmrm.eval.judges.released.templates.OVERALL": Pattern(
        released_templates.OVERALL.findall,
        ("Overall Judgment", " ", ":", "*", "\n", "Answer ", "1", " is better", "Answer 2"),
        finding(r"Overall Judgment\W*Answer ([12]) is better"),
        ("Overall Judgment: Answer 1 is better", "Overall JudgmentAnswer 2 is better"),
    ),
    "mmrm.eval.judges.released.templates.POSITION": Pattern(
        released_templates.boxed, ("\\boxed{", "}", "1", "2", " ", "x", "Overall Judgment")
    ),
    "mmrm.eval.judges.released.templates.DIGITS": Pattern(
        released_templates.final_score, ("Final Score:", "1", " ", ".", "x")
    ),
    "mmrm.eval.judges.released.templates.SCORE": Pattern(
        released_templates.thinking_score,
        ("\\box{", "\\boxed{", "<answer>", "</answer>", " ", "0.", "1.", "0", "1", "}", "x"),
    ),
    "mmrm.data.prompts.TAG_LIKE": Pattern(
        judgement,
        ("<think>", "</think>", "<answer>", "</answer>", "<", "/", " ", "\n", "think", "1", ">"),
        released_judgement,
        (
            "<think>so</think><answer>1</answer>",
            "<answer> 2 </answer>\n",
            "<think></think><answer>1 or 2</answer>",
        ),
    ),
    "mmrm.data.prompts.CLAUSE": Pattern(
        prompts.conclusion,
        (".", "!?", "\n", " ", "response", "#", "1", "is better", "x"),
        released_conclusion,
        ("Response 1 is better.", "so, answer # 2 is worse!", "better: option\n#1"),
    ),
    "mmrm.data.markers.MARKERS": Pattern(
        markers.MARKERS.findall, ("<image>", "<|", "image", "vision", "_pad", "|>", "<", "x")
    ),
    "mmrm.data.rationales.LABELLED": Pattern(
        swapped,
        ("Response 1", "Answer B", " #", "_", "1", " is right. ", " says 2. ", "x"),
    ),
    "mmrm.data.rationales.OBSTACLES": Pattern(
        every_obstacle,
        ("<", " ", "response", "row 1 column ", "“", "draw("),
    ),
    "mmrm.data.sources.helpsteer2.TURN": Pattern(
        helpsteer2.turns_of_text,
        ("<extra_id_1>", "User", "Assistant", "\n", "<extra_id_1>User\n", "<extra", "x"),
    ),
    "mmrm.data.sources.llava_critic.BRACKETS": Pattern(
        matching(llava_critic.BRACKETS),
        ("Question: [", "]", "\n", " ", "Response 1: [", "Response 2: [", "\nQuestion: [", "x"),
    ),
    "mmrm.data.sources.llava_critic.ARENA": Pattern(
        matching(llava_critic.ARENA),
        (
            "<|User Prompt|>",
            "<|The Start of Assistant A's Answer|>",
            "<|The End of Assistant A's Answer|>",
            "<|The Start of Assistant B's Answer|>",
            "x",
        ),
    ),
    "mmrm.data.sources.llava_critic.LLAVA_BENCH": Pattern(
        matching(llava_critic.LLAVA_BENCH),
        ("[Question]", "[Assistant 1]", "[End of Assistant 1]", "[Assistant 2]", "x", "["),
    ),
    "mmrm.data.sources.llava_critic.BETTER": Pattern(
        llava_critic._winner_in_words,
        ("The better response: ", "[", "first", "1", "x", "equally good", "equally "),
    ),
    "mmrm.data.sources.llava_critic.ARENA_VERDICT": Pattern(
        llava_critic._winner_in_arena, ("[", "[[", "A>B", "]]", "A>>B", "x")
    ),
    "mmrm.data.sources.llava_critic.TWO_SCORES": Pattern(
        matching(llava_critic.TWO_SCORES), (" ", "\n", "1", ".", ",", "1 ", "1.1", "x")
    ),
    "mmrm.data.sources.r1_reward.COMPARISON": Pattern(
        matching(r1_reward.COMPARISON),
        ("[Question]:", "[Response 1]:", "[Response 2]:", "#", " ", "# ", "\n", "x"),
    ),
    "mmrm.data.sources.r1_reward.ANSWER": Pattern(r1_reward.ANSWER.findall, TAGS),
    "mmrm.data.sources.r1_reward.THOUGHT": Pattern(
        matching(r1_reward.THOUGHT), ("<think>", "</think>", "x", "<", " ")
    ),
    "mmrm.data.synthetic.wording.CRITIQUE": Pattern(
        lambda text: wording.CRITIQUE.fullmatch(text.strip()),
        ("right. ", "the response is ", "wrong", ". ", ". the response says ", ".", "x", " "),
        lambda text: re.fullmatch(
            r"(?:the response is )?(right|wrong)\. (.*?)\. the response says (.*)\.",
            text.strip(),
            re.DOTALL,
        ),
        (
            "right. x is y. the response says z.",
            "the response is wrong. a. the response says b. the response says .",
        ),
    ),
    "mmrm.data.preparation.faults.VARYING": Pattern(
        fault,
        (" is ", "int ", "; required", "'", ".", "/", "1", "set:1 ("),
        released_fault,
        ("set:12 (a.png): x is int 3; required", "'a/b' 'x'", "image 'x'"),
    ),
    "mmrm.data.preparation.row_index.LEFT_OVER_MARKER": Pattern(
        row_index.LEFT_OVER_MARKER.search, ("<", "image", ">", "[IMG", "]", "x")
    ),
    "mmrm.data.preparation.row_index.LANGUAGE_MODEL_REFUSAL": Pattern(
        row_index.LANGUAGE_MODEL_REFUSAL.search,
        ("as an AI ", "large ", "language ", "unable to ", "view ", "the ", "image", " "),
    ),
    "mmrm.data.storage.strict_json.SURROGATE": Pattern(
        strict_json.SURROGATE.search, ("\\", "\\u", "\\ud", "d800", "x")
    ),
    "mmrm.eval.verdict_form.ANSWER": Pattern(verdict_form.find_answer, TAGS),
    "mmrm.eval.judges.points.judge.PromptedPoint.read": Pattern(
        PromptedPoint(PointPrompt(opening="Score: ")).read,
        ("Score:", " ", "\n", "1", "10", "a", "."),
    ),
    "mmrm.data.storage.strict_json.STRING": Pattern(
        lambda text: strict_json.count_values(text.encode()), ('"', "\\", "x", ",", '\\"', "[")
    ),
    "mmrm.data.storage.strict_json.BLANKS": Pattern(matching(strict_json.BLANKS), BLANKS),
    "mmrm.data.sources.shared.file_source.SHARD": Pattern(
        matching(files.SHARD), ("-", "1", "-1", "-of-", "-1-of-1", "x", ".")
    ),
    "mmrm.data.images.from_data_uri": Pattern(
        refusing(lambda text: images.from_data_uri(text, "record")),
        ("data:image/", "x", ";", ";base64", ";base64,", "=", "AAAA", "!"),
    ),
    "mmrm.data.images.from_video_uri": Pattern(
        refusing(lambda text: images.from_video_uri(text, "record")),
        ("data:video/", "data:application/octet-stream", "x", ";", ";base64,", "=", "AAAA", "!"),
    ),
    "mmrm.models.portable.conversations._content_or_path": Pattern(
        pictures_and_videos_or_refusals,
        ("data:image/", "data:video/", "x", ";", ";base64,", "=", "AAAA", "!", "http"),
    ),
    "mmrm.eval.adapters.slime_reward.TURN": Pattern(
        adapter_turns,
        TURNS,
        released_turns,
        ("<|im_start|>user\nx<|im_end|>\n", "<|im_start|>system\n\n<|im_end|>"),
    ),
    "mmrm.eval.adapters.slime_reward.IMAGE": Pattern(slime_reward.IMAGE.split, VISION),
    "mmrm.eval.adapters.slime_reward.STOP_TOKEN": Pattern(
        lambda text: slime_reward.STOP_TOKEN.sub("", text),
        ("<|im_end|>", " ", "\n", "x", "<|"),
    ),
    "mmrm.eval.adapters.openrlhf_reward.CONTROL": Pattern(
        lambda text: re.sub(r"<\|\w+\|>", "", text), ("<|", "x", "|>", "<|x", "|")
    ),
    "mmrm.eval.benchmarks.mmrb2.PLACEHOLDER": Pattern(
        mmrb2.PLACEHOLDER.split, ("<image_", "1", ">", "<image_1>", "<image_1")
    ),
    "mmrm.eval.benchmarks.prediction_records.IDENTITY": Pattern(
        records.IDENTITY.fullmatch, ("a", ":", "1", " (", ")", "a:1 (", "x")
    ),
    "mmrm.eval.benchmarks.vl_rewardbench_scoring.dataset": Pattern(
        vl_rewardbench_scoring.dataset, ("_", "-", "a")
    ),
    "mmrm.eval.contamination.index.WORD": Pattern(
        index.words, ("a", " ", "_", "猫", "<image>", "<", ".")
    ),
    "mmrm.eval.serving.dialects.FINISHED_TURN": Pattern(
        refusing(dialects.parse_chatml), (*TURNS, "<|endoftext|>")
    ),
    "mmrm.eval.serving.dialects.MEDIUM_TOKENS": Pattern(
        dialects._parts_of_turn, (*VISION, "<|video_pad|>")
    ),
    "mmrm.eval.serving.dialects.FOREIGN_MARKER": Pattern(
        dialects.FOREIGN_MARKER.search, ("<|", "x", "|>", "[INST", "]", "<start", "_of_turn")
    ),
    "mmrm.eval.serving.dialects.END_TOKENS_AND_BLANKS": Pattern(
        refusing(dialects._without_end), ("<|im_end|>", "<|endoftext|>", " ", "\n", "x", "<|")
    ),
    "mmrm.eval.verifiers.OPENING_TAG": Pattern(
        final_answer_in_tags,
        (*TAGS, "<ANSWER>", "</an\u017fwer>", "\\boxed{", "}"),
        released_final_answer,
        ("<Answer>7</ANSWER>", "<answer></answer>", "<answer>a</answer>"),
    ),
    "mmrm.eval.verifiers.STATED_CHOICE": Pattern(
        verifiers.STATED_CHOICE.findall,
        (
            "answer",
            "option",
            " ",
            "*",
            "is",
            ":",
            "=",
            "choice",
            "(",
            "[",
            "\\text{",
            "B",
            "_",
            "x",
        ),
        finding(
            r"(?i:\b(?:answer|option|choice)\b\**\s*(?:is|:|=)?\**\s*(?:(?:option|choice)\b)?)"
            + RELEASED_LETTER
        ),
        ("the answer is (B)", "Answer: **C**", "option D", "choice is option \\text{A}"),
    ),
    "mmrm.eval.verifiers.LETTER_ALONE": Pattern(
        matching(verifiers.LETTER_ALONE),
        ("B", " ", "*", "_", "(", ")", ".", "\\text{", "}", "x", "'"),
        matching(re.compile(rf"{RELEASED_LETTER}[\s*_$\"'.:)\]}}]*$")),
        ("B", "(C).", " **D**"),
    ),
    "mmrm.eval.verifiers.LETTER_LABEL": Pattern(
        matching(verifiers.LETTER_LABEL),
        ("B", " ", "*", "(", ")", ".", ":", "[", "x"),
        matching(re.compile(r"[\s*(\[]*([A-Z])\**[.:)\]]")),
        ("B. Paris", "(C) x", "**D**: y"),
    ),
    "mmrm.eval.verifiers.NUMBER": Pattern(verifiers.NUMBER.findall, DIGITS),
    "mmrm.eval.verifiers.FRACTION": Pattern(
        fractions,
        (*DIGITS, ",", "/", " ", "+"),
        released_fractions,
        ("3/4", "1,234.5 / -6e7", "12 /\n3", "/"),
    ),
    "mmrm.eval.verifiers.LATEX_FRACTION": Pattern(
        lambda text: verifiers.LATEX_FRACTION.sub("", text),
        ("\\frac", "{", "}", " ", "1", "\\dfrac{1}", "\\"),
    ),
}
"""Patterns that meet a text of a model, of a record, of a client or of a file made elsewhere."""

COVERED = {
    "mmrm.data.rationales.LABELLED_PAIR": "mmrm.data.rationales.LABELLED",
    "mmrm.data.rationales.VERDICT": "mmrm.data.rationales.LABELLED",
    "mmrm.data.rationales.ORDINAL": "mmrm.data.rationales.LABELLED",
    "mmrm.data.rationales.IN_TURN": "mmrm.data.rationales.LABELLED",
    "mmrm.data.rationales.REFERS_BACK": "mmrm.data.rationales.LABELLED",
    "mmrm.data.rationales.HARMLESS_FORMS": "mmrm.data.rationales.OBSTACLES",
    "mmrm.data.rationales.RESPONSE": "mmrm.data.rationales.OBSTACLES",
    "mmrm.data.rationales.QUOTED": "mmrm.data.rationales.OBSTACLES",
    "mmrm.data.rationales.SENTENCE_END": "mmrm.data.rationales.OBSTACLES",
    "mmrm.data.rationales.SCORE": "mmrm.data.rationales.OBSTACLES",
    "mmrm.data.rationales.CONTROL": "mmrm.data.rationales.OBSTACLES",
    "mmrm.data.rationales._scores_in_order": "mmrm.data.rationales.OBSTACLES",
    "mmrm.data.prompts.FORM": "mmrm.data.prompts.TAG_LIKE",
    "mmrm.data.prompts.ANSWERED": "mmrm.data.prompts.TAG_LIKE",
    "mmrm.data.prompts.CHOICE": "mmrm.data.prompts.CLAUSE",
    "mmrm.data.prompts.BETTER": "mmrm.data.prompts.CLAUSE",
    "mmrm.data.prompts.WORSE": "mmrm.data.prompts.CLAUSE",
    "mmrm.data.prompts.OPEN": "mmrm.data.prompts.CLAUSE",
    "mmrm.data.sources.llava_critic.EQUALLY_GOOD": "mmrm.data.sources.llava_critic.BETTER",
    "mmrm.eval.adapters.openrlhf_reward.TURN": "mmrm.eval.adapters.slime_reward.TURN",
    "mmrm.eval.adapters.openrlhf_reward.IMAGE": "mmrm.eval.adapters.slime_reward.IMAGE",
    "mmrm.eval.benchmarks.vl_rewardbench_scoring.CONCLUSION": (
        "mmrm.eval.benchmarks.vl_rewardbench_scoring.VERDICT"
    ),
    "mmrm.eval.judges.released.templates.CLOSING_TAG": "mmrm.eval.judges.released.templates.OPENING_TAG",
    "mmrm.eval.serving.dialects.LEADING_PADDING": "mmrm.eval.serving.dialects.FINISHED_TURN",
    "mmrm.eval.serving.dialects.END_TOKEN": "mmrm.eval.serving.dialects.END_TOKENS_AND_BLANKS",
    "mmrm.eval.verifiers.CLOSING_TAG": "mmrm.eval.verifiers.OPENING_TAG",
    "mmrm.eval.verifiers.TEXT_WITHOUT_FRACTION": "mmrm.eval.verifiers.FRACTION",
}
"""Patterns that the reader of another row calls."""

OWN_TEXTS = {
    "mmrm.data.preparation.decisions.KEY": "a fixed number of digits, in a file of decisions",
    "mmrm.train.supervised.load_balancing.RouterWatch.__init__": "names of a model's modules",
    "mmrm.eval.adapters.ms_swift_reward.RewardServer._error": "the address that a user configured",
    "mmrm.eval.adapters.ms_swift_reward.check_address": "the address that a user configured",
    "mmrm.eval.adapters.openrlhf_reward.RewardServer._error": "the address that a user configured",
    "mmrm.eval.adapters.openrlhf_reward.check_address": "the address that a user configured",
    "mmrm.eval.adapters.reward_client.RewardServer._error": "the address that a user configured",
    "mmrm.eval.adapters.reward_client.check_address": "the address that a user configured",
    "mmrm.eval.adapters.slime_reward.RewardServer._error": "the address that a user configured",
    "mmrm.eval.adapters.slime_reward.check_address": "the address that a user configured",
    "mmrm.eval.adapters.trl_reward.RewardServer._error": "the address that a user configured",
    "mmrm.eval.adapters.trl_reward.check_address": "the address that a user configured",
    "mmrm.eval.adapters.unirl_reward.RewardServer._error": "the address that a user configured",
    "mmrm.eval.adapters.unirl_reward.check_address": "the address that a user configured",
    "mmrm.eval.adapters.verl_omni_reward.RewardServer._error": "the address that a user configured",
    "mmrm.eval.adapters.verl_omni_reward.check_address": "the address that a user configured",
    "mmrm.eval.adapters.verl_reward.RewardServer._error": "the address that a user configured",
    "mmrm.eval.adapters.verl_reward.check_address": "the address that a user configured",
    "mmrm.data.display.command_parser.STARTED_BY": "the help texts of this project",
    "mmrm.train.methods.critic.own_critiques.CONTENT_KEY": "keys of a file that the run itself wrote",
    "mmrm.data.config.layers.NOT_TEXT": "a recipe's value",
    "mmrm.data.config.validation._requirement": "a message of pydantic about a recipe",
    "mmrm.data.errors.URL": "a recipe's value",
    "mmrm.data.preparation.filters.read_fingerprints": "16 digits of a file that overlap.py wrote",
    "mmrm.data.preparation.inspection._recipe": "a file's name",
    "mmrm.data.preparation.recognition.in_yaml": "a path on the command line",
    "mmrm.data.prompts.filled": "a template of this project",
    "mmrm.data.sources.shared.file_source.FilesConfig._matching_files": "fnmatch's own patterns on file names",
    "mmrm.eval.cli.SETTING_SEPARATOR": "the command line",
    "mmrm.eval.reporting.run_content.LOGGED": "names in a log of this project",
    "mmrm.eval.reporting.run_charts.EVALUATED": "names in a log of this project",
    "mmrm.eval.results.official_scores.NUMBERED": "an id, matched from its beginning",
    "mmrm.eval.results.result_store.STEP": "a folder's name",
    "mmrm.models.config.HUB_ID": "at most 193 characters of a recipe",
    "mmrm.train.studies.ablation.variants.NAME": "a variant's name in a recipe",
    "mmrm.train.reinforce.policy.term_config.FormatTerm._compiles": "a pattern of the recipe, which is only compiled",
    "mmrm.train.reference.pages.table": "documentation",
    "mmrm.train.recipe.rules.model_rules": "a recipe's system prompt",
    "mmrm.train.reinforce.policy.reward_terms.FormatReward.__call__": "the recipe's own pattern: its author's choice",
    "mmrm.train.checkpoints.rotation.NAME": "a folder's name",
    "mmrm.train.checkpoints.integrity.RANK_IN_NAME": "a file's name",
    "mmrm.train.checkpoints.universal.STATES_OF_RANK": "a file's name",
}
"""Patterns that meet no such text, with what they do meet."""


def hostile_texts(pieces: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yield (prefix, repeated, suffix): runs of each piece behind each other one, and runs of each two.

    The suffix is a character that no pattern matches, so that a run is read to its end in vain.
    """
    for prefix, repeated in product(("", *pieces), pieces):
        yield prefix, repeated, "\0"
    for first, second in product(pieces, pieces):
        if first != second:
            yield "", first + second, "\0"


def slow_reading(read: Read, prefix: str, repeated: str, suffix: str) -> str | None:
    """Return a message on the time to read a hostile text if it grows faster than the text, or None."""

    def text_of(length: int) -> str:
        return prefix + repeated * (length // len(repeated)) + suffix

    return superlinear(read, text_of)


@pytest.mark.slow
@pytest.mark.parametrize("name", PATTERNS)
def test_time_grows_no_faster_than_the_text(name: str) -> None:
    pattern = PATTERNS[name]
    for prefix, repeated, suffix in hostile_texts(pattern.pieces):
        slow = slow_reading(pattern.read, prefix, repeated, suffix)
        assert slow is None, slow


@pytest.mark.slow
@pytest.mark.parametrize(
    "slow",
    [
        finding(r"<answer>(.*?)</answer>"),
        finding(r"\w+(?=!)"),
    ],
)
def test_a_slow_pattern_would_be_found(slow: Read) -> None:
    pieces = ("<answer>", "x")
    assert any(slow_reading(slow, *text) for text in hostile_texts(pieces))


def drawn_text(draw: random.Random, pattern: Pattern) -> str:
    """Return a text that the pattern matches, with a piece put into it, among other pieces, or neither."""
    sound = draw.choice(pattern.sound)
    if draw.random() < 0.3:
        cut = draw.randint(0, len(sound))
        num_removed = draw.randint(0, 2)
        sound = sound[:cut] + draw.choice(pattern.pieces) + sound[cut + num_removed :]
    if draw.random() < 0.5:
        return sound
    before = draw.choices(pattern.pieces, k=draw.randint(0, 5))
    after = draw.choices(pattern.pieces, k=draw.randint(0, 5))
    middle = [sound] if draw.random() < 0.7 else []
    return "".join([*before, *middle, *after])


def comparable(result: Any) -> Any:
    """Return what two readings are compared by: matches are compared by their groups."""
    return (result.span(), result.groups()) if isinstance(result, re.Match) else result


REPLACED = [name for name, pattern in PATTERNS.items() if pattern.released is not None]


@pytest.mark.parametrize("name", REPLACED)
def test_results_are_those_of_the_released_pattern(name: str) -> None:
    pattern = PATTERNS[name]
    assert pattern.released is not None
    draw = random.Random(name)
    num_matches = 0
    for _ in range(10_000):
        text = drawn_text(draw, pattern)
        expected = comparable(pattern.released(text))
        result = comparable(pattern.read(text))
        assert result == expected, text
        num_matches += expected not in (None, [], text)
    assert num_matches >= 10_000 / 3


CALLS = ("compile", "search", "match", "fullmatch", "split", "findall", "finditer", "sub", "subn")


def expressions_in(tree: ast.Module) -> Iterator[str]:
    """Yield the name or the function for which each function of `re` is called in a module."""

    def visit(node: ast.AST, names: tuple[str, ...]) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            inside = names
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inside = (*names, child.name)
            if isinstance(child, ast.Assign) and not names:
                inside = tuple(ast.unparse(target) for target in child.targets)
            if isinstance(child, ast.Attribute) and child.attr in CALLS:
                module = child.value
                if isinstance(module, ast.Name) and module.id == "re":
                    yield ".".join(inside)
            yield from visit(child, inside)

    yield from visit(tree, ())


def test_every_regular_expression_is_listed() -> None:
    found = set()
    for floor in ("data", "models", "eval", "train"):
        for path in (CLONE / floor).rglob("*.py"):
            module = ".".join(("mmrm", *path.relative_to(CLONE).with_suffix("").parts))
            tree = ast.parse(path.read_text(encoding="utf-8"))
            found |= {f"{module}.{name}" for name in expressions_in(tree)}
    listed = PATTERNS.keys() | COVERED.keys() | OWN_TEXTS.keys()
    assert found - listed == set(), "add a row to PATTERNS, COVERED or OWN_TEXTS"
    assert listed - found == set(), "these are no longer in the project"
    assert set(COVERED.values()) <= PATTERNS.keys()
