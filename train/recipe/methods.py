"""The `method` section of a recipe: which of the three paradigms, or a policy by one of them, is trained, with which numbers.

[Q] marks a value quoted from the paper or its released code; everything else is a default of ours, because the paper is silent.
"""

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator

from mmrm.data.config.section import Count, Fraction, Seconds, Section, Tokens, Url, Weight
from mmrm.data.preparation.sampling import PAIRS_TOGETHER
from mmrm.data.prompts import CRITIQUE_REQUEST, JudgeTemplate
from mmrm.eval.selection.score_forms import FORMS
from mmrm.models.config import CritiqueConfig

Bound = Annotated[float, Field(ge=1e-9, le=1e9)]


class NaiveConfig(Section):
    """A reward head trained with Bradley-Terry (BaseReward, arXiv 2509.16127); the defaults are its plain loss [Q]."""

    type: Literal["naive"]
    margin: bool = False
    """Ask for `chosen - rejected` to exceed the record's own margin; records without one have margin 0."""
    zero_coefficient: Weight = 0.0
    """Weight of mean((chosen + rejected)^2), which centres the rewards. BaseReward tried 0.1, 0.01 and 0.001 [Q]."""
    length_normalisation: bool = False
    """Divide both scores by log(tokens + 1) before the loss; BaseReward found no gain [Q]."""
    pairs_together: Count = PAIRS_TOGETHER
    """Pairs of one prompt and its images that are brought into one step, at most: the prompt is computed once for all of them,
    and a response once for all that compare it. 1 leaves every pair where it was drawn."""

    @property
    def summary(self) -> str:
        """The loss in words."""
        extra = {
            "margin": self.margin,
            f"{self.zero_coefficient:g} x (chosen + rejected)^2": self.zero_coefficient > 0,
            "length normalisation": self.length_normalisation,
        }
        return " + ".join(["naive: Bradley-Terry", *(name for name, used in extra.items() if used)])


class LanguageModelConfig(Section):
    """The language-model loss: the cold start of R1-Reward, and the pretraining of the embedded backbone."""

    type: Literal["language_model"]
    target: Literal["judgement", "lessons"]
    """Learn the records' rationales as judgements of two responses (R1-Reward's cold start), or questions, answers and
    verdicts about images of the embedded world."""
    answers: Literal["right", "stated"] = "stated"
    """For lessons: learn right answers only, or state near misses too and learn to say after each whether it is right."""
    text_share: Annotated[float, Field(ge=0.0, le=1.0)] = 1.0
    """For lessons with verdicts: the share of right answers whose text is learned as well; the rest teach the verdict alone."""
    asked_share: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """For lessons with verdicts: the share of verdicts given in a turn of their own, in critiques and in comparisons of two
    answers, instead of directly after the answer."""
    most_things: int | None = Field(default=None, ge=1, le=100)
    """For lessons: images of at most so many shapes, with nothing written; null takes the level's own."""
    questions: int = Field(default=12, ge=1, le=1000)
    """Questions about one image, for lessons."""
    template: JudgeTemplate = "r1_reward"
    """For judgements: what the judge is asked; R1-Reward's prompt [Q], or a short one for the embedded world."""
    both_orders: bool = False
    """For judgements: learn every pair in both orders, instead of one with the winner first in exactly half [Q]."""

    @property
    def summary(self) -> str:
        """The loss in words."""
        targets = {
            "judgement": "judgements",
            "lessons": f"lessons of {self.questions} questions about an image",
        }
        return f"language_model: cross-entropy on {targets[self.target]}"


class CriticConfig(Section):
    """A critique is written, then the head scores it (MM-RLHF-Reward, arXiv 2502.10391)."""

    type: Literal["critic"]
    cross_entropy_weight: Weight = 1.0
    """Weight of the cross-entropy on critique tokens, per token [Q]."""
    score_weight: Weight = 1.0
    """Weight of the Bradley-Terry loss, per pair [Q]."""
    zero_coefficient: Weight = 0.0
    """As in the naive method; the paper has none [Q], its released code 0.01 [Q]."""
    margin: bool = False
    """As in the naive method."""
    pairs_together: Count = PAIRS_TOGETHER
    """As in the naive method."""
    score_warmup_steps: int = Field(default=0, ge=0, le=10**9)
    """Optimizer steps on the critique loss alone, before the score loss sets in."""
    critique_request: str | None = None
    """What the critic is asked after the response; null takes ours, `mmrm.data.prompts.CRITIQUE_REQUEST`."""
    critique: Literal["ground_truth", "own", "mixture"] = "ground_truth"
    """Which critique the score is trained on; the paper feeds the ground truth [Q]. The cross-entropy is always that of the
    ground truth."""
    own_share: Fraction | None = None
    """Share of the records that are scored on the model's own critique, for `mixture`."""
    refresh_every_steps: Count = 200
    """Optimizer steps after which the model writes its own critiques again, for `own` and `mixture`."""
    warmup_steps: int = Field(default=0, ge=0, le=10**9)
    """Optimizer steps on ground-truth critiques before the first of its own is used, for `own` and `mixture`."""
    records_without_critique: Literal["refuse", "score_only"] = "refuse"
    """Stop at a record that lacks a critique, or train its score on the bare response."""
    critique_max_tokens: Tokens = 512
    """Longest critique that the model may write; the inference of the paper is greedy [Q]."""

    @property
    def summary(self) -> str:
        """The loss in words."""
        weights = (
            f"{self.cross_entropy_weight:g} x cross-entropy + {self.score_weight:g} x Bradley-Terry"
        )
        return f"critic: {weights}, critiques: {self.critique}"

    @property
    def writing(self) -> CritiqueConfig:
        """How critiques are asked for, as a checkpoint keeps it."""
        return CritiqueConfig(
            request=self.critique_request or CRITIQUE_REQUEST,
            max_new_tokens=self.critique_max_tokens,
        )


class PreClipConfig(Section):
    """Bounds on the probability ratio before the exponential is taken: exp(clip(log ratio, log lowest, log highest))."""

    lowest: Bound = 1e-3
    """A smaller ratio counts as this one [Q]."""
    highest: Bound = 1e3
    """A larger ratio counts as this one [Q]."""


class AdvantageConfig(Section):
    """How rewards become advantages."""

    normalisation: Literal["batch", "group", "leave_one_out"] = "batch"
    """Over the whole rollout batch [Q], over the judgements of one prompt, or against the mean of the others."""
    filter: Bound | None = 3.0
    """Standard deviations beyond which an advantage counts as 0 [Q]; null switches the filter off."""
    filter_variant: Literal["paper", "r1_released"] = "paper"
    """What the bound is compared with: the standardised advantage [Q], or, as in the released code, the distance of the raw
    reward from the batch's mean (which rewards of at most 2 never exceed, so that it never acts)."""


class RuleJudge(Section):
    """The last choice that the reasoning names is compared with the answer; no model is asked."""

    type: Literal["rule"]


class CheckpointJudge(Section):
    """A model loaded beside the policy reads the last lines of the reasoning."""

    type: Literal["checkpoint"]
    path: str = "Qwen/Qwen2.5-VL-7B-Instruct"
    """The paper's judge [Q]."""


class ServerJudge(Section):
    """A server with an OpenAI-compatible interface reads the last lines of the reasoning."""

    type: Literal["server"]
    url: Url
    """The base of the interface; `/chat/completions` is added."""
    model: str
    """The name that the server knows it by."""
    timeout_seconds: Seconds = 60.0
    """How long an answer may take."""


class RewardsConfig(Section):
    """What a judgement earns: result x (1 + consistency_weight x consistency) + format_weight x format [Q]."""

    variant: Literal["paper", "r1_released"] = "paper"
    """`r1_released` scores consistency +1, -1 or 0 as the released code does; neither ever pays for an error."""
    consistency_weight: Weight = 0.5
    """Of reasoning that agrees with the answer [Q]."""
    format_weight: Weight = 0.5
    """Of a judgement in the form asked for [Q]."""
    consistency: Annotated[
        RuleJudge | CheckpointJudge | ServerJudge, Field(discriminator="type")
    ] = RuleJudge(type="rule")
    """Who says whether the reasoning agrees with the answer; the paper asks Qwen2.5-VL-7B-Instruct [Q], the default does not."""


class RolloutConfig(Section):
    """Reinforcement learning on sampled texts, judgements of a judge or answers of a policy: the update and the sampling."""

    epsilon: Fraction = 0.2
    """PPO clips the ratio to 1 - epsilon ... 1 + epsilon [Q]."""
    epsilon_high: Bound | None = None
    """Upper clip of its own ("clip higher"); null takes `epsilon`, as the paper does."""
    dual_clip: Annotated[float, Field(gt=1.0, le=1e6)] | None = None
    """Bound of the loss for negative advantages (dual-clip PPO); null as in the paper."""
    pre_clip: PreClipConfig | None = PreClipConfig()
    """Null switches the pre-clip off."""
    advantages: AdvantageConfig = AdvantageConfig()
    kl_coefficient: Weight = 0.0
    """0 in the paper [Q], 1e-3 in the released script [Q]; above 0 a frozen reference model is kept."""
    kl_form: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of the divergence, in the names of John Schulman's note."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Add it to the loss of every token, or take its sum over a text off the reward, as the released script does."""
    num_generations: int = Field(default=1, ge=1, le=1024)
    """Texts sampled on a prompt; 1 in the released script [Q]."""
    pairs_per_pass: Count = 1
    """Pairs (of a policy: questions), each with all its texts, in one forward and backward of a rank; it bounds the memory, not
    the result."""
    steps_per_rollout: int = Field(default=2, ge=1, le=10_000)
    """Optimizer steps on one batch of rollouts; the paper trains batches of 128 on rollouts of 256 [Q]."""
    temperature: float = Field(default=1.0, ge=0.01, le=100.0)
    """Of the sampled texts [Q]."""
    max_new_tokens: Tokens = 1024
    """Longest text, in tokens [Q]."""
    max_prompt_tokens: Tokens = 20480
    """Longest prompt, in tokens [Q]."""
    engine: Literal["transformers", "vllm_colocate", "vllm_server"] = "transformers"
    """What samples the texts; the released script uses vLLM [Q]."""
    vllm_url: Url = "http://localhost:8000"
    """Where `trl vllm-serve` listens, for the engine vllm_server."""
    vllm_memory: Fraction = 0.3
    """Share of the GPU for the engine vllm_colocate."""
    # vLLM's probabilities differ from those in training, and uncorrected that is a bias (trl#3867). A token's weight stays near
    # 1 however long the text is; a text's weight is the product of hundreds, which shrinks or drops the longest (trl#5815: 0.57
    # on average, where the tokens agree).
    importance_correction: Literal["none", "token_truncate", "sequence_mask"] = "token_truncate"
    """How the loss is weighted by (probability in training / probability in vLLM), for the vLLM engines: not at all; every
    token, by at most 3; every text, dropped above 3. The share truncated or dropped is logged as `importance/...`."""
    rollouts_shown: int = Field(default=2, ge=0, le=1000)
    """Texts printed at every log line; all of them go to the run folder, and to wandb where it is on."""

    @property
    def update(self) -> str:
        """Sampling and update in words."""
        advantages = self.advantages
        kept = "no filter" if advantages.filter is None else f"filter at {advantages.filter:g}"
        weights = (
            ""
            if self.engine == "transformers"
            else f" with importance weights {self.importance_correction}"
        )
        return (
            f"by {self.engine}{weights}, epsilon {self.epsilon:g}, advantages by {advantages.normalisation} with {kept}, "
            f"KL {self.kl_coefficient:g}"
        )


class StableReinforceConfig(RolloutConfig):
    """Reinforcement learning of a generative judge (StableReinforce, R1-Reward, arXiv 2505.02835, section 4)."""

    type: Literal["stable_reinforce"]
    template: JudgeTemplate = "r1_reward"
    """What the judge is asked; R1-Reward's prompt [Q], or a short one for the embedded world."""
    rewards: RewardsConfig = RewardsConfig()

    @property
    def summary(self) -> str:
        """The loss in words."""
        return f"stable_reinforce: {self.num_generations} judgements a pair {self.update}"


class JudgeTerm(Section):
    """The scores that a judge gives the answers to a question, as part of a policy's reward."""

    type: Literal["judge"]
    path: str
    """A checkpoint of any kind, or the YAML file of a judge (`type: server` for one behind eval/serve.py). In this process it is
    whole on every rank."""
    form: Literal["raw", "standardised", "sigmoid", "rank", "hybrid", "stratified"] = "raw"
    """What is made of the scores of a question's answers (eval/selection/score_forms.py). `hybrid` is
    BaseReward's: 1 for an answer that the verifier finds right, else sigmoid(score) [Q]."""
    weight: Weight = 1.0
    """Of this part in the sum."""
    shuffled: bool = False
    """Give the scores of a question's answers to one another's: a control, whose rewards say nothing of the answers."""


class VerifierTerm(Section):
    """1 for an answer that states the known one, 0 for any other."""

    type: Literal["verifier"]
    weight: Weight = 1.0
    """Of this part in the sum."""


class LengthTerm(Section):
    """A price on length: 0 up to `free_tokens`, from there linear to -1 at the limit (DAPO, arXiv 2503.14476, section 3.4)."""

    type: Literal["length"]
    free_tokens: Tokens
    """An answer of so many tokens costs nothing; below `method.max_new_tokens`."""
    weight: Weight = 1.0
    """Of this part in the sum."""


class FormatTerm(Section):
    """1 for an answer of the form asked for, 0 for any other."""

    type: Literal["format"]
    pattern: str
    """A regular expression (Python's, in which a dot matches line ends too) for the whole answer."""
    weight: Weight = 1.0
    """Of this part in the sum."""

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"is no regular expression: {error}") from error
        return pattern


Term = Annotated[JudgeTerm | VerifierTerm | LengthTerm | FormatTerm, Field(discriminator="type")]


class PolicyConfig(RolloutConfig):
    """Reinforcement learning of a policy that answers questions, paid by a reward model (BaseReward, arXiv 2509.16127: GRPO)."""

    type: Literal["policy"]
    rewards: list[Term] = Field(min_length=1)
    """The reward is the sum of these, each times its weight."""
    advantages: AdvantageConfig = AdvantageConfig(normalisation="group", filter=None)
    """As GRPO has them, over the answers to one question."""
    num_generations: int = Field(default=8, ge=2, le=1024)
    """Answers sampled to a question; 8 in the paper [Q]."""
    pre_clip: PreClipConfig | None = None
    """StableReinforce's pre-clip; GRPO has none."""
    steps_per_rollout: int = Field(default=1, ge=1, le=10_000)
    """Optimizer steps on one batch of rollouts."""

    @property
    def summary(self) -> str:
        """The reward and the loss in words."""
        terms = " + ".join(f"{term.weight:g} x {term.type}" for term in self.rewards)
        return f"policy: {self.num_generations} answers a question {self.update}; reward {terms}"

    @property
    def judges(self) -> list[JudgeTerm]:
        """The parts of the reward that a judge gives."""
        return [term for term in self.rewards if isinstance(term, JudgeTerm)]

    @property
    def verified(self) -> bool:
        """Whether the reward needs known answers."""
        return any(isinstance(term, VerifierTerm) for term in self.rewards) or any(
            "right" in FORMS[term.form].needs for term in self.judges
        )


IMPORTANCE_CAP = 3.0
"""The largest importance weight; trl's default, stated here so that it cannot change with trl."""

Method = Annotated[
    NaiveConfig | LanguageModelConfig | CriticConfig | StableReinforceConfig | PolicyConfig,
    Field(discriminator="type"),
]

ENTRIES = {
    "rm": ("naive", "critic"),
    "sft": ("language_model",),
    "rl": ("stable_reinforce", "policy"),
}
"""Which methods each entry script trains."""
