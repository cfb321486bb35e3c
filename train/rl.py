"""Train a generative judge by reinforcement learning: StableReinforce on preference pairs.

deepspeed train/rl.py recipes/r1_reward_rl.yaml                      # from a cold start by train/sft.py
deepspeed train/rl.py recipes/shapes/judge_rl.yaml                   # the embedded world, on a laptop
python train/rl.py recipes/r1_reward_rl.yaml --dry-run
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the clone, installed or not

from mmrm.data.display.command import command
from mmrm.train.runs.environment import start

if __name__ == "__main__":
    with command():
        start(sys.argv[1:], "rl", __doc__)
