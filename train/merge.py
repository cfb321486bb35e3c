"""Write adapters and their base as one ordinary checkpoint, which loads with plain transformers.

python train/merge.py runs/lora/best merged     # judges to rounding as the adapters do: python eval/run.py merged
"""

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the clone, installed or not

from data.errors import UserError
from data.storage.files import write_whole
from eval.cli import command
from eval.judges.card import CARD
from eval.judges.checkpoint import backbone_of, card_of_adapters
from models.adapters import is_adapter, with_adapters
from models.backbone import load_critic, load_encoder, load_language_model, load_scalar
from train.runs.model_card import reference_scores, write_reference
from train.supervised.integrity import mark_complete


def merge(checkpoint: Path, folder: Path) -> None:
    """Write the adapters of `checkpoint` and their base, added up in the base's dtype, into `folder`.

    A base that was kept in 4 bits while training is taken in its own dtype, so that no quantised weights are written.
    """
    if not is_adapter(checkpoint):
        raise UserError(
            f"{checkpoint} holds no adapters (adapter_config.json); give a checkpoint-N folder of a LoRA run."
        )
    if folder.exists():
        raise UserError(f"{folder} exists already, and nothing is written over; give a new folder.")
    run = card_of_adapters(checkpoint)
    loaders: dict[str, Any] = {
        "naive": load_scalar,
        "critic": load_critic,
        "language_model": lambda backbone, head: load_language_model(backbone),
    }
    adapted: Any = with_adapters(loaders[run.method](run.backbone, run.head), checkpoint)
    adapted.merge_and_unload().save_pretrained(folder)
    load_encoder(backbone_of(checkpoint, run), run.backbone).save_pretrained(folder)
    # Prompts, images and benchmarks stay those of the run, and so do the scores.
    write_whole(folder / CARD, run.model_copy(update={"nf4": False}).model_dump_json(indent=1))
    if run.head is not None:
        write_reference(folder, reference_scores(checkpoint))
    mark_complete(folder)  # so that whatever loads the folder later can check its files


def main() -> None:
    """Read the command line and merge."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    with command():
        merge(options.checkpoint, options.folder)


if __name__ == "__main__":
    main()
