"""`mmrm.data.image_decoding` under a sibling's name: files that travel with a checkpoint import each other alone.

Transformers copies this file into the checkpoint; `save_pretrained` of `reward.py` then puts the decoder itself in its place.
"""

from mmrm.data.image_decoding import upright_rgb as upright_rgb
