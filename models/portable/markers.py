"""`mmrm.data.markers` under a sibling's name, since files that travel import each other alone.

Transformers copies this file into the checkpoint; `save_pretrained` of `reward.py` then puts the
file itself in its place.
"""

from mmrm.data.markers import MarkerError as MarkerError
from mmrm.data.markers import marker_in_prompt as marker_in_prompt
from mmrm.data.markers import marker_in_response as marker_in_response
from mmrm.data.markers import place_images as place_images
