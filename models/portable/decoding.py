"""The functions of `mmrm.data.image_decoding` that the other files of this folder need.

Files that are saved with a checkpoint import only each other. Transformers therefore copies this
file into the checkpoint, and `save_pretrained` of `reward.py` replaces the copy with the file of
`mmrm.data` that is imported here.
"""

from mmrm.data.image_decoding import upright_rgb as upright_rgb
