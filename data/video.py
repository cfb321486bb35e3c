"""Recognition of videos in the place of images, and the advice that errors about them give.

Every judge sees images, and a video is shown as its frames. Only the command data/frames.py decodes
videos.
"""

from __future__ import annotations

from pathlib import PurePath

SUFFIXES = (
    *(".3gp", ".avi", ".flv", ".m2ts", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".mts"),
    *(".ogv", ".ts", ".vob", ".webm", ".wmv"),
)
"""Endings of the names of videos."""
PARTS = ("video", "video_url", "input_video")
"""Types of a part of a turn with a video."""
COLUMNS = ("video", "videos")
"""Columns of data sets that hold videos."""
TOKEN = "<|video_pad|>"
ADVICE = (
    "Judges see images only: cut a video into frames with `python data/frames.py VIDEOS OUT "
    "--frames 8`, and give these as images."
)
STARTS = (
    b"\x1aE\xdf\xa3",  # Matroska and WebM
    b"FLV\x01",  # Flash
    b"OggS",
    b"\x00\x00\x01\xba",  # MPEG-1 and MPEG-2, program stream
    b"\x00\x00\x01\xb3",  # the same, video stream
    b"0&\xb2u\x8ef\xcf\x11",  # Windows Media
)
"""First bytes of videos in other containers than MP4 and AVI."""
ATOMS = (b"ftyp", b"moov", b"mdat", b"wide", b"skip", b"free")
"""Types of the first box of an MP4 or QuickTime file."""
STILL = (b"avif", b"avis", b"heic", b"heix", b"heim", b"heis", b"mif1", b"msf1")
"""Brands of pictures in the container of MP4."""


def is_video_name(name: str) -> bool:
    """Return True if a path or an address has the ending of a video."""
    return PurePath(name.partition("?")[0]).suffix.lower() in SUFFIXES


def is_video(head: bytes) -> bool:
    """Return True if a file that begins with `head` (16 bytes or more) is a video."""
    is_mp4 = head[4:8] in ATOMS and head[8:12] not in STILL
    is_avi = head[:4] == b"RIFF" and head[8:12] == b"AVI "
    return is_mp4 or is_avi or head.startswith(STARTS)
