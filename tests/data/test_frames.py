"""Videos cut into frames: evenly spaced, upright, whole or not at all, and read by the source and the benchmark."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mmrm.data.errors import UserError
from mmrm.data.frames import main
from mmrm.eval.benchmarks.registry import BenchmarkConfig, load
from tests.data.sources.fixtures import source_of, write_jsonl

av = pytest.importorskip("av")
PAIR = {"prompt": "What happens?", "chosen": "It brightens.", "rejected": "Nothing."}


def video(path: Path, frames: int, size: tuple[int, int] = (64, 48)) -> Path:
    """Write an MP4 whose frame number n has the grey value 5 n."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt, stream.bit_rate = *size, "yuv420p", 4_000_000
        for number in range(frames):
            picture = Image.new("RGB", size, (5 * number,) * 3)
            container.mux(stream.encode(av.VideoFrame.from_image(picture)))
        container.mux(stream.encode())
    return path


def greys(folder: Path) -> list[int]:
    """Return the numbers that the frames' grey values say, in the order of their names."""
    return [
        round(int(np.asarray(Image.open(path).convert("L"))[20, 20]) / 5)
        for path in sorted(folder.iterdir())
    ]


def test_frames_are_evenly_spaced_and_named_by_their_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    video(tmp_path / "in" / "long" / "clip.mp4", 40)
    video(tmp_path / "in" / "short.mp4", 3)
    arguments = [str(tmp_path / "in"), str(tmp_path / "out"), "--frames", "8", "--workers", "1"]
    main(arguments)
    names = [path.name for path in sorted((tmp_path / "out" / "long" / "clip").iterdir())]
    assert names == [f"{number:06}.jpg" for number in (0, 5, 11, 16, 22, 27, 33, 39)]
    assert greys(tmp_path / "out" / "long" / "clip") == [0, 5, 11, 16, 22, 27, 33, 39]
    assert greys(tmp_path / "out" / "short") == [0, 1, 2]
    assert Image.open(tmp_path / "out" / "short" / "000000.jpg").size == (64, 48)
    main(arguments)
    shown = capsys.readouterr().out
    assert "2 videos cut into up to 8 frames each" in shown
    assert "0 videos cut into up to 8 frames each" in shown
    assert "2 were there already" in shown


def test_what_cannot_be_cut_is_listed_and_leaves_no_folder(tmp_path: Path) -> None:
    video(tmp_path / "good.mp4", 4)
    (tmp_path / "broken.mp4").write_bytes(b"\x00" * 500)
    (tmp_path / "cut_off.mp4").write_bytes((tmp_path / "good.mp4").read_bytes()[:200])
    with pytest.raises(
        SystemExit, match=r"2 videos cannot be cut:\n.*broken.mp4: (.|\n)*cut_off.mp4: "
    ):
        main([str(tmp_path), str(tmp_path), "--frames", "2", "--workers", "1"])
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"good"}
    with pytest.raises(SystemExit, match="there is no video here"):
        main([str(tmp_path / "good"), str(tmp_path), "--frames", "2"])
    video(tmp_path / "good.mkv", 2)
    with pytest.raises(SystemExit, match="differ in their endings alone"):
        main([str(tmp_path), str(tmp_path), "--frames", "2"])


def test_the_source_and_the_benchmark_read_what_was_cut(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    video(folder / "video" / "clip.mp4", 20)
    write_jsonl(folder / "dpo_pairs.jsonl", [PAIR | {"video": "video/clip.mp4"}])
    (folder / "mm_reward_bench.jsonl").write_text(
        json.dumps({"id": "a", "video": "video/clip.mp4", **PAIR}) + "\n"
    )
    benchmark = BenchmarkConfig(name="mm_rlhf_rewardbench", location=str(folder), frames=4)
    with pytest.raises(
        UserError, match=r"no frames of video/clip\.mp4 .* cut them by data/frames\.py"
    ):
        load(benchmark)
    main([str(folder), str(folder), "--frames", "4", "--workers", "2"])
    names = [f"{number:06}.jpg" for number in (0, 6, 12, 19)]
    found = [
        source_of(tmp_path, "mm_rlhf", frames=4).record(0).images,
        load(benchmark).examples[0].images,
    ]
    assert [[path.name for path in images if isinstance(path, Path)] for images in found] == [
        names,
        names,
    ]
