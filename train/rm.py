"""Train a reward model: the Naive-RM, or a critic.

deepspeed train/rm.py recipes/basereward.yaml                        # all GPUs of a node
deepspeed train/rm.py recipes/shapes/naive.yaml                      # a laptop, five minutes
python train/rm.py recipes/basereward.yaml --dry-run                 # the plan; no weights, no network, no GPU
deepspeed train/rm.py recipes/shapes/naive.yaml optim.learning_rate=1e-4 --resume
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the clone, installed or not

from mmrm.data.display.command import command
from mmrm.train.runs.environment import start

if __name__ == "__main__":
    with command():
        start(sys.argv[1:], "rm", __doc__)
