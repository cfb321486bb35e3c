"""`mmrm.data.image_decoding` under a name here, because saved files import each other alone.

Transformers copies this file into a checkpoint. `save_pretrained` of `reward.py` then replaces it
with the file that it imports here.
"""

from mmrm.data.image_decoding import upright_rgb as upright_rgb
