"""The functions of `mmrm.models.packing.positions` that the other files of this folder need.

Files that are saved with a checkpoint import only each other. Transformers therefore copies this
file into the checkpoint, and `save_pretrained` of `reward.py` replaces the copy with the file of
`mmrm.models.packing` that is imported here.
"""

from mmrm.models.packing.positions import mrope as mrope
