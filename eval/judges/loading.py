"""From a path to a judge: a checkpoint folder by what its config.json says, a YAML file by its `type`.

judge = load_judge("runs/mine/best")
scores = judge.score([{"role": "user", "content": [{"type": "image", "image": "cat.png"}, {"type": "text", …}]}], responses)
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field, RootModel

from mmrm.data.config.validation import read_section
from mmrm.data.errors import CheckpointError
from mmrm.data.regular_files import require_regular
from mmrm.data.storage.manifest import verify_settings
from mmrm.eval.benchmarks.preference_folder import PREFERENCE_FOLDER
from mmrm.eval.judges.checkpoint import Runtime, classes_of_judges, kind_of, load_checkpoint
from mmrm.eval.judges.critic.config import CriticJudgeConfig
from mmrm.eval.judges.critic.judge import critic_judge, critic_ranker
from mmrm.eval.judges.endpoint.config import EndpointConfig
from mmrm.eval.judges.endpoint.judge import endpoint_judge
from mmrm.eval.judges.ensemble.config import EnsembleConfig
from mmrm.eval.judges.ensemble.judge import EnsembleJudge, EnsembleRanker, combination
from mmrm.eval.judges.generative.config import GenerativeJudgeConfig
from mmrm.eval.judges.generative.judge import generative_judge, load_writer, tournament_ranker
from mmrm.eval.judges.loaded import LoadedJudge
from mmrm.eval.judges.released.config import ReleasedJudgeConfig
from mmrm.eval.judges.released.models import compares, released_judge
from mmrm.eval.judges.scalar.config import ScalarJudgeConfig
from mmrm.eval.judges.scalar.judge import ScalarJudge, scalar_ranker
from mmrm.eval.judges.server.config import ServerConfig
from mmrm.eval.judges.server.judge import ServedJudge
from mmrm.eval.judges.tournament import Tournament
from mmrm.eval.protocol import ProtocolConfig
from mmrm.models.backbone import load_critic, load_scalar
from mmrm.models.config import HeadConfig, checkpoint_at

JudgeConfig = (
    ScalarJudgeConfig
    | CriticJudgeConfig
    | GenerativeJudgeConfig
    | ReleasedJudgeConfig
    | EnsembleConfig
    | EndpointConfig
    | ServerConfig
)


class JudgeFile(RootModel[Annotated[JudgeConfig, Field(discriminator="type")]]):
    """The YAML file of a judge, whose `type` says which settings it holds."""


def load_judge(path: str | Path, runtime: Runtime | None = None) -> LoadedJudge:
    """Return the judge at `path`: a checkpoint folder of any of the three kinds, or the YAML file of a judge.

    Without `runtime` it runs on the first GPU, or else on the CPU. Raises: CheckpointError for what is no whole judge.
    """
    config = judge_config(Path(path))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return JUDGES[config.type][1](Path(path), runtime or Runtime(device), config)


def judge_config(path: Path) -> JudgeConfig:
    """Return how the judge at `path` is asked: its YAML file, or the defaults for a checkpoint folder.

    Raises: CheckpointError for what is no judge, or not as it was saved; RecipeError for a file, with every key that is wrong.
    """
    if path.is_file():
        config = read_section(path, JudgeFile).root
        if isinstance(config, EnsembleConfig | EndpointConfig | ServerConfig):
            return config
        return config.model_copy(update={"checkpoint": checkpoint_at(config.checkpoint)})
    if path.exists() and not path.is_dir():
        require_regular(path)
    path = Path(checkpoint_at(str(path)))
    if path.is_dir():
        verify_settings(path)
    kind = kind_of(path)
    if kind not in JUDGES:
        classes, types = ", ".join(classes_of_judges()), ", ".join(JUDGES)
        raise CheckpointError(
            f"{path} is a {kind!r}, which cannot judge here. Judges are: checkpoints of {classes}; YAML files with the `type` "
            f"{types}."
        )
    return JUDGES[kind][0].model_validate({"type": kind, "checkpoint": str(path)})


def _scalar(path: Path, runtime: Runtime, config: ScalarJudgeConfig) -> LoadedJudge:
    other = partial(load_scalar, head=HeadConfig(layers=1, activation="none", read=config.read))
    found = load_checkpoint(
        Path(config.checkpoint).expanduser(), runtime, other if path.is_file() else load_scalar
    )
    judge = ScalarJudge(
        found.model, found.packed, found.model.config.reward_head["read"], found.notes
    )
    return LoadedJudge(scalar_ranker(judge), lambda benchmark, protocol: judge)


def _critic(path: Path, runtime: Runtime, config: CriticJudgeConfig) -> LoadedJudge:
    folder = Path(config.checkpoint).expanduser()
    kind = judge_config(folder).type
    if kind != "critic":
        raise CheckpointError(
            f"{path}: {folder} is a {kind!r} judge and no critic; give a checkpoint of `method: critic`."
        )
    found = load_checkpoint(folder, runtime, load_critic)
    return LoadedJudge(
        critic_ranker(critic_judge(found, config)),
        lambda benchmark, protocol: critic_judge(found, config),
    )


def _generative(path: Path, runtime: Runtime, config: GenerativeJudgeConfig) -> LoadedJudge:
    judge_for = partial(
        generative_judge,
        load_checkpoint(Path(config.checkpoint).expanduser(), runtime, load_writer),
        config,
    )
    return LoadedJudge(tournament_ranker(judge_for(PREFERENCE_FOLDER, ProtocolConfig())), judge_for)


def _ensemble(path: Path, runtime: Runtime, config: EnsembleConfig) -> LoadedJudge:
    places = [Path(member).expanduser() for member in config.members]
    for place in places:
        member = judge_config(place)
        if member.type in ("generative", "endpoint") or compares(member):
            raise CheckpointError(
                f"{path}: {place} compares responses and gives no scores, so that it cannot be a member."
            )
    members = [load_judge(place, runtime) for place in places]
    combined = combination(
        config, [member.benchmark(PREFERENCE_FOLDER, ProtocolConfig()) for member in members]
    )
    return LoadedJudge(
        EnsembleRanker([member.ranker for member in members], combined),
        lambda benchmark, protocol: EnsembleJudge(
            config, [one.benchmark(benchmark, protocol) for one in members], combined
        ),
    )


def _endpoint(path: Path, runtime: Runtime, config: EndpointConfig) -> LoadedJudge:
    judge_for = partial(endpoint_judge, config)
    return LoadedJudge(Tournament(judge_for(PREFERENCE_FOLDER, ProtocolConfig())), judge_for)


def _server(path: Path, runtime: Runtime, config: ServerConfig) -> LoadedJudge:
    judge = ServedJudge.of(config)
    return LoadedJudge(judge, lambda benchmark, protocol: judge)


JUDGES: dict[str, tuple[type[JudgeConfig], Callable[[Path, Runtime, Any], LoadedJudge]]] = {
    "scalar": (ScalarJudgeConfig, _scalar),
    "critic": (CriticJudgeConfig, _critic),
    "generative": (GenerativeJudgeConfig, _generative),
    "released": (ReleasedJudgeConfig, released_judge),
    "ensemble": (EnsembleConfig, _ensemble),
    "endpoint": (EndpointConfig, _endpoint),
    "server": (ServerConfig, _server),
}
"""`type` of a judge to its settings and to what loads it. A new kind of judge is a row here."""
