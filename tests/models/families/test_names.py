"""Outside the rooms that may, no code knows a family of backbones by its name or by its tokens; prose may name one."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from mmrm.models.families.registry import FAMILIES, REFUSED
from tests.test_structure import CLONE, MODULES

MARKERS = {"<img>", "<video>"}
"""Tokens that data sets write too, for the place of an image."""
WORDS = {"<|image|>", "<|video|>"}
"""Tokens that without their marks are words of ordinary code."""
TOKENS = {
    token if token in WORDS or "|" not in token else token.strip("<|>")
    for family in FAMILIES.values()
    for token in family.vision_text
} - MARKERS
NAMES = {*FAMILIES, *REFUSED, "qwen", "im_start", "im_end", "endoftext"} | TOKENS
NAMED = re.compile(
    "|".join(re.escape(name).replace("_", "_?") for name in sorted(NAMES)), re.IGNORECASE
)
"""A class spells `qwen2_5_vl` as `Qwen2_5_VL`, and `qwen2_vl` as `Qwen2VL`."""
MAY = (
    "models/families/",
    "models/portable/",
    "models/build_embedded.py",
    "eval/serving/",
    "eval/adapters/",
)
"""The families themselves, the classes that travel with checkpoints, the embedded checkpoint's builder, vLLM's classes and
what other people's programs write."""
KNOWN = {
    "data/markers.py": {"image_soft_token|start_of_image|end_of_image"},
    "data/images.py": {" high, and Qwen2.5-VL takes at most "},
    "data/preference.py": {
        "im_start",
        "im_end",
        "endoftext",
        "vision_start",
        "vision_end",
        "image_pad",
    },
    "data/video.py": {"video_pad"},
    "eval/benchmarks/vl_rewardbench_scoring.py": {"UnifiedReward's qwen script"},
    "eval/judges/released/config.py": {
        "unified_reward_qwen3vl",
        "unified_reward_think_qwen3vl",
        "unified_reward_qwen35",
        "Qwen/Qwen2-VL-7B-Instruct",
        "Qwen/Qwen2.5-VL-7B-Instruct",
    },
    "eval/judges/released/models.py": {
        "qwen2_vl",
        "qwen2_5_vl",
        "qwen3_vl",
        "qwen3_5",
        "unified_reward_qwen35",
        "QWEN2_5",
        "QWEN3VL",
        "reward_qwen3vl",
        "think_qwen3vl",
    },
    "eval/judges/released/templates.py": {"UNIFIED_REWARD_THINK_QWEN3VL"},
    "train/reinforce/stable_reinforce/judgement_term_config.py": {"Qwen/Qwen2.5-VL-7B-Instruct"},
    "train/studies/speed/workload.py": {
        "Qwen/Qwen2.5-VL-3B-Instruct",
        "Qwen/Qwen2.5-VL-7B-Instruct",
    },
}
"""Hub ids of defaults; the shapes that speed is measured on; a published script; the reward models that others released, each on
its family; and the data floor, which has no tokenizer: it sieves records and images by what is common, and the encoder by the
tokenizer's own."""


def named(text: str) -> set[str]:
    """Return the strings and names of a module's code that name a family; docstrings and comments are prose."""
    tree = ast.parse(text)
    prose = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            found.add(node.value)
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.alias):
            found.add(node.name)
        elif isinstance(node, ast.keyword | ast.arg) and node.arg:
            found.add(node.arg)
    return {one for one in found if NAMED.search(one)}


@pytest.mark.parametrize(
    "path",
    [path for path in MODULES.values() if not str(path.relative_to(CLONE)).startswith(MAY)],
    ids=lambda path: str(path.relative_to(CLONE)),
)
def test_no_other_code_names_a_family(path: Path) -> None:
    known = KNOWN.get(str(path.relative_to(CLONE)), set())
    names = named(path.read_text(encoding="utf-8"))
    assert not {name for name in names if not any(allowed in name for allowed in known)}


def test_nothing_is_allowed_that_is_not_there() -> None:
    for name, known in KNOWN.items():
        found = named((CLONE / name).read_text(encoding="utf-8"))
        assert not {allowed for allowed in known if not any(allowed in one for one in found)}, name


def test_a_name_would_be_found_and_prose_is_let_pass() -> None:
    code = '"""Of Qwen3-VL."""\nfrom transformers import Qwen2VLModel\nend = "<|im_end|>"\nx.image_pad = kind == "qwen3_vl"\n'
    assert named(code) == {"Qwen2VLModel", "<|im_end|>", "image_pad", "qwen3_vl"}
