"""Decoding: what is refused, what an image becomes, and that the header alone tells size and tokens."""

from __future__ import annotations

import base64
import io
import os
import struct
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from mmrm.data.encoded_video import VideoConfig
from mmrm.data.errors import ImageError, RecordError
from mmrm.data.image_decoding import upright_rgb
from mmrm.data.images import (
    PatchTokens,
    TileTokens,
    data_uri,
    decode,
    from_data_uri,
    image_path,
    image_size,
    image_tokens_of,
    resized,
)
from mmrm.data.storage.archives import Folder


def encode(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def gradient(width: int = 40, height: int = 30) -> Image.Image:
    rows, columns = np.mgrid[0:height, 0:width]
    return Image.fromarray(
        np.stack([rows * 8 % 256, columns * 6 % 256, (rows + columns) % 256], axis=2).astype(
            np.uint8
        )
    )


def png_header(width: int, height: int) -> bytes:
    """Return a PNG that claims a size and holds no pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF"])
def test_bytes_and_path_give_the_same_pixels(kind: str, tmp_path: Path) -> None:
    data = encode(gradient(), kind)
    (tmp_path / "image").write_bytes(data)
    decoded = decode(data, "r")
    assert decoded.mode == "RGB"
    assert decoded.size == (40, 30)
    assert decoded.tobytes() == decode(tmp_path / "image", "r").tobytes()
    assert image_size(data, "r") == image_size(tmp_path / "image", "r") == (30, 40)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "TIFF", "GIF", "BMP"])
def test_a_truncated_file_names_its_record(kind: str) -> None:
    data = encode(gradient(200, 200), kind)
    with pytest.raises(ImageError, match=r"rlaif_v:17.*truncated or damaged"):
        decode(data[: len(data) * 2 // 3], "rlaif_v:17")


@pytest.mark.parametrize(
    "data", [b"", b"no image", b"\x89PNG\r\n\x1a\n", b"%!PS-Adobe-3.0 EPSF-3.0\n"]
)
def test_what_is_no_image_names_its_record(data: bytes) -> None:
    with pytest.raises(RecordError, match="row 5"):
        decode(data, "row 5")


@pytest.mark.parametrize("kind", ["EPS", "ICO", "PCX"])
def test_a_format_outside_of_the_list_is_refused(kind: str) -> None:
    with pytest.raises(ImageError, match=r"row 6: .* is none of JPEG, PNG"):
        decode(encode(gradient(), kind), "row 6")


def test_a_bomb_is_refused_before_its_pixels_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for width in (20_000, 60_000):  # below and above Pillow's own limit
        with pytest.raises(ImageError, match=r"shapes:1.*too large to decode"):
            decode(png_header(width, 10_000), "shapes:1")
    monkeypatch.setattr("mmrm.data.images.MAX_PIXELS", 1000)
    with pytest.raises(ImageError, match=r"40 x 30 pixels\); allowed are 1,000"):
        decode(encode(gradient()), "r")


def test_the_size_is_read_from_the_header_alone() -> None:
    assert image_size(png_header(640, 480), "r") == (480, 640)
    data = encode(gradient(200, 100))
    assert image_size(data[:100], "r") == (100, 200)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(kind: str, orientation: int) -> None:
    image = Image.new("RGB", (40, 24))
    image.paste((255, 0, 0), (0, 0, 20, 12))
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encode(image, kind, exif=exif)
    decoded = decode(data, "r")
    corner = {
        1: (5, 5),
        2: (-5, 5),
        3: (-5, -5),
        4: (5, -5),
        5: (5, 5),
        6: (-5, 5),
        7: (-5, -5),
        8: (5, -5),
    }[orientation]
    red, green, _ = decoded.getpixel((corner[0] % decoded.width, corner[1] % decoded.height))  # type: ignore[misc]
    assert red > 200 > 60 > green
    assert decoded.size == ((24, 40) if orientation >= 5 else (40, 24))
    assert image_size(data, "r") == (decoded.height, decoded.width)


def test_exif_after_the_pixels_is_passed_over_every_time() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encode(gradient(), exif=exif)
    start = data.index(b"eXIf") - 4
    end = start + 12 + struct.unpack(">I", data[start : start + 4])[0]
    late = data[:start] + data[end:-12] + data[start:end] + data[-12:]
    opened = Image.open(io.BytesIO(late))
    assert (
        upright_rgb(opened).size
        == upright_rgb(opened).size
        == decode(late, "r").size
        == image_size(late, "r")[::-1]
        == (40, 30)
    )


def test_transparency_becomes_white() -> None:
    clear = Image.new("RGBA", (4, 4), (255, 0, 0, 0))
    palette = Image.new("P", (4, 4), 0)
    palette.putpalette([10, 20, 30])
    for data in (
        encode(clear),
        encode(clear, "WEBP", lossless=True),
        encode(palette, transparency=0),
        encode(Image.new("LA", (4, 4))),
    ):
        assert decode(data, "r").getpixel((1, 1)) == (255, 255, 255)
    half = decode(encode(Image.new("RGBA", (4, 4), (255, 0, 0, 128))), "r").getpixel((1, 1))
    assert half == (255, 127, 127)


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bits_are_scaled_not_clipped(kind: str) -> None:
    data = encode(Image.fromarray(np.full((4, 4), 40_000, np.uint16)), kind)
    assert decode(data, "r").getpixel((0, 0)) == (156, 156, 156)


@pytest.mark.parametrize("mode", ["1", "L", "P", "CMYK"])
def test_other_modes_become_rgb(mode: str) -> None:
    decoded = decode(encode(Image.new(mode, (4, 4)), "TIFF"), "r")
    assert decoded.mode == "RGB"


@pytest.mark.parametrize("mode", ["F", "I", "LAB"])
def test_a_mode_without_an_agreed_form_is_refused(mode: str) -> None:
    with pytest.raises(ImageError, match=f"row 9.*mode '{mode}'"):
        decode(encode(Image.new(mode, (4, 4)), "TIFF"), "row 9")


def test_of_an_animation_the_first_frame_is_taken() -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "lime", "blue")]
    data = encode(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert decode(data, "r").getpixel((3, 3)) == (255, 0, 0)


def test_a_missing_file_names_its_record(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"row 3: the image .*gone.png is not there"):
        decode(tmp_path / "gone.png", "row 3")
    with pytest.raises(ImageError, match="row 3"):
        decode(tmp_path, "row 3")


def test_a_path_may_not_leave_its_root(tmp_path: Path) -> None:
    root = tmp_path / "images"
    (root / "deep").mkdir(parents=True)
    (tmp_path / "secret.png").write_bytes(encode(gradient()))
    (root / "inside.png").write_bytes(encode(gradient()))
    (root / "link.png").symlink_to(tmp_path / "secret.png")
    (root / "out").symlink_to(tmp_path)
    (root / "good.png").symlink_to(root / "inside.png")
    for name in (
        "../secret.png",
        "deep/../../secret.png",
        str(tmp_path / "secret.png"),
        "link.png",
        "out/secret.png",
    ):
        with pytest.raises(
            ImageError, match=r"project:4: the path .* outside of the declared image folder"
        ):
            image_path(root, name, "project:4")
    for name in ("inside.png", "deep/../inside.png", "good.png", str(root / "inside.png")):
        assert image_path(root, name, "r") == root / "inside.png"
    with pytest.raises(ImageError, match=r"project:4.*is not there"):
        image_path(root, "other.png", "project:4")


def test_an_owners_link_in_the_folder_is_followed_and_no_other_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, other = tmp_path / "images", tmp_path / "elsewhere" / "coco"
    for folder in (root / "deep", other / "train"):
        folder.mkdir(parents=True)
        (folder / "a.png").write_bytes(encode(gradient()))
    (tmp_path / "secret.png").write_bytes(encode(gradient()))
    (root / "coco").symlink_to(other)
    (root / "again").symlink_to(root / "coco")
    (root / "one.png").symlink_to(other / "train" / "a.png")
    (other / "on").symlink_to(tmp_path)
    (other / "near").symlink_to(other / "train")
    for name in ("coco/train/a.png", "coco/near/a.png", "again/train/a.png", "one.png"):
        assert (
            image_path(root, name, "r", links=True)
            == Folder(root).find(name, "r")
            == other / "train" / "a.png"
        )
        with pytest.raises(
            ImageError, match="outside of the declared image folder"
        ):  # a server's --media-root
            image_path(root, name, "r")
    absolute = str(root / "coco" / "train" / "a.png")
    for name in (
        "coco/../coco/train/a.png",
        "coco/on/secret.png",
        "../secret.png",
        "coco/../../secret.png",
        absolute,
    ):
        with pytest.raises(
            ImageError, match=r"outside of the declared image folder.*behind a link there that"
        ):
            image_path(root, name, "r", links=True)
    assert image_path(root, "deep/../deep/a.png", "r", links=True) == root / "deep" / "a.png"
    monkeypatch.setattr(
        os, "geteuid", lambda: -1
    )  # the folder's owner made the link, whoever reads
    assert Folder(root).find("one.png", "r")
    status = os.stat

    class Others:
        st_uid = -2

    monkeypatch.setattr(
        Path, "stat", lambda self, **how: Others if self == root else status(self, **how)
    )
    with pytest.raises(ImageError, match="outside"):
        image_path(root, "one.png", "r", links=True)


def test_a_missing_image_says_where_it_was_looked_for_and_how_to_name_another_folder(
    tmp_path: Path,
) -> None:
    with pytest.raises(ImageError) as caught:
        Folder(tmp_path).find("a.png", "mine:3")
    assert f"Looked in: {tmp_path}. " in str(caught.value)
    assert "`images: FOLDER`" in str(caught.value)
    assert "image_root: FOLDER" in str(caught.value)


def test_links_of_a_hub_snapshot_lead_to_its_own_files_only(tmp_path: Path) -> None:
    snapshot, blobs = (
        tmp_path / "datasets--x" / "snapshots" / "0123",
        tmp_path / "datasets--x" / "blobs",
    )
    for folder in (snapshot / "images", blobs, tmp_path / "datasets--y" / "blobs"):
        folder.mkdir(parents=True)
    for name, target in (
        ("own", blobs / "abc"),
        ("other", tmp_path / "datasets--y" / "blobs" / "abc"),
    ):
        target.write_bytes(encode(gradient()))
        (snapshot / "images" / f"{name}.png").symlink_to(target)
    assert image_path(snapshot, "images/own.png", "r") == blobs / "abc"
    assert image_path(snapshot / "images", "own.png", "r") == blobs / "abc"
    with pytest.raises(ImageError, match="outside of the declared"):
        Folder(snapshot).find("images/other.png", "r")
    with pytest.raises(ImageError, match="outside of the declared"):
        image_path(snapshot, "images/other.png", "r")
    with pytest.raises(ImageError, match="outside of the declared"):
        image_path(snapshot, "../../blobs/../blobs2", "r")


def test_data_uri() -> None:
    data = encode(gradient())
    assert from_data_uri("data:image/png;base64," + base64.b64encode(data).decode(), "r") == data
    for wrong in (
        "data:image/png,xyz",
        "data:text/plain;base64,AAAA",
        "http://a/b.png",
        "data:image/png;base64,@@@",
    ):
        with pytest.raises(ImageError, match="row 2"):
            from_data_uri(wrong, "row 2")


def picture(kind: str, orientation: int = 1) -> bytes:
    buffer, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = orientation
    Image.new("RGB", (6, 4), "red").save(buffer, kind, exif=exif)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("kind", "mime"), [("JPEG", "jpeg"), ("PNG", "png"), ("WEBP", "webp"), ("GIF", "gif")]
)
def test_a_picture_is_sent_as_the_file_it_is(kind: str, mime: str) -> None:
    content = picture(kind)
    assert (
        data_uri(content, "row") == f"data:image/{mime};base64,{base64.b64encode(content).decode()}"
    )


@pytest.mark.parametrize(
    ("content", "size"), [(picture("BMP"), (6, 4)), (picture("JPEG", orientation=6), (4, 6))]
)
def test_other_formats_and_turned_pictures_are_sent_as_upright_png(
    content: bytes, size: tuple[int, int], tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(content)
    uri = data_uri(tmp_path / "file", "row")
    sent = Image.open(io.BytesIO(base64.b64decode(uri.removeprefix("data:image/png;base64,"))))
    assert (sent.format, sent.size) == ("PNG", size)


@pytest.mark.parametrize(
    ("mode", "kind", "orientation"),
    [
        ("RGB", "PNG", 1),
        ("RGB", "BMP", 1),
        ("RGB", "JPEG", 1),
        ("RGB", "JPEG", 6),
        ("RGB", "WEBP", 8),
        ("L", "JPEG", 3),
        ("CMYK", "JPEG", 1),
        ("RGBA", "PNG", 1),
        ("LA", "PNG", 1),
        ("I;16", "PNG", 1),
        ("I;16", "TIFF", 1),
    ],
)
def test_the_image_that_is_sent_is_the_one_that_is_decoded_here(
    mode: str, kind: str, orientation: int
) -> None:
    """Whatever decodes the data URI without knowing orientation, 16 bits or transparency sees what other judges see."""
    whole = Image.linear_gradient("L").resize((12, 8))
    opened = (
        Image.new("I;16", (12, 8), 40000) if mode == "I;16" else whole.convert("RGB").convert(mode)
    )
    if mode in ("RGBA", "LA"):
        opened.putalpha(90)
    exif, file = Image.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    opened.save(file, kind, **({} if orientation == 1 else {"exif": exif}))
    header, _, content = data_uri(file.getvalue(), "a").partition(",")
    with Image.open(io.BytesIO(base64.b64decode(content))) as sent:
        assert header == f"data:{Image.MIME[str(sent.format)]};base64"
        assert sent.convert("RGB").tobytes() == decode(file.getvalue(), "a").tobytes()


SIDES = st.one_of(
    st.integers(1, 6000), st.integers(1, 400).map(lambda halves: 14 * halves)
)  # where rounding is tied


@given(SIDES, SIDES, st.integers(784, 200_000), st.integers(200_000, 4_000_000))
@settings(deadline=None)
def test_sizes_equal_the_processors(
    height: int, width: int, min_pixels: int, max_pixels: int
) -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    if max(height, width) > 200 * min(height, width):
        with pytest.raises(ImageError, match=r"r: .*200 : 1"):
            image_size(png_header(width, height), "r")
        return
    expected = smart_resize(height, width, factor=28, min_pixels=min_pixels, max_pixels=max_pixels)
    assert image_size(png_header(width, height), "r") == (height, width)
    found = resized(np.array([[height, width], [28, 28]], np.uint32), min_pixels, max_pixels)
    assert tuple(found[0]) == expected


@given(st.data(), st.sampled_from(["PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP"]))
@settings(deadline=None, max_examples=300)
@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's remarks on damaged EXIF
def test_damage_is_always_an_image_error(data: st.DataObject, kind: str) -> None:
    broken = bytearray(encode(gradient(16, 12), kind))
    for position, value in data.draw(
        st.lists(st.tuples(st.integers(0, len(broken) - 1), st.integers(0, 255)), max_size=8)
    ):
        broken[position] = value
    cut = data.draw(st.integers(0, len(broken)))
    for function in (decode, image_size):
        with suppress(ImageError):  # anything else fails the test
            function(bytes(broken[:cut]), "fuzz:0")


def test_a_path_that_cannot_be_followed_is_an_error_of_its_record(tmp_path: Path) -> None:
    (tmp_path / "loop.png").symlink_to("loop.png")
    for name in (
        "a\0b.png",
        "n" * 5000,
        "a/" * 3000 + "b.png",
        "\ud800.png",
        "loop.png",
        "loop.png/one.png",
    ):
        with pytest.raises(
            ImageError, match=r"^project:4: the (file|path) .*(cannot be followed|is not there)"
        ) as caught:
            image_path(tmp_path, name, "project:4")
        assert len(str(caught.value)) < 1000
        str(caught.value).encode()


@pytest.mark.parametrize("data", ["@@@", "\u00e9\u00e9", "\u2800", "abc"])
def test_base64_that_is_none_is_an_error_of_its_record(data: str) -> None:
    with pytest.raises(ImageError, match=r"row 2: .*broken base64"):
        from_data_uri("data:image/png;base64," + data, "row 2")


@pytest.mark.parametrize(
    ("vision", "side"),
    [
        ({"patch_size": 14, "in_channels": 3}, 28),
        ({"patch_size": 16, "spatial_merge_size": 2}, 32),
        ({"num_channels": 3}, 14),
    ],
    ids=["Qwen2.5-VL saved without defaults", "Qwen3-VL", "VideoLLaMA3"],
)
def test_a_token_is_two_patches_wide_unless_the_tower_says_otherwise(
    vision: dict[str, int], side: int
) -> None:
    assert image_tokens_of({"vision_config": vision}, 1000, 10**6) == PatchTokens(1000, 10**6, side)


@given(
    height=st.integers(200, 400),  # neither enlarged nor less than a token high
    width=st.integers(200, 400),
    num_frames=st.integers(1, 400),
    max_frames=st.integers(1, 40),
    max_pixels=st.integers(40 * 784, 10**6),
)
def test_no_video_has_more_tokens_than_the_most(
    height: int, width: int, num_frames: int, max_frames: int, max_pixels: int
) -> None:
    videos = VideoConfig(max_frames=max_frames, max_pixels=max_pixels)
    tokens = PatchTokens(3136, 10**5, videos=videos)
    size = np.array([[height, width, num_frames, num_frames / 10]], np.float64)
    assert tokens.of_videos(size)[0] <= tokens.most_of_video
    in_tiles = TileTokens(1, 4, 448, 256, VideoConfig(form="frames", max_frames=max_frames))
    assert in_tiles.of_videos(size)[0] <= in_tiles.most_of_video


def test_the_most_tokens_of_a_video_are_reached() -> None:
    videos = VideoConfig(max_frames=20, max_pixels=10 * 15680)
    tokens = PatchTokens(3136, 10**6, videos=videos)
    size = np.array([[112, 140, 20, 9.5], [4 * 112, 5 * 112, 20, 9.5]], np.float64)
    assert tokens.of_videos(size).tolist() == [200, 200]
    assert tokens.most_of_video == 200
    frames = PatchTokens(3136, 10**6, videos=VideoConfig(form="frames", num_frames=7))
    assert frames.most_of_video == pytest.approx(2_408_448 / 784, rel=0.01)
