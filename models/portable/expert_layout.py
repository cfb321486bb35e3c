"""The two layouts in which checkpoints hold the weights of experts.

The released checkpoints of Qwen3-VL with experts hold these matrices transposed. Transformers sees
this from the shape of a tensor and of the model's parameter, but under ZeRO-3 it does not find the
parameter's shape, and transposes always. `register_expert_layout` puts that right.

This file is saved with every checkpoint that has a reward head, so it imports torch and
transformers alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from transformers.conversion_mapping import register_checkpoint_conversion_mapping
from transformers.core_model_loading import Transpose, WeightConverter


class TransposeExperts(Transpose):  # type: ignore[misc]
    """Transposes the matrices of experts, (experts, rows, columns), if they do not fit as they are.

    It differs from transformers' operation in nothing but the shape that a parameter has under
    ZeRO-3. A tensor that fits neither way is transposed, and then refused for its shape.
    """

    def __init__(self) -> None:
        super().__init__(dim0=1, dim1=2, check_dims=True)

    def convert(
        self,
        input_dict: dict[str, Any],
        source_patterns: list[str],
        target_patterns: list[str],
        **kwargs: Any,
    ) -> dict[str, Tensor]:
        """Return the tensor in the layout of the model's parameter.

        Args:
            input_dict: The tensor that was read, or a list with it, under its pattern.
            source_patterns: The pattern of the names in checkpoints.
            target_patterns: The pattern of the names in the model.
            kwargs: The `model`, and the name of its parameter, `full_layer_name`.
        """
        [value] = input_dict.values()
        tensor: Tensor = value[0] if isinstance(value, list) else value
        parameter = kwargs["model"].get_parameter(kwargs["full_layer_name"])
        # ZeRO-3 keeps the shape of a partitioned parameter in `ds_shape`.
        shape = parameter.ds_shape if hasattr(parameter, "ds_shape") else parameter.shape
        target = self.get_target_pattern(input_dict, source_patterns, target_patterns)
        if tensor.shape == shape:
            return {target: tensor}
        return {target: tensor.transpose(self.dim0, self.dim1).contiguous()}


def register_expert_layout(model_type: str, weights: Sequence[str]) -> None:
    """Let models of a type read the weights of their experts in both layouts, also under ZeRO-3.

    Args:
        model_type: The `model_type` in config.json.
        weights: The ends of the names of the parameters with these weights.
    """
    converters = [
        WeightConverter(source_patterns=name, target_patterns=name, operations=[TransposeExperts()])
        for name in weights
    ]
    register_checkpoint_conversion_mapping(model_type, converters, overwrite=True)
