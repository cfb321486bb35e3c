"""The functions of `mmrm.data.frame_sampling` that the other files of this folder need.

Files that are saved with a checkpoint import only each other. Transformers therefore copies this
file into the checkpoint, and `save_pretrained` of `reward.py` replaces the copy with the file of
`mmrm.data` that is imported here.
"""

from mmrm.data.frame_sampling import FRAMES_OF_PATCH as FRAMES_OF_PATCH
from mmrm.data.frame_sampling import NoDecoderError as NoDecoderError
from mmrm.data.frame_sampling import SampledVideo as SampledVideo
from mmrm.data.frame_sampling import VideoError as VideoError
from mmrm.data.frame_sampling import frame_size as frame_size
from mmrm.data.frame_sampling import sampled_frames as sampled_frames
