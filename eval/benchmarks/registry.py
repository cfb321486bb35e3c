"""The benchmarks by name, and the section of a recipe that names one.

To add a benchmark, write a file next to this one and add its row to `BENCHMARKS`. The file has the
loader of the rows, the official judge prompt and the official score. eval/README.md lists the
steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import ClassVar

from pydantic import field_validator, model_validator

from mmrm.eval.benchmarks.benchmark import Benchmark, LoadedBenchmark, Location
from mmrm.eval.benchmarks.edit_reward_bench import EDIT_REWARD_BENCH
from mmrm.eval.benchmarks.genai_bench import GENAI_BENCH
from mmrm.eval.benchmarks.mm_rlhf_rankings import MM_RLHF_RANKINGS
from mmrm.eval.benchmarks.mm_rlhf_rewardbench import MM_RLHF_REWARDBENCH
from mmrm.eval.benchmarks.mmrb2 import MMRB2
from mmrm.eval.benchmarks.multimodal_rewardbench import MULTIMODAL_REWARDBENCH
from mmrm.eval.benchmarks.preference_folder import PREFERENCE_FOLDER
from mmrm.eval.benchmarks.reward_bench_2 import REWARD_BENCH_2
from mmrm.eval.benchmarks.videogen_rewardbench import VIDEOGEN_REWARDBENCH
from mmrm.eval.benchmarks.vl_rewardbench import VL_REWARDBENCH

BENCHMARKS: dict[str, Benchmark] = {
    "vl_rewardbench": VL_REWARDBENCH,
    "multimodal_rewardbench": MULTIMODAL_REWARDBENCH,
    "mm_rlhf_rewardbench": MM_RLHF_REWARDBENCH,
    "mm_rlhf_rankings": MM_RLHF_RANKINGS,
    "reward_bench_2": REWARD_BENCH_2,
    "mmrb2": MMRB2,
    "genai_bench": GENAI_BENCH,
    "edit_reward_bench": EDIT_REWARD_BENCH,
    "videogen_rewardbench": VIDEOGEN_REWARDBENCH,
    "preference_folder": PREFERENCE_FOLDER,
}

WITH_VIDEOS = (
    MM_RLHF_REWARDBENCH.name,
    MM_RLHF_RANKINGS.name,
    GENAI_BENCH.name,
    VIDEOGEN_REWARDBENCH.name,
)
"""The benchmarks that show videos."""


class BenchmarkConfig(Location):
    """A benchmark, and where its rows and images are."""

    allowed_values: ClassVar[Mapping[str, Sequence[str]]] = {"name": tuple(BENCHMARKS)}

    name: str
    """Which benchmark."""

    @field_validator("name")
    @classmethod
    def _name_exists(cls, name: str) -> str:
        if name not in BENCHMARKS:
            matches = get_close_matches(name, BENCHMARKS, n=1)
            hint = f" Did you mean {matches[0]}?" if matches else ""
            raise ValueError(f"no benchmark {name!r}; there are {', '.join(BENCHMARKS)}.{hint}")
        return name

    @model_validator(mode="after")
    def _settings_fit_the_benchmark(self) -> BenchmarkConfig:
        if self.frames is not None and self.name not in WITH_VIDEOS:
            raise ValueError(
                f"`frames` is for {', '.join(WITH_VIDEOS)}, and {self.name} shows no videos. "
                "Remove `frames`."
            )
        if self.videos == "video" and self.name not in WITH_VIDEOS:
            raise ValueError(
                f"`videos: video` is for {', '.join(WITH_VIDEOS)}, and {self.name} has no videos "
                "of its own. Remove `videos`."
            )
        if self.type is not None and self.name != PREFERENCE_FOLDER.name:
            raise ValueError(
                f"`type` is for {PREFERENCE_FOLDER.name}, and {self.name} has its own format. "
                "Remove `type`."
            )
        return self


def load(config: BenchmarkConfig) -> LoadedBenchmark:
    """Return the rows of the benchmark that `config` names.

    Raises:
        UserError: If files are missing, or the images of rows are missing or broken.
        RecordError: If a row cannot be used.
    """
    return BENCHMARKS[config.name].load(config)
