"""Train with the language-model loss: the cold start of a generative judge, or the pretraining of the embedded backbone.

deepspeed train/sft.py recipes/shapes/backbone.yaml                  # pretrain the embedded backbone
python train/sft.py recipes/shapes/backbone.yaml --dry-run
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the clone, installed or not

from mmrm.data.display.command import command
from mmrm.train.runs.environment import start

if __name__ == "__main__":
    with command():
        start(sys.argv[1:], "sft", __doc__)
