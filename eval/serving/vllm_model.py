"""The scalar reward model as vLLM runs it: the parts that all families of backbones share.

The reward head reads one token and replaces the language-model head. `vllm_families.py` has the
class of each family, and `vllm_plugin.py` registers these. Written against vLLM 0.30 to 0.32.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.pooler import DispatchPooler, PoolingParamsUpdate
from vllm.model_executor.layers.pooler.activations import PoolerIdentity
from vllm.model_executor.layers.pooler.seqwise.methods import LastPool
from vllm.model_executor.layers.pooler.seqwise.poolers import pooler_for_classify
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.models.utils import StageMissingLayer, no_init_weights
from vllm.multimodal.processing import BaseProcessingInfo
from vllm.v1.pool.metadata import PoolingMetadata

from mmrm.data.errors import CheckpointError, UserError
from mmrm.data.storage.manifest import verify_settings, verify_weights
from mmrm.eval.serving.vllm_plugin import head_read_of, refuse_joint, refuse_other_families
from mmrm.models.families.registry import family_of
from mmrm.models.portable.head_columns import columns_of, hidden_widths

MAX_NAMED = 5
"""Number of missing tensors that a message names."""
ACTIVATIONS = {
    "none": nn.Identity,
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
}


class ServedHead(nn.Sequential):
    """The reward head that `config.reward_head` describes, in fp32 and without dropout.

    Its modules have the indices that they have in models/portable/reward.py, so that the
    checkpoint's names of weights fit.
    """

    def __init__(self, config: Any) -> None:
        head_config = config.reward_head
        num_features = config.text_config.hidden_size
        widths = hidden_widths(head_config["layers"], head_config["width"], num_features)
        layers: list[nn.Module] = []
        for width in widths:
            layers.append(nn.Linear(num_features, width, dtype=torch.float32))
            layers.append(ACTIVATIONS[head_config["activation"]]())
            layers.append(nn.Identity())  # has the index of training's dropout
            num_features = width
        columns = columns_of(head_config)
        num_columns = len(columns.names)
        layers.append(
            nn.Linear(num_features, num_columns, bias=columns.has_bias, dtype=torch.float32)
        )
        super().__init__(*layers)
        self.columns = columns
        # An option of vLLM may set it: see vllm_plugin.py.
        self.served_names = vars(config).get("served_numbers", ["score"])
        unknown = set(self.served_names) - {"score", *columns.reported_names}
        if unknown:
            raise UserError(
                f"served_numbers asks for {', '.join(sorted(unknown))}. The head of this checkpoint "
                f"has {', '.join(['score', *columns.reported_names])}."
            )

    def forward(self, hidden: Tensor) -> Tensor:
        """Map hidden states (prompts, H) to the numbers of the answer, (prompts, numbers) fp32."""
        columns = hidden
        for layer in self:
            columns = layer(columns)
        scores = self.columns.ranking_scores(columns)
        number_by_name = {"score": scores, **self.columns.attributes(columns)}
        return torch.stack([number_by_name[name] for name in self.served_names], dim=-1)


class ReadLast(LastPool):  # type: ignore[misc]
    """A pooler that returns the hidden state of each prompt's last token.

    It returns NaN for a prompt that does not end with the end of the answer's turn. A NaN becomes
    an error of the request. The hidden state of another token would become a meaningless score, and
    an exception in this class would end the engine.

    Args:
        end_index: Index in a prompt, from its end, at which the answer's turn has to end.
        end_id: Id of the token that ends a turn.
    """

    def __init__(self, end_index: int, end_id: int) -> None:
        super().__init__()
        self.end_index = end_index
        self.end_id = end_id

    def get_pooling_updates(self, task: str) -> PoolingParamsUpdate:
        """Tell vLLM that `forward` needs the tokens of the prompts."""
        return PoolingParamsUpdate(requires_token_ids=True)

    def forward(self, hidden_states: Tensor, pooling_metadata: PoolingMetadata) -> Tensor:
        """Return the hidden state of each prompt's last token, or NaN; fp32 of shape (prompts, H).

        Args:
            hidden_states: The states of all scheduled tokens, shape (tokens, H).
            pooling_metadata: vLLM's positions and ids of the tokens of each prompt.
        """
        last_states: Tensor = super().forward(hidden_states, pooling_metadata).float()
        for prompt_index, ids in enumerate(pooling_metadata.get_prompt_token_ids_cpu()):
            # A slice, because a prompt may be too short to have a token at this index.
            token_at_end = ids[self.end_index :][:1].tolist()
            if token_at_end != [self.end_id]:
                last_states[prompt_index] = torch.nan
        return last_states


class ServedImages(BaseProcessingInfo):  # type: ignore[misc]
    """The processing of a request's images: they are resized by PIL, as in training.

    vLLM's default, torchvision, would change scores by up to 0.002. Videos are not supported. A
    family's class has this class as its first base, and vLLM's class of the family as its second.
    """

    def get_hf_processor(self, **kwargs: object) -> Any:
        """Return the checkpoint's processor, with PIL in place of torchvision.

        Its limits of pixels are those of the checkpoint's preprocessor_config.json.
        """
        processor = super().get_hf_processor(**kwargs)
        family = family_of(self.get_hf_config().model_type)
        image_processor_class = family.parts().image_processor
        # vLLM returns the same processor again, so it may have been changed already.
        if not isinstance(processor.image_processor, image_processor_class):
            settings = processor.image_processor.to_dict()
            processor.image_processor = image_processor_class.from_dict(settings)
        return processor

    def get_supported_mm_limits(self) -> Mapping[str, int | None]:
        """Return vLLM's limits on the media of a request: any number of images, and no videos."""
        return {"image": None}


class RefusedModel(nn.Module):
    """The class for families that vLLM does not serve: creating it raises the error."""

    is_pooling_model = True

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        model_config = vllm_config.model_config
        refuse_other_families(model_config.hf_config.model_type, model_config.model)


class ServedModel(nn.Module):
    """The scalar reward model as a model of vLLM.

    It answers the task `classify` with the raw score, or with the numbers that were asked for. A
    family's class has this class as its first base, and vLLM's class of the family as its second.
    """

    is_pooling_model = True
    config: Any
    """The checkpoint's configuration, which vLLM's class of the family sets."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        config = vllm_config.model_config.hf_config
        checkpoint = vllm_config.model_config.model
        refuse_joint(vars(config), checkpoint)
        head_read = head_read_of(config.reward_head, checkpoint)
        # The language-model head is not created: no text is generated.
        with no_init_weights(
            self,
            lambda module: StageMissingLayer("output", module),
            targets=(LogitsProcessor, ParallelLMHead),
        ):
            super().__init__(vllm_config=vllm_config, prefix=prefix)
        self.checkpoint = checkpoint
        self.head = ServedHead(config)
        classify = pooler_for_classify(
            vllm_config.model_config.pooler_config,
            pooling=ReadLast(head_read.end_index, config.assistant_turn["end"]),
            classifier=self.head,
            act_fn=PoolerIdentity(),
        )
        self.pooler = DispatchPooler({"classify": classify})

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Load a checkpoint's weights, and return the names of the loaded parameters.

        vLLM itself refuses tensors without a parameter, and ignores missing linear layers.

        Args:
            weights: The name and the tensor of each weight of the checkpoint.

        Raises:
            CheckpointError: If the files differ from those that were saved, or tensors are
                missing or hold integers.
        """
        folder = Path(self.checkpoint)  # or the checkpoint's id on the hub
        if folder.is_dir():
            verify_settings(folder)
            verify_weights(folder)
        with torch.device("meta"):
            stock_class = family_of(self.config.model_type).parts().scalar.stock
            stock_model = stock_class(self.config)  # without memory for its weights
        missing = {f"model.{name}" for name, _ in stock_model.named_parameters()}
        missing |= {f"head.{name}" for name in self.head.state_dict()}

        def checked_weights() -> Iterator[tuple[str, Tensor]]:
            """Yield the weights, and remove the name of each from the set of missing weights."""
            for name, tensor in weights:
                if not tensor.is_floating_point():
                    raise CheckpointError(
                        f"{self.checkpoint}: the tensor {name} holds {tensor.dtype}; "
                        "required are floating-point numbers. Converted weights lose their "
                        "scales: use the original checkpoint."
                    )
                missing.discard(name)
                yield name, tensor

        loaded: set[str] = super().load_weights(checked_weights())  # type: ignore[misc]
        if missing:
            examples = ", ".join(sorted(missing)[:MAX_NAMED])
            raise CheckpointError(
                f"{self.checkpoint}: {len(missing)} tensors are missing: {examples} ... "
                "The model would run with random weights in their place. Use a complete checkpoint."
            )
        return loaded
