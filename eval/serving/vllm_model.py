"""The scalar reward model as vLLM runs it: its Qwen2.5-VL without a language-model head, and the reward head on one token.

`vllm_plugin.py` registers it. Written against vLLM 0.30 and 0.31.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Qwen2_5_VLModel, Qwen2_5_VLProcessor, Qwen2VLImageProcessorPil
from vllm.config import VllmConfig
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.pooler import DispatchPooler, PoolingParamsUpdate
from vllm.model_executor.layers.pooler.activations import PoolerIdentity
from vllm.model_executor.layers.pooler.seqwise.methods import LastPool
from vllm.model_executor.layers.pooler.seqwise.poolers import pooler_for_classify
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.models.qwen2_5_vl import (
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLMultiModalProcessor,
    Qwen2_5_VLProcessingInfo,
)
from vllm.model_executor.models.qwen2_vl import Qwen2VLDummyInputsBuilder
from vllm.model_executor.models.utils import StageMissingLayer, no_init_weights
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.v1.pool.metadata import PoolingMetadata

from mmrm.data.storage.manifest import verify_settings, verify_weights
from mmrm.eval.serving.vllm_plugin import read_at

ACTIVATIONS = {
    "none": nn.Identity,
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
}


class ServedHead(nn.Sequential):
    """The head of `config.reward_head` in fp32, without dropout.

    Its modules have the indices that they have in models/portable/reward.py.
    """

    def __init__(self, config: Any) -> None:
        shape = config.reward_head
        features = config.text_config.hidden_size
        fp32 = torch.float32
        width = shape["width"] or features
        parts: list[nn.Module] = []
        for _ in range(shape["layers"] - 1):
            parts += [
                nn.Linear(features, width, dtype=fp32),
                ACTIVATIONS[shape["activation"]](),
                nn.Identity(),
            ]
            features = width
        super().__init__(*parts, nn.Linear(features, 1, bias=False, dtype=fp32))


class ReadLast(LastPool):  # type: ignore[misc]
    """The hidden state of a prompt's last token, or NaN if the token at `place` is not `end`.

    A NaN becomes an error of the request. The hidden state of another token would become a
    meaningless score, and an exception in this class would end the engine.
    """

    def __init__(self, place: int, end: int) -> None:
        super().__init__()
        self.place = place
        self.end = end

    def get_pooling_updates(self, task: str) -> PoolingParamsUpdate:
        """Ask for the tokens of the prompts."""
        return PoolingParamsUpdate(requires_token_ids=True)

    def forward(self, hidden_states: Tensor, pooling_metadata: PoolingMetadata) -> Tensor:
        """Return the hidden state that is read of each prompt, fp32 of shape (prompts, H).

        `hidden_states` are the states of all scheduled tokens, shape (T, H).
        """
        found: Tensor = super().forward(hidden_states, pooling_metadata).float()
        for row, ids in enumerate(pooling_metadata.get_prompt_token_ids_cpu()):
            if ids[self.place :][:1].tolist() != [self.end]:
                found[row] = torch.nan
        return found


class ServedImages(Qwen2_5_VLProcessingInfo):  # type: ignore[misc]
    """Images resized by PIL, as in training (vLLM's default, torchvision, moves scores by up to 0.002), and no videos."""

    def get_hf_processor(self, **kwargs: object) -> Qwen2_5_VLProcessor:
        """Load the checkpoint's processor, with the limits of pixels in its preprocessor_config.json; vLLM caches it."""
        found = super().get_hf_processor(**kwargs)
        if not isinstance(found.image_processor, Qwen2VLImageProcessorPil):
            found.image_processor = Qwen2VLImageProcessorPil.from_dict(
                found.image_processor.to_dict()
            )
        return found

    def get_supported_mm_limits(self) -> Mapping[str, int | None]:
        """Allow any number of images."""
        return {"image": None}


@MULTIMODAL_REGISTRY.register_processor(
    Qwen2_5_VLMultiModalProcessor, info=ServedImages, dummy_inputs=Qwen2VLDummyInputsBuilder
)
class ServedModel(Qwen2_5_VLForConditionalGeneration):  # type: ignore[misc]
    """Answers the task `classify` with the raw score."""

    is_pooling_model = True

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        config = vllm_config.model_config.hf_config
        pooler = vllm_config.model_config.pooler_config
        place, _ = read_at(config.reward_head, vllm_config.model_config.model)
        with no_init_weights(
            self,
            lambda module: StageMissingLayer("output", module),
            targets=(LogitsProcessor, ParallelLMHead),
        ):
            super().__init__(vllm_config=vllm_config, prefix=prefix)
        self.head = ServedHead(config)
        read = ReadLast(place, config.assistant_turn["end"])
        classify = pooler_for_classify(
            pooler, pooling=read, classifier=self.head, act_fn=PoolerIdentity()
        )
        self.pooler = DispatchPooler({"classify": classify})

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Load a checkpoint completely or not at all.

        vLLM itself refuses tensors without a parameter, and ignores missing linear layers.

        Raises:
            CheckpointError: The files differ from those saved.
            ValueError: Tensors are missing, or hold integers.
        """
        folder = Path(self.model_config.model)
        if folder.is_dir():
            verify_settings(folder)
            verify_weights(folder)
        with torch.device("meta"):
            missing = {
                f"model.{name}" for name, _ in Qwen2_5_VLModel(self.config).named_parameters()
            }
        missing |= {f"head.{name}" for name in self.head.state_dict()}

        def seen() -> Iterator[tuple[str, Tensor]]:
            for name, tensor in weights:
                if not tensor.is_floating_point():
                    raise ValueError(
                        f"{self.model_config.model}: the tensor {name} holds {tensor.dtype}; required are floating-point "
                        "numbers. Converted weights lose their scales: use the original checkpoint."
                    )
                missing.discard(name)
                yield name, tensor

        loaded: set[str] = super().load_weights(seen())
        if missing:
            raise ValueError(
                f"{self.model_config.model}: {len(missing)} tensors are missing: {', '.join(sorted(missing)[:5])} ... The model "
                "would run with random weights in their place. Use a complete checkpoint."
            )
        return loaded
