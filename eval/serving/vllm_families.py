"""The class of each family of backbones for vLLM: the shared model on vLLM's own backbone.

`SERVED_MODELS` in `vllm_plugin.py` has a row for each class. A family is a class for the processing
of images and a class for the model. Each has the shared class of `vllm_model.py` as its first base,
and vLLM's class as its second.
"""

from collections.abc import Set
from typing import Any

from vllm.model_executor.models.interns1 import (
    InternS1DummyInputsBuilder,
    InternS1ForConditionalGeneration,
    InternS1MultiModalProcessor,
    InternS1ProcessingInfo,
)
from vllm.model_executor.models.qwen2_5_vl import (
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLMultiModalProcessor,
    Qwen2_5_VLProcessingInfo,
)
from vllm.model_executor.models.qwen2_vl import (
    Qwen2VLDummyInputsBuilder,
    Qwen2VLForConditionalGeneration,
    Qwen2VLMultiModalProcessor,
    Qwen2VLProcessingInfo,
)
from vllm.model_executor.models.qwen3_vl import (
    Qwen3VLDummyInputsBuilder,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMultiModalProcessor,
    Qwen3VLProcessingInfo,
)
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.processing import BaseProcessingInfo

from mmrm.eval.serving.vllm_model import ServedImages, ServedModel
from mmrm.models.portable.images import Tiles


class Qwen2VLImages(ServedImages, Qwen2VLProcessingInfo):  # type: ignore[misc]
    """The processing of images for Qwen2-VL."""


@MULTIMODAL_REGISTRY.register_processor(
    Qwen2VLMultiModalProcessor, info=Qwen2VLImages, dummy_inputs=Qwen2VLDummyInputsBuilder
)
class ServedQwen2VL(ServedModel, Qwen2VLForConditionalGeneration):  # type: ignore[misc]
    """The scalar reward model on Qwen2-VL."""


class Qwen2_5VLImages(ServedImages, Qwen2_5_VLProcessingInfo):  # type: ignore[misc]
    """The processing of images for Qwen2.5-VL."""


@MULTIMODAL_REGISTRY.register_processor(
    Qwen2_5_VLMultiModalProcessor, info=Qwen2_5VLImages, dummy_inputs=Qwen2VLDummyInputsBuilder
)
class ServedQwen2_5VL(ServedModel, Qwen2_5_VLForConditionalGeneration):  # type: ignore[misc]
    """The scalar reward model on Qwen2.5-VL."""


class Qwen3VLImages(ServedImages, Qwen3VLProcessingInfo):  # type: ignore[misc]
    """The processing of images for Qwen3-VL."""

    def get_supported_mm_processor_kwargs(self) -> Set[str]:
        """Return the names of the options of images; vLLM's own function also expects videos."""
        names: Set[str] = BaseProcessingInfo.get_supported_mm_processor_kwargs(self)
        return names


@MULTIMODAL_REGISTRY.register_processor(
    Qwen3VLMultiModalProcessor, info=Qwen3VLImages, dummy_inputs=Qwen3VLDummyInputsBuilder
)
class ServedQwen3VL(ServedModel, Qwen3VLForConditionalGeneration):  # type: ignore[misc]
    """The scalar reward model on Qwen3-VL."""


class InternVLImages(ServedImages, InternS1ProcessingInfo):  # type: ignore[misc]
    """The processing of images for InternVL, whose format of transformers vLLM names InternS1."""

    def get_hf_processor(self, **kwargs: object) -> Any:
        """Return the checkpoint's processor, with PIL and the number of tokens of a tile.

        The number is in processor_config.json, which our checkpoints do not have. Without the file
        it is 256, which is right for the released checkpoints only.
        """
        processor = super().get_hf_processor(**kwargs)
        processor.image_seq_length = Tiles.tokens_per_tile(self.get_hf_config())
        return processor


@MULTIMODAL_REGISTRY.register_processor(
    InternS1MultiModalProcessor, info=InternVLImages, dummy_inputs=InternS1DummyInputsBuilder
)
class ServedInternVL(ServedModel, InternS1ForConditionalGeneration):  # type: ignore[misc]
    """The scalar reward model on InternVL 3 and 3.5."""
