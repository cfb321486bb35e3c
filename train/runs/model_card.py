"""The model card of a checkpoint: what it is, its figures, how to load it, and what made it.

The scale of its scores, by which others normalise, goes into its config.json. The best checkpoint
goes to the Hugging Face hub with its card.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from ruamel.yaml import YAML

from mmrm.data.preference import Response, text
from mmrm.data.preparation.mixing import Mixture
from mmrm.data.prompts import judge_conversation
from mmrm.data.storage.files import write_whole
from mmrm.eval.judges.judge_card import judge_card
from mmrm.eval.judges.judging_config import JudgingConfig
from mmrm.eval.results.predictions import predictions_in, read_predictions
from mmrm.eval.results.result import Result
from mmrm.eval.results.run_folder import CARD as JUDGE_CARD
from mmrm.eval.results.run_folder import HELD_OUT
from mmrm.eval.results.summary_table import (
    accuracy_cells,
    order_sentence,
    soft_sentence,
    uncertainty_cells,
)
from mmrm.train.checkpoints.rotation import chosen_checkpoint
from mmrm.train.recipe.recipe import Recipe
from mmrm.train.runs.provenance import (
    DataFingerprints,
    data_fingerprints,
    data_licences,
    recipe_yaml,
    versions,
)

CARD = "README.md"
UNKNOWN_LICENCE = "not recorded"
"""Stands for the licence of a source in runs of versions that did not record it."""

SCALE = """\
Offset and scale of the scores are this checkpoint's own: mean {mean:.4f}, standard deviation {std:.4f} over {n:,} scores of
{source}. `config.json` holds them as `reference_scores`. Rewards that are added to others, clipped or squashed are to be
normalised first, to (score - mean) / std: OpenRLHF's `normalize_reward` finds `mean` and `std` in `config.json`; vLLM takes
`--pooler-config '{{"logit_mean": {mean:.4f}, "logit_sigma": {std:.4f}}}'`; in trl it is a line of the reward function."""

STATED_DEVIATIONS = """\
The checkpoint states a standard deviation with each score. P(better) is the probability that follows from both deviations for
the response with the higher score, Φ(|difference| / √(std₁² + std₂²)). Of true scores, 68.3 % should be within one deviation
and 95.4 % within two. Intervals are at 95 %, and that of the difference at 97.5 %."""

JUDGE_PROMPT = """\
It compares two responses when it is asked so, by the chat template and with `add_generation_prompt` (transformers, or as the
messages of a chat completion); where there is no image, its part is left out, where there are several, it is repeated:

```json
{messages}
```

It writes up to {max_new_tokens} tokens and ends with `<answer>1</answer>` or `<answer>2</answer>`, the better response. Ask in
both orders: what it says in one order alone may follow the order."""

ADAPTER_USE = """\
This folder holds adapters (and the reward head, if there is one), not the weights under them. In a clone of the project,
`python train/merge.py CHECKPOINT FOLDER` writes them and their base as one ordinary checkpoint, and
`python eval/run.py CHECKPOINT` evaluates them as they are."""


@dataclass(frozen=True, slots=True)
class RunOrigin:
    """The data that a run was trained on, with their licences, and the versions of the software."""

    data: DataFingerprints
    licences: Mapping[str, str]
    """The licence of every source, by the source's name."""
    versions: Mapping[str, str]
    """The versions of this project and of the libraries that compute, by name."""

    @staticmethod
    def of_mixture(mixture: Mixture) -> RunOrigin:
        """Return the origin of a run on `mixture` in this process."""
        return RunOrigin(data_fingerprints(mixture), data_licences(mixture), versions())


def write_cards(recipe: Recipe, origin: RunOrigin, checkpoint: Path, step: str) -> None:
    """Write the model card of a checkpoint and its judge card.

    The figures are those that were found just before it was saved. The scale of its scores goes
    into its config.json too. Adapters have no config.json, and get it when they are merged.
    """
    reference = None
    if recipe.has_head:
        reference = reference_scores(checkpoint)
        if (checkpoint / "config.json").is_file():
            write_reference(checkpoint, reference)
    card = model_card(recipe, origin, step, read_results(checkpoint), reference)
    write_whole(checkpoint / CARD, card)
    method = recipe.method
    own_judge_card = judge_card(
        recipe.resolved(),
        method.judge_type,
        method.written_critiques,
        method.joint_responses(recipe),
        method.point_prompt,
    )
    write_whole(checkpoint / JUDGE_CARD, own_judge_card.model_dump_json(indent=1))


def reference_scores(checkpoint: Path) -> dict[str, Any] | None:
    """Return mean, standard deviation and number of a checkpoint's scores, and their source.

    They are the scores of the evaluation at this save: those of held-out records, which are like
    the training records, or without them those of all benchmarks. Without an evaluation they are the scores of the last
    training records, as logged. None is returned if there are no scores, or all are equal.
    """
    files = predictions_in(checkpoint / "eval")
    names = [HELD_OUT] if HELD_OUT in files else list(files)
    scores: list[float] = []
    for name in names:
        for row in read_predictions(files[name]):
            scores += [score for score in row["scores"] or () if score is not None]
    if scores:
        mean = fmean(scores)
        std = pstdev(scores)
        num_scores = len(scores)
        source = f"{', '.join(names)} at this save"
    else:
        line = last_logged_rewards(checkpoint / "trainer_state.json")
        if line is None:
            return None
        mean = line["reward_mean"]
        std = line["reward_spread"]
        num_scores = int(line["num_rewards"])
        source = f"training records up to step {line['step']}"
    if not std:
        return None
    return {"mean": mean, "std": std, "n": num_scores, "source": source}


def last_logged_rewards(state: Path) -> dict[str, Any] | None:
    """Return the last line of a log that has figures of rewards, None if there is none."""
    if not state.is_file():
        return None
    log = json.loads(state.read_text(encoding="utf-8"))["log_history"]
    with_rewards: list[dict[str, Any]] = [line for line in log if line.get("num_rewards")]
    return with_rewards[-1] if with_rewards else None


def write_reference(folder: Path, reference: Mapping[str, Any] | None) -> None:
    """Write the scale of a model's scores into its config.json.

    It replaces a scale that came with the backbone. `mean` and `std` are also at the top, because
    OpenRLHF writes and reads them there.
    """
    file = folder / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    for name in ("mean", "std"):
        config.pop(name, None)
    config["reference_scores"] = reference
    if reference is not None:
        config["mean"] = reference["mean"]
        config["std"] = reference["std"]
    write_whole(file, json.dumps(config, indent=2, ensure_ascii=False) + "\n")


def about_head(recipe: Recipe) -> list[str]:
    """Return the paragraph on the numbers that the reward head computes; empty without a head."""
    if not recipe.has_head:
        return []
    text = f"For each response, its reward head computes {recipe.head.summary}."
    if len(recipe.head.columns) > 1:
        text += (
            " `model.score` returns the one number by which responses are ranked, and "
            f"`model.score_columns` all of them by name: {', '.join(recipe.head.columns)}."
        )
    return [text]


def model_card(
    recipe: Recipe,
    origin: RunOrigin,
    step: str,
    results: Mapping[str, Result],
    reference: Mapping[str, Any] | None = None,
    *,
    merged: bool = False,
) -> str:
    """Return the card of a checkpoint, in Markdown with the hub's metadata.

    Args:
        recipe: The recipe of the run.
        origin: The data and the versions of the run.
        step: The step for the title, such as `5 of 20`.
        results: The results by benchmark.
        reference: The scale of the scores. None if there is none.
        merged: True if adapters were merged into their base, so that the checkpoint is whole.
    """
    has_adapters = recipe.optim.lora is not None and not merged
    sources = ["| source | rows | licence | fingerprint |", "|---|---|---|---|"]
    for name, source in origin.data.items():
        licence = origin.licences.get(name, UNKNOWN_LICENCE)
        sources.append(f"| {name} | {source['rows']:,} | {licence} | {source['fingerprint']} |")
    version_lines = ["| | version |", "|---|---|"]
    version_lines += [f"| {name} | {version} |" for name, version in origin.versions.items()]
    parts = [
        metadata(recipe, origin, has_adapters=has_adapters),
        f"# {Path(recipe.output.folder).name}, step {step}",
        f"Trained from {recipe.backbone.path}; {recipe.method.summary}.",
        *about_head(recipe),
        "## Figures",
        *figures(results),
        "## Use",
        *use(recipe, has_adapters=has_adapters),
    ]
    if reference:
        parts.append(SCALE.format(**reference))
    parts += ["## Data", "\n".join(sources)]
    parts += ["## Versions", "\n".join(version_lines)]
    parts += ["## Recipe", f"```yaml\n{recipe_yaml(recipe)}```"]
    return "\n\n".join(parts) + "\n"


def metadata(recipe: Recipe, origin: RunOrigin, *, has_adapters: bool) -> str:
    """Return the block of YAML that the hub reads.

    It names the base only if the hub knows it. `data_licences` has the licence of every source. The
    hub's own key `license` is left to whoever publishes the model.
    """
    library = "peft" if has_adapters else "transformers"
    values: dict[str, Any] = {"library_name": library}
    path = recipe.backbone.path
    if "/" in path and not Path(path).expanduser().exists():
        values["base_model"] = path
    values["tags"] = ["reward-model", "vision-language"]
    values["data_licences"] = {
        name: origin.licences.get(name, UNKNOWN_LICENCE) for name in origin.data
    }
    yaml = YAML(typ="safe", pure=True)
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    text = StringIO()
    yaml.dump(values, text)
    return f"---\n{text.getvalue()}---"


def read_results(checkpoint: Path) -> dict[str, Result]:
    """Return a checkpoint's results by benchmark; empty if it was not evaluated."""
    return {
        path.stem: Result.model_validate_json(path.read_text("utf-8"))
        for path in sorted(checkpoint.glob("eval/*.json"))
    }


def figures(results: Mapping[str, Result]) -> list[str]:
    """Return a table of all benchmarks and groups, with notes on how the figures were computed."""
    if not results:
        return ["No benchmark was evaluated at this step."]
    lines = [
        "| benchmark | accuracy in % [95 % interval] | n | ties | ties half | unparsable |",
        f"|{'---|' * 6}",
    ]
    notes = []
    for result in results.values():
        accuracy_by_name = {f"**{result.benchmark}**": result.micro, **result.groups}
        for name, accuracy in accuracy_by_name.items():
            lines.append(f"| {name} | {' | '.join(accuracy_cells(accuracy))} |")
        conditions = "; ".join((result.description, *result.notes, *_sentences(result)))
        notes.append(f"- {result.benchmark} ({result.origin}): {conditions}")
    return ["\n".join(lines), "\n".join(notes), *uncertainty_figures(results)]


def _sentences(result: Result) -> list[str]:
    """Return sentences on the agreement of both orders, and on soft verdicts."""
    sentences = []
    if result.soft is not None:
        sentences.append(soft_sentence(result.soft))
    if result.votes is not None:
        sentences.append(order_sentence(result.votes))
    return [sentence for sentence in sentences if sentence]


def uncertainty_figures(results: Mapping[str, Result]) -> list[str]:
    """Return a table on the standard deviations that the checkpoint states with its scores.

    The list is empty if the checkpoint states none.
    """
    lines: list[str] = []
    for result in results.values():
        if result.uncertainty is not None:
            cells = " | ".join(uncertainty_cells(result.uncertainty))
            lines.append(f"| {result.benchmark} | {cells} |")
    if not lines:
        return []
    heads = [
        "| benchmark | pairs | stated deviations | P(better) − accuracy in points "
        "| calibration error | within 1 deviation in % | within 2 deviations in % |",
        f"|{'---|' * 7}",
    ]
    return [STATED_DEVIATIONS, "\n".join([*heads, *lines])]


def use(recipe: Recipe, *, has_adapters: bool) -> list[str]:
    """Return the section of the card on loading the checkpoint, with the exact prompt of a judge."""
    loading = ADAPTER_USE if has_adapters else recipe.method.usage
    template = recipe.method.judge_template
    if template is None:
        return [loading]
    turns = judge_conversation(
        template,
        [text("user", "{the question}", 1)],
        Response.of_text("{the first response}"),
        Response.of_text("{the second response}"),
    )
    if recipe.backbone.system_prompt is not None:
        turns = (text("system", recipe.backbone.system_prompt), *turns)
    messages = json.dumps(turns, indent=1, ensure_ascii=False)
    limit = JudgingConfig.model_fields["max_new_tokens"].default
    return [loading, JUDGE_PROMPT.format(messages=messages, max_new_tokens=f"{limit:,}")]


FOR_RESUME = [
    "global_step*",
    "latest",
    "zero_to_*.py",
    "optimizer.pt",
    "scheduler.pt",
    "rng_state*",
    "training_args.bin",
    "trainer_state.json",
    "complete",
]
"""Files that only a resume needs: most of a checkpoint's bytes, and of no use to others."""


def push(folder: Path, repository: str, hub: Any) -> Path:
    """Upload the best checkpoint of the run in `folder`, and return its folder.

    If no best checkpoint was chosen it is the newest one. `hub` is an HfApi.
    """
    checkpoint = chosen_checkpoint(folder)
    hub.upload_folder(
        repo_id=repository,
        folder_path=checkpoint,
        commit_message=f"{checkpoint.name} of {folder.name}",
        ignore_patterns=FOR_RESUME,
    )
    return checkpoint
