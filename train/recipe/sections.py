"""The sections of a recipe that training itself brings, and the base of every method's section.

The sections of data, models and evaluation are next to what they configure. `RunConfig` holds them
all. A method's own section is in the method's folder, as a subclass of `MethodConfig`.
`train/recipe/recipe.py` adds which methods there are. This module must not import it: pydantic
imports the sections of all methods, which import this module, while `Recipe` is being made.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from mmrm.data.config.section import Count, Rate, Ratio, Section, Share
from mmrm.data.errors import UserError
from mmrm.data.point_prompt import PointPrompt
from mmrm.data.preparation.mixing import MixtureConfig
from mmrm.data.prompts import JudgeTemplate
from mmrm.data.sources.registry import AnySource
from mmrm.eval.benchmarks.registry import BenchmarkConfig
from mmrm.eval.judges.judging_config import JudgingConfig
from mmrm.eval.protocol import ProtocolConfig
from mmrm.eval.results.run_folder import HELD_OUT
from mmrm.models.config import BackboneConfig, CheckpointingMode, CritiqueConfig
from mmrm.models.heads.registry import AnyHead
from mmrm.models.heads.score_head import ScoreHeadConfig

Script = Literal["rm", "sft", "rl"]
"""The command that trains a method: train/rm.py, train/sft.py or train/rl.py."""

HELD_OUT_ACCURACY = f"{HELD_OUT}/accuracy"
"""The name of a judge's accuracy on the records that `data.validation` withholds from training."""

HELD_OUT_LOSS = f"{HELD_OUT}/loss"
"""The name of the loss on the records that `data.validation` withholds from training."""

QUESTION_FIGURES = ("greedy", "sampled", "best", "pass", "majority")
"""The names of the figures that are measured on a policy's answers (eval/policies/answering.py).

`best` needs a judge that scores the answers.
"""


class EvaluationConfig(Section):
    """Which benchmarks score every saved checkpoint, and which figure chooses the best one."""

    benchmarks: list[BenchmarkConfig] = Field(default=[])
    """The benchmarks of every evaluation. If there are none, and no data.validation, the run
    evaluates nothing, and only the newest checkpoints are kept."""
    questions: list[AnySource] = Field(default=[])
    """The sources of questions with known answers on which a policy is evaluated, in place of
    benchmarks. The policy answers all of their records."""
    samples: int = Field(default=8, ge=2, le=1024)
    """The number of answers that a policy samples to each question, in addition to a greedy answer.
    The accuracies of best-of-N, pass@N and the majority are computed from them."""
    protocol: ProtocolConfig = ProtocolConfig()
    judging: JudgingConfig = JudgingConfig()
    """The sampling of a judge that writes judgements. The section is refused for a judge that only
    scores."""
    at_start: bool = True
    """Also evaluate before the first step, so that later figures can be compared with the start."""
    best_metric: str | None = None
    """The figure that chooses the best checkpoint, which is kept in `best/`. It is written
    BENCHMARK/FIGURE, and the highest value is the best. With data.validation it may also be
    `held_out/accuracy` (not in a cold start), or `held_out/loss` (not in RL), of which the lowest
    value is the best. For a policy it is SOURCE/FIGURE: SOURCE is a name in `questions`, or
    `held_out`, and FIGURE is greedy, sampled, best, pass or majority. Null keeps no best
    checkpoint."""
    baselines: bool = True
    """Print the accuracy of judges that see neither texts nor images next to every accuracy."""


class LoraConfig(Section):
    """Low-rank adapters on the language model's projections.

    A head is trained and saved in full.
    """

    rank: int = Field(default=64, ge=1, le=2**14)
    """The rank of the two matrices that are added to a projection."""
    alpha: int = Field(default=128, ge=1, le=2**20)
    """The output of the adapters is multiplied by alpha / rank."""
    dropout: Share = 0.0
    """Probability with which an input of an adapter is set to 0 in training."""
    experts: bool = False
    """Also adapt the experts of a backbone that has some. Each expert gets adapters of its own, so
    take a small rank, such as 4: at rank 1 they are 39 M parameters for Qwen3-VL-30B-A3B. Their
    products are added to the weights of a whole layer in each pass, and `dropout` has to be 0.
    Routers are never adapted."""
    quantise: Literal["none", "nf4"] = "none"
    """`nf4` keeps the frozen backbone in 4 bits (QLoRA), except experts, which stay in 16 bits; it
    needs CUDA and the `quantisation` extra."""


class OptimConfig(Section):
    """The optimizer, its schedule and the size of a step."""

    optimizer: Literal["adamw"] = "adamw"
    """`adamw` is AdamW, which applies weight decay separately from the gradient."""
    learning_rate: Rate
    """The highest learning rate, which is reached after the warm-up."""
    head_learning_rate: Rate | None = None
    """The highest learning rate of the reward head. Null takes `learning_rate`."""
    vision_learning_rate: Rate | None = None
    """The highest learning rate of the vision tower and the projector. Null takes
    `learning_rate`."""
    records_per_step: Count
    """The batch size: the number of preference pairs of one optimizer step, on all ranks together.
    With train/sft.py it counts texts in place of pairs."""
    epochs: Ratio | None = None
    """The number of passes over the data. Give either this or `max_steps`."""
    max_steps: Count | None = None
    """The number of optimizer steps. Give either this or `epochs`."""
    schedule: Literal["constant", "linear", "cosine"] = "cosine"
    """The learning rate after the warm-up: it falls to 0, or stays constant."""
    warmup_ratio: Share = 0.1
    """Share of the steps over which the learning rate rises from 0."""
    weight_decay: Share = 0.0
    """The weight decay of matrices. Norms and biases are never decayed."""
    betas: tuple[Share, Share] = (0.9, 0.999)
    """The decay rates of AdamW's two moments."""
    max_grad_norm: float = Field(default=1.0, ge=1e-6, le=1e9)
    """Gradients with a larger norm are scaled down to it."""
    token_budget: Count | Literal["auto"] = "auto"
    """The largest size of a packed row (several records in one forward pass), which bounds its
    memory. The size is counted in tokens of the language model, and a vision patch counts as 0.4
    tokens. On CUDA, `auto` measures the memory from the second step on to find the size that fits.
    On a CPU it takes 4096. Under ZeRO-3 a number is approached in the same way. The value does not
    change what the model learns."""
    activation_checkpointing: CheckpointingMode = "full"
    """What is computed again in the backward pass instead of being kept in memory: `none` nothing;
    `linear` all but the results of linear layers and of attention, which takes about half of the
    memory and little time; `attention` all but the results of attention, which suits long prompts;
    `full` whole layers; `offloaded` whole layers, whose inputs are kept in host memory, for rows
    that do not fit otherwise. The gradients are the same. True and false, as recipes had it before,
    mean `full` and `none`."""
    compile: Literal["none", "layers"] = "none"
    """`layers` compiles the MLPs and norms of the language model and the vision tower with
    torch.compile. Compiling takes minutes at the start. It makes steps faster on CUDA."""
    sequence_parallel: Count = 1
    """The number of ranks that compute a packed row together, each a part of its tokens and images.
    It divides the number of ranks. Take more than 1 only for records that are too long for one GPU,
    because the ranks of a group wait for each other in every layer. The value does not change what
    the model learns."""
    router_aux_loss_coef: Annotated[float, Field(ge=0.0, le=10.0)] | None = 0.0
    """Weight of the load-balancing loss of a backbone with experts, which is added to the loss. With
    0 it is only logged, as TRL's RewardTrainer trains. Null takes the value of this name in the
    backbone's config.json (0.001 if it has none), as TRL's other trainers do by default."""
    lora: LoraConfig | None = None
    """Train low-rank adapters. Null trains all weights that `backbone.freeze` does not freeze."""

    @field_validator("activation_checkpointing", mode="before")
    @classmethod
    def _accept_boolean(cls, value: object) -> object:
        """Turn the true and false of older recipes, which run folders also contain, into modes."""
        if isinstance(value, bool):
            return "full" if value else "none"
        return value

    def warmup_steps(self, steps: int) -> int:
        """Return the number of steps of warm-up in a run of `steps` optimizer steps."""
        return round(self.warmup_ratio * steps)


class OutputConfig(Section):
    """The folder of a run, the intervals of its checkpoints and logs, and where it publishes results."""

    folder: str
    """The run folder. A relative path starts at the working directory."""
    save_every_steps: Count
    """The number of optimizer steps between two checkpoints. Every checkpoint is evaluated."""
    keep_checkpoints: Count = 2
    """The number of newest checkpoints that are kept. The best checkpoint is always kept."""
    staging: str | None = None
    """A folder on every node, such as `/dev/shm/mmrm` or one on a local disk, into which a
    checkpoint is written first. Training goes on while it is copied into the run folder. A run that
    is killed before the copy is complete continues from the checkpoint before."""
    log_every_steps: Count = 10
    """The number of optimizer steps between two lines of the log."""
    resume: str = "never"
    """`never` starts a new run and refuses a folder with checkpoints. `auto` continues from the
    last complete checkpoint, if there is one. A path continues from that checkpoint. Only continue
    from a checkpoint that you trust like a program, because DeepSpeed unpickles its states. A run
    cannot be continued with other settings, except with more `optim.epochs` or
    `optim.max_steps`."""
    push_to_hub: str | None = None
    """The hub repository to which the best checkpoint is uploaded at the end of the run. If it does
    not exist, a private repository is made before the first step, so that a missing login is
    reported early."""
    wandb_project: str | None = None
    """The project in wandb to which figures are logged. Null logs only to the console and the run
    folder. Without a login, the wandb run is kept on disk."""
    tensorboard: bool = False
    """Also write event files into the folder `tensorboard` of the run folder, for
    `tensorboard --logdir`. This needs the extra `tensorboard`."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A rule between keys of a recipe that the recipe breaks."""

    message: str
    """The fault, and how to correct it."""
    keys: tuple[str, ...]
    """The keys that the rule reads. The fault is reported at the first one."""


class MethodConfig(Section, ABC):
    """The section `method` of a recipe, with the properties of the method that other code reads.

    A method is one subclass of this, in a module `config` that imports no torch, and one row in
    `METHODS` of `train/recipe/registry.py`. No other code asks which method a recipe names.
    """

    if TYPE_CHECKING:
        # Every method declares its own literal. Declared here, it would be the first of all keys.
        type: str

    implementation: ClassVar[str]
    """The import path of the method's subclass of `mmrm.train.methods.method.Method`."""
    script: ClassVar[Script]
    """The command that trains the method."""
    model: ClassVar[Literal["scalar", "critic", "language_model"]]
    """The class of model that is trained. A `language_model` has no reward head."""
    judge_type: ClassVar[str | None]
    """The `type` of judge that a checkpoint is. None if the method trains no judge."""
    paradigm: ClassVar[str]
    """The kind of reward model, in tables and drawings that compare several."""
    usage: ClassVar[str] = """\
`AutoModelForImageTextToText.from_pretrained(folder)` loads it, like any checkpoint of its \
backbone's family; vLLM serves it."""
    """The part of the model card that says how a checkpoint is loaded, in Markdown."""
    evaluated_on: ClassVar[Literal["benchmarks", "questions"]] = "benchmarks"
    """`benchmarks` if the model judges pairs, `questions` if it answers questions itself."""
    divides_rows: ClassVar[bool] = True
    """True if several ranks can compute a packed row together, by `optim.sequence_parallel`."""
    state_is_per_rank: ClassVar[bool] = False
    """True if a checkpoint holds a state of every rank, so that the run can only be resumed on the
    same number of ranks."""

    @property
    @abstractmethod
    def summary(self) -> str:
        """A description of the loss, for the plan and the model card."""

    @property
    def brings_pairs_together(self) -> bool:
        """True if the pairs of one prompt are brought into one step."""
        return False

    @property
    def uses_lists(self) -> bool:
        """True if the method learns from records with more than two responses."""
        return False

    @property
    def uses_ties(self) -> bool:
        """True if the method learns from two responses of equal rank."""
        return False

    @property
    def examples_per_record(self) -> int:
        """The number of times that a record is learned in an epoch. It is 2 for both orders."""
        return 1

    @property
    def written_critiques(self) -> CritiqueConfig | None:
        """The prompt and sampling of the critiques that a model writes. None if it writes none."""
        return None

    @property
    def judge_template(self) -> JudgeTemplate | None:
        """The prompt of a judge that compares two responses. None if no such judge is trained."""
        return None

    @property
    def point_prompt(self) -> PointPrompt | None:
        """The question to a judge that scores single responses. None if none is trained."""
        return None

    def joint_responses(self, run: RunConfig) -> int | None:
        """Return the largest number of responses that the model scores in one conversation.

        Returns None if each response has a conversation of its own.
        """
        return None

    def held_out_figures(self, run: RunConfig) -> tuple[str, ...]:
        """Return the names of the figures on the records of data.validation.

        They are empty if no records are withheld from training.
        """
        if not run.data.validation:
            return ()
        return (HELD_OUT_ACCURACY, HELD_OUT_LOSS)

    def rules(self, run: RunConfig) -> Iterator[Broken]:
        """Yield the rules between the keys of this method and other keys that `run` breaks."""
        yield from ()

    def written_texts(self, run: RunConfig) -> tuple[str, ...]:
        """Return names for of the texts that a model writes in a run, empty if there are none."""
        if run.evaluates and self.model != "scalar":
            return ("evaluations",)
        return ()

    @property
    def texts_a_record(self) -> int:
        """The number of texts that the model writes about each record in a step of RL, else 0."""
        return 0

    def model_paths(self) -> Iterator[tuple[str, str]]:
        """Yield the key and the path (or hub id) of every further backbone that is loaded."""
        yield from ()

    def judge_paths(self) -> Iterator[tuple[str, str]]:
        """Yield the key and the path of every judge that scores texts in training.

        The path is that of a checkpoint or of the YAML file of a judge.
        """
        yield from ()

    def frozen_copies(self, *, lora: bool) -> int:
        """Return the number of frozen copies of the model that are held next to the trained one.

        Args:
            lora: Adapters are trained. The model without them is then used in place of a copy.
        """
        return 0


class RunConfig(Section):
    """All settings of a run."""

    backbone: BackboneConfig
    head: AnyHead = ScoreHeadConfig()
    """The reward head, by its `type`, which is `score` by default. The section is refused if the
    method has no head."""
    data: MixtureConfig
    method: MethodConfig
    """The training method, by its `type`, and its settings."""
    optim: OptimConfig
    deepspeed: str = "none"
    """The name of a file in recipes/deepspeed, or `none`."""
    evaluation: EvaluationConfig = EvaluationConfig()
    output: OutputConfig
    workers: int = Field(default=2, ge=0, le=1024)
    """The number of processes of each rank that decode images and tokenise texts ahead of the step.
    With 0 the training process does so between steps."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """The seed of the head's initial weights, of dropout and of sampling. The order of the data has
    its own seed, `data.seed`."""
    deterministic: bool = False
    """Use only kernels whose results are the same bits in every run. They are slower."""

    @property
    def has_head(self) -> bool:
        """True if the method trains a reward head. A model without one writes judgements."""
        return self.method.model != "language_model"

    @property
    def evaluates(self) -> bool:
        """True if the run evaluates benchmarks, questions, or records of data.validation."""
        return bool(self.evaluation.benchmarks or self.evaluation.questions or self.data.validation)

    @property
    def question_sets(self) -> tuple[str, ...]:
        """The names of the sets of questions on which a policy is evaluated.

        The records of data.validation are one of them.
        """
        names = [source.label for source in self.evaluation.questions]
        if self.data.validation:
            names.append(HELD_OUT)
        return tuple(names)

    @property
    def held_out_figures(self) -> tuple[str, ...]:
        """The names of the figures on the records of data.validation, and on sets of questions.

        `evaluation.best_metric` may name one of them.
        """
        return self.method.held_out_figures(self)

    def steps(self, records: int) -> int:
        """Return the number of optimizer steps of a run.

        The last step of an epoch may have fewer records than the others.

        Args:
            records: The number of records of an epoch.

        Raises:
            UserError: If the run has no step.
        """
        if self.optim.max_steps is not None:
            return self.optim.max_steps
        epochs = self.optim.epochs or 0.0
        records_per_step = self.optim.records_per_step
        num_steps = int(epochs * ceil(records / records_per_step))
        if num_steps == 0:
            raise UserError(
                f"{epochs:g} epochs of {records:,} records in steps of {records_per_step:,} are 0 "
                "steps: nothing would be trained; raise optim.epochs or add records"
            )
        return num_steps

    def resolved(self) -> dict[str, Any]:
        """Return the recipe as plain data, with the value of every key that its method uses.

        Keys with default values are included. Parsing the result gives the same recipe.
        """
        # True leaves out a whole section, and a set leaves out keys of a section.
        unused: dict[str, Any] = {}
        if not self.has_head:
            unused["head"] = True
        if self.method.evaluated_on == "benchmarks":
            unused["evaluation"] = {"questions", "samples"}
            # A judge with a head scores, and samples no judgements.
            if self.has_head:
                unused["evaluation"].add("judging")
        return self.model_dump(mode="json", exclude=unused)
