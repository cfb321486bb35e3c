"""The names of all commands, and the modules that they run."""

COMMANDS = {
    "Train": {
        "rm": "train.rm",
        "sft": "train.sft",
        "rl": "train.rl",
        "ablate": "train.ablate",
        "on-policy": "train.on_policy",
        "merge": "train.merge",
        "export": "train.export",
    },
    "Evaluate and use": {
        "eval": "eval.run",
        "sweep": "eval.sweep",
        "report": "eval.report",
        "score": "eval.score",
        "score-records": "eval.score_records",
        "serve": "eval.serve",
        "sample": "eval.sample",
        "select-responses": "eval.select_responses",
        "select-pairs": "eval.select_pairs",
    },
    "Look at data": {
        "data": "data.mixture",
        "browse": "data.browse",
        "clean": "train.clean",
        "clean-planted": "train.clean_planted",
        "overlap": "eval.overlap",
        "annotate": "eval.annotate",
        "frames": "data.frames",
        "shapes": "data.shapes",
    },
    "Study": {
        "overoptimisation": "eval.overoptimisation",
        "critique-ablation": "eval.critique_ablation",
        "compare-rankings": "eval.compare_rankings",
        "shortcuts": "eval.shortcuts",
        "predictors": "train.predictors",
        "compare-objectives": "train.compare_objectives",
        "picture-faults": "train.picture_faults",
        "frame-order": "train.frame_order",
        "which-source": "train.which_source",
        "answers": "eval.answers",
        "stress": "train.stress",
        "throughput": "train.throughput",
    },
}
"""The module of every command, without the leading `mmrm.`, by heading and by the command's name."""


def modules_by_command() -> dict[str, str]:
    """Return the import path of every command's module, by the command's name."""
    modules: dict[str, str] = {}
    for commands in COMMANDS.values():
        for name, module in commands.items():
            modules[name] = f"mmrm.{module}"
    return modules


def commands_by_script() -> dict[str, str]:
    """Return the name of every command by its path in a clone, such as `eval/run.py`."""
    names: dict[str, str] = {}
    for commands in COMMANDS.values():
        for name, module in commands.items():
            names[f"{module.replace('.', '/')}.py"] = name
    return names
