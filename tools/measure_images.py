"""Images a second of one core, from the file to the patches that the model takes.

    python -m tools.measure_images [--family qwen2_5_vl] [--repeats 15]

For each size of image the command prints the milliseconds of processor time of each step, and the
images a second with the patches of the stock image processor and with those of tables
(models/image_patches.py). The steps take turns, so that all of them have the machine's other work
beside them alike. The images are smooth noise in JPEG files of quality 90.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import statistics
import time
from collections.abc import Callable

import numpy as np
import transformers
from PIL import Image

from mmrm.data.images import PatchTokens, decode
from mmrm.models.config import BackboneConfig
from mmrm.models.families.registry import FAMILIES, PUBLISHED
from mmrm.models.image_patches import StockPatches, TablePatches
from mmrm.train.studies.speed.workload import vision_tokens

SIZES = ((640, 480), (1024, 768), (2048, 1536))
"""Width and height of the images in pixels."""
SHARPNESS = 8
"""Pixels for each number of the noise. A photograph has about as many bytes for its pixels."""


def jpeg(width: int, height: int) -> bytes:
    """Return a JPEG file of smooth noise."""
    small = (height // SHARPNESS, width // SHARPNESS, 3)
    noise = np.random.default_rng(0).integers(0, 256, small, np.uint8)
    image = Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def medians(steps: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return the median milliseconds of processor time of each step; the steps take turns."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for repeat in range(repeats + 1):
        for name, step in steps.items():
            start = time.process_time()
            step()
            if repeat > 0:  # the first time, tables are made
                times[name].append(1e3 * (time.process_time() - start))
    return {name: statistics.median(found) for name, found in times.items()}


def main() -> None:
    """Measure, and print a line for each size of image."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", default="qwen2_5_vl", choices=list(FAMILIES))
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    family = FAMILIES[arguments.family]
    shape = next(shape for shape in PUBLISHED.values() if isinstance(shape, family.shape))
    config = shape.config()
    limits = BackboneConfig(path="none", dtype="float32")
    patch = family.images.planar_patch(config.vision_config)
    sizes = family.images.tokens(config.vision_config, limits)
    if patch is None or not isinstance(sizes, PatchTokens):
        parser.error(f"{arguments.family} uses the stock image processor")
    processor = family.parts().image_processor(
        **family.images.arguments(config.vision_config, limits),
        patch_size=patch.patch_size,
        temporal_patch_size=patch.temporal_patch_size,
        merge_size=patch.merge_size,
    )
    stock = StockPatches(processor, vision_tokens(config))
    tables = TablePatches(stock, patch, sizes)
    print(
        f"{family.title}, transformers {transformers.__version__}, one of {os.cpu_count()} cores, "
        f"{arguments.repeats} repeats; milliseconds of processor time"
    )
    print("size, KB, decode, stock patches, patches by tables, digest; images a second of a core")
    for width, height in SIZES:
        file = jpeg(width, height)
        image = decode(file, "the image")
        steps: dict[str, Callable[[], object]] = {
            "decode": lambda file=file: decode(file, "the image"),  # type: ignore[misc]
            "stock": lambda image=image: stock(image),  # type: ignore[misc]
            "tables": lambda image=image: tables(image),  # type: ignore[misc]
            "digest": lambda image=image: hashlib.sha256(image.tobytes()),  # type: ignore[misc]
        }
        found = medians(steps, arguments.repeats)
        common = found["decode"] + found["digest"]
        before = 1e3 / (common + found["stock"])
        after = 1e3 / (common + found["tables"])
        milliseconds = ", ".join(f"{value:.1f}" for value in found.values())
        print(
            f"{width} x {height}, {len(file) // 1000}, {milliseconds}; {before:.1f} before, "
            f"{after:.1f} with tables: {after / before:.2f} times as many",
            flush=True,
        )


if __name__ == "__main__":
    main()
