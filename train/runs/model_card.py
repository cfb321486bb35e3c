"""The model card of a checkpoint: what it is, what it scored when it was saved, how to load it, and what made it.

And the scale of its scores, which others normalise by, in its config.json. The best checkpoint goes to the Hugging Face hub
with its card.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from mmrm.data.preference import text
from mmrm.data.prompts import ask
from mmrm.data.storage.files import write_whole
from mmrm.eval.judges.judge_card import judge_card
from mmrm.eval.judges.judging_config import JudgingConfig
from mmrm.eval.results.predictions import predictions_in, read_predictions
from mmrm.eval.results.result import Result
from mmrm.eval.results.run_folder import CARD as JUDGE_CARD
from mmrm.eval.results.run_folder import HELD_OUT
from mmrm.eval.results.summary_table import accuracy_cells
from mmrm.train.checkpoints.rotation import chosen_checkpoint
from mmrm.train.recipe.recipe import Recipe
from mmrm.train.runs.provenance import DataFingerprints, recipe_yaml

CARD = "README.md"

SCALAR_USE = """\
```python
from transformers import AutoModelForSequenceClassification, AutoProcessor

folder = "."  # this folder, or its id on the hub
model = AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=True, dtype="auto")
processor = AutoProcessor.from_pretrained(folder, trust_remote_code=True)


def score(image, question: str, answers: list[str]) -> list[float]:
    asked = [{"type": "image", "image": image}, {"type": "text", "text": question}]  # a PIL image, bytes, a path, a data URI
    return model.score(processor, [{"role": "user", "content": asked}], answers)
```

A score means something beside the score of another answer to the same question: the higher one is the better answer."""

SCALE = """\
Offset and scale of the scores are this checkpoint's own: mean {mean:.4f}, standard deviation {std:.4f} over {n:,} scores of
{source}. `config.json` holds them as `reference_scores`. Rewards that are added to others, clipped or squashed are to be
normalised first, to (score - mean) / std: OpenRLHF's `normalize_reward` finds `mean` and `std` in `config.json`; vLLM takes
`--pooler-config '{{"logit_mean": {mean:.4f}, "logit_sigma": {std:.4f}}}'`; in trl it is a line of the reward function."""

CRITIC_USE = """\
`AutoModelForImageTextToText.from_pretrained(folder, trust_remote_code=True)` loads it: `generate` writes a critique of an
answer, `score` gives the score after one. `decode` makes of what `Image.open` gives the image that it was trained on."""

LANGUAGE_MODEL_USE = """\
`AutoModelForImageTextToText.from_pretrained(folder)` loads it, like any checkpoint of its backbone's family; vLLM serves it."""

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

USE = {
    "naive": SCALAR_USE,
    "critic": CRITIC_USE,
    "language_model": LANGUAGE_MODEL_USE,
    "stable_reinforce": LANGUAGE_MODEL_USE,
    "policy": LANGUAGE_MODEL_USE,
}
"""Method to what a person does with its checkpoint."""


def write_cards(recipe: Recipe, data: DataFingerprints, checkpoint: Path, step: str) -> None:
    """Write the model card of a checkpoint, with the figures that were found just before it was saved, and the judge's.

    The scale of its scores goes into its config.json too; adapters have none, and get it when they are merged.
    """
    reference = reference_scores(checkpoint) if recipe.has_head else None
    if recipe.has_head and (checkpoint / "config.json").is_file():
        write_reference(checkpoint, reference)
    write_whole(
        checkpoint / CARD, model_card(recipe, data, step, read_results(checkpoint), reference)
    )
    write_whole(checkpoint / JUDGE_CARD, judge_card(recipe.resolved()).model_dump_json(indent=1))


def reference_scores(checkpoint: Path) -> dict[str, Any] | None:
    """Return mean, standard deviation and number of a checkpoint's scores, and of what; None where nothing tells scores apart.

    They are the scores of the evaluation at this save: of held-out records, which are like what was trained on, else of all
    benchmarks. Without one they are those of the last training records, as logged.
    """
    files, state = predictions_in(checkpoint / "eval"), checkpoint / "trainer_state.json"
    names = [HELD_OUT] if HELD_OUT in files else list(files)
    rows = [row for name in names for row in read_predictions(files[name])]
    scores = [score for row in rows for score in row["scores"] or () if score is not None]
    log = json.loads(state.read_text(encoding="utf-8"))["log_history"] if state.is_file() else []
    logged = next((line for line in reversed(log) if line.get("num_rewards")), None)
    if scores:
        found = {
            "mean": fmean(scores),
            "std": pstdev(scores),
            "n": len(scores),
            "source": f"{', '.join(names)} at this save",
        }
    elif logged is not None:
        mean, std, n = (logged[name] for name in ("reward_mean", "reward_spread", "num_rewards"))
        found = {
            "mean": mean,
            "std": std,
            "n": int(n),
            "source": f"training records up to step {logged['step']}",
        }
    else:
        return None
    return found if found["std"] else None


def write_reference(folder: Path, reference: Mapping[str, Any] | None) -> None:
    """Put the scale of a model's scores, in place of what its backbone may have brought, into its config.json.

    `mean` and `std` also stand where OpenRLHF writes and reads its own.
    """
    file = folder / "config.json"
    config = {
        name: value
        for name, value in json.loads(file.read_text(encoding="utf-8")).items()
        if name not in ("mean", "std")
    }
    also = {name: reference[name] for name in ("mean", "std")} if reference else {}
    write_whole(
        file,
        json.dumps({**config, "reference_scores": reference, **also}, indent=2, ensure_ascii=False)
        + "\n",
    )


def model_card(
    recipe: Recipe,
    data: DataFingerprints,
    step: str,
    results: Mapping[str, Result],
    reference: Mapping[str, Any] | None = None,
) -> str:
    """Return the card of a checkpoint, in Markdown with the hub's metadata; `step` (`5 of 20`) stands in its title."""
    title = f"# {Path(recipe.output.folder).name}, step {step}"
    what = f"Trained from {recipe.backbone.path}; {recipe.method.summary}."
    rows = [
        f"| {name} | {found['rows']:,} | {found['fingerprint']} |" for name, found in data.items()
    ]
    sources = "\n".join(["| source | rows | fingerprint |", "|---|---|---|", *rows])
    parts = [metadata(recipe), title, what, "## Figures", *figures(results), "## Use", *use(recipe)]
    parts += [SCALE.format(**reference)] if reference else []
    parts += ["## Data", sources]
    return "\n\n".join([*parts, "## Recipe", f"```yaml\n{recipe_yaml(recipe)}```"]) + "\n"


def metadata(recipe: Recipe) -> str:
    """Return the block that the hub reads; it names the base only if the hub knows it."""
    path = recipe.backbone.path
    base = [f"base_model: {path}"] if "/" in path and not Path(path).expanduser().exists() else []
    library = "transformers" if recipe.optim.lora is None else "peft"
    return "\n".join(
        ["---", f"library_name: {library}", *base, "tags: [reward-model, vision-language]", "---"]
    )


def read_results(checkpoint: Path) -> dict[str, Result]:
    """Return a checkpoint's results by benchmark; empty where it was never evaluated."""
    return {
        path.stem: Result.model_validate_json(path.read_text("utf-8"))
        for path in sorted(checkpoint.glob("eval/*.json"))
    }


def figures(results: Mapping[str, Result]) -> list[str]:
    """Return one table of all benchmarks and groups, and what must be known to compare them."""
    if not results:
        return ["No benchmark was evaluated at this step."]
    lines = [
        "| benchmark | accuracy in % [95 % interval] | n | ties | ties half | unparsable |",
        f"|{'---|' * 6}",
    ]
    for result in results.values():
        for name, found in {f"**{result.benchmark}**": result.micro, **result.groups}.items():
            lines.append(f"| {name} | {' | '.join(accuracy_cells(found))} |")
    notes = [
        f"{result.benchmark} ({result.origin}): {'; '.join((result.done, *result.notes))}"
        for result in results.values()
    ]
    return ["\n".join(lines), "\n".join(f"- {note}" for note in notes)]


def use(recipe: Recipe) -> list[str]:
    """Return how the checkpoint is loaded, and a judge's exact prompt."""
    found = [USE[recipe.method.type] if recipe.optim.lora is None else ADAPTER_USE]
    settings = recipe.resolved()
    template = judge_card(settings).template
    if template is not None and settings["method"].get("target") != "lessons":
        turns = ask(
            template,
            [text("user", "{the question}", 1)],
            "{the first response}",
            "{the second response}",
        )
        system = (
            []
            if recipe.backbone.system_prompt is None
            else [text("system", recipe.backbone.system_prompt)]
        )
        messages = json.dumps([*system, *turns], indent=1, ensure_ascii=False)
        limit = JudgingConfig.model_fields["max_new_tokens"].default
        found.append(JUDGE_PROMPT.format(messages=messages, max_new_tokens=f"{limit:,}"))
    return found


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
"""What only a resume needs: most of a checkpoint's bytes, and nothing that a user of the model wants."""


def push(folder: Path, repository: str, hub: Any) -> Path:
    """Upload the best checkpoint of the run in `folder`, the newest where none was chosen; return which. `hub` is an HfApi."""
    checkpoint = chosen_checkpoint(folder)
    message = f"{checkpoint.name} of {folder.name}"
    hub.upload_folder(
        repo_id=repository,
        folder_path=checkpoint,
        commit_message=message,
        ignore_patterns=FOR_RESUME,
    )
    return checkpoint
