"""The functions of `mmrm.data.markers` that the other files of this folder need.

Files that are saved with a checkpoint import only each other. Transformers therefore copies this
file into the checkpoint, and `save_pretrained` of `reward.py` replaces the copy with the file of
`mmrm.data` that is imported here.
"""

from mmrm.data.markers import REWRITE_ADVICE as REWRITE_ADVICE
from mmrm.data.markers import MarkerError as MarkerError
from mmrm.data.markers import marker_in_prompt as marker_in_prompt
from mmrm.data.markers import marker_in_response as marker_in_response
from mmrm.data.markers import place_images as place_images
from mmrm.data.markers import place_videos as place_videos
from mmrm.data.markers import stray_marker as stray_marker
