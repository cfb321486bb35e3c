"""How a video is told from an image. Nothing here decodes one: every judge sees images, and a video is shown as its frames."""

from __future__ import annotations

from pathlib import PurePath

SUFFIXES = (
    *(
        ".3gp",
        ".avi",
        ".flv",
        ".m2ts",
        ".m4v",
        ".mkv",
        ".mov",
        ".mp4",
        ".mpeg",
        ".mpg",
        ".mts",
        ".ogv",
        ".ts",
        ".vob",
    ),
    *(".webm", ".wmv"),
)
PARTS, COLUMNS = ("video", "video_url", "input_video"), ("video", "videos")
"""What a part of a turn with a video is called, and the columns of data sets that hold videos."""
TOKEN = "<|video_pad|>"
ADVICE = (
    "Judges see images only: cut a video into frames with `python data/frames.py VIDEOS OUT --frames 8`, "
    "and give these as images."
)
STARTS = (
    b"\x1aE\xdf\xa3",
    b"FLV\x01",
    b"OggS",
    b"\x00\x00\x01\xba",
    b"\x00\x00\x01\xb3",
    b"0&\xb2u\x8ef\xcf\x11",
)
"""How Matroska and WebM, Flash, Ogg, MPEG-1 and 2, and Windows Media begin."""
ATOMS = (b"ftyp", b"moov", b"mdat", b"wide", b"skip", b"free")
STILL = (b"avif", b"avis", b"heic", b"heix", b"heim", b"heis", b"mif1", b"msf1")
"""Brands of pictures in the container of MP4."""


def is_video_name(name: str) -> bool:
    """Say whether a path or an address ends as a video's does."""
    return PurePath(name.partition("?")[0]).suffix.lower() in SUFFIXES


def is_video(head: bytes) -> bool:
    """Say whether a file that begins with `head` (16 bytes or more) is a video."""
    mp4 = head[4:8] in ATOMS and head[8:12] not in STILL
    return mp4 or head.startswith(STARTS) or (head[:4] == b"RIFF" and head[8:12] == b"AVI ")
