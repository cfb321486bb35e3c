"""Recognition of videos by their names and first bytes, and the advice for errors about them."""

from __future__ import annotations

from pathlib import PurePath

VIDEO_SUFFIXES = (
    *(".3gp", ".avi", ".flv", ".m2ts", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".mts"),
    *(".ogv", ".ts", ".vob", ".webm", ".wmv"),
)
"""Endings of the names of videos."""
VIDEO_PART_TYPES = ("video", "video_url", "input_video")
"""Types of a part of a turn with a video."""
VIDEO_COLUMNS = ("video", "videos")
"""Columns of data sets that hold videos."""
VIDEO_TOKEN = "<|video_pad|>"
"""The token of Qwen's tokenizers that stands for a video."""
VIDEO_PART_ADVICE = (
    "Write the place of a video as a video part, or as <video>, and name the video in the column "
    "`videos`."
)
"""The advice about a text with VIDEO_TOKEN, and about a video in the place of an image."""
VIDEO_ADVICE = (
    "Only images are read here: cut a video into frames with `python data/frames.py VIDEOS OUT "
    "--frames 8`, and give these as images."
)
"""The advice if something takes images only."""
FIRST_BYTES = (
    b"\x1aE\xdf\xa3",  # Matroska and WebM
    b"FLV\x01",  # Flash
    b"OggS",
    b"\x00\x00\x01\xba",  # MPEG-1 and MPEG-2, program stream
    b"\x00\x00\x01\xb3",  # the same, video stream
    b"0&\xb2u\x8ef\xcf\x11",  # Windows Media
)
"""First bytes of videos in other containers than MP4 and AVI."""
MP4_BOXES = (b"ftyp", b"moov", b"mdat", b"wide", b"skip", b"free")
"""Types of the first box of an MP4 or QuickTime file."""
STILL_IMAGE_BRANDS = (b"avif", b"avis", b"heic", b"heix", b"heim", b"heis", b"mif1", b"msf1")
"""Brands of still images that are stored in the container of MP4."""


BYTES_TO_RECOGNISE_VIDEO = 16
"""Number of bytes from the beginning of a file by which a video is recognised."""


def media_type(first_bytes: bytes) -> str:
    """Return the media type of a video, such as "video/mp4", by the first bytes of its file."""
    if first_bytes[4:8] in MP4_BOXES:
        return "video/mp4"
    if first_bytes[:4] == b"RIFF":
        return "video/x-msvideo"
    return "video/webm"  # servers recognise the containers of FIRST_BYTES by themselves


def is_video_name(name: str) -> bool:
    """Return True if a path or a URL has the ending of a video's name."""
    without_query = name.partition("?")[0]
    return PurePath(without_query).suffix.lower() in VIDEO_SUFFIXES


def is_video(first_bytes: bytes) -> bool:
    """Return True if a file that begins with `first_bytes` (16 or more) is a video."""
    # MP4 and QuickTime: size and type of the first box, then the brand of the content.
    is_mp4 = first_bytes[4:8] in MP4_BOXES and first_bytes[8:12] not in STILL_IMAGE_BRANDS
    is_avi = first_bytes[:4] == b"RIFF" and first_bytes[8:12] == b"AVI "
    return is_mp4 or is_avi or first_bytes.startswith(FIRST_BYTES)
