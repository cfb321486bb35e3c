"""Train a model with the language-model loss.

It serves for the cold start of a generative judge (supervised training before reinforcement
learning), and for the pretraining of the tiny backbone of the shapes recipes.

deepspeed train/sft.py recipes/shapes/backbone.yaml                  # pretrain the tiny backbone
python train/sft.py recipes/shapes/backbone.yaml --dry-run
"""

import sys
from pathlib import Path

if not __package__:  # started by its path: import the mmrm of its own clone
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mmrm.data.display.command import exit_on_user_error
from mmrm.train.runs.environment import start

if __name__ == "__main__":
    with exit_on_user_error():
        start(sys.argv[1:], "sft", __doc__)
