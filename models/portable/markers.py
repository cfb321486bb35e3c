"""`mmrm.data.markers` under a name here, because saved files import each other alone.

Transformers copies this file into a checkpoint. `save_pretrained` of `reward.py` then replaces it
with the file that it imports here.
"""

from mmrm.data.markers import MarkerError as MarkerError
from mmrm.data.markers import marker_in_prompt as marker_in_prompt
from mmrm.data.markers import marker_in_response as marker_in_response
from mmrm.data.markers import place_images as place_images
