"""Train a model by reinforcement learning: a generative judge, or a policy.

A judge learns to compare the responses of preference pairs (StableReinforce). A policy learns to
answer questions, rewarded by reward models or by rules.

deepspeed train/rl.py recipes/r1_reward_rl.yaml           # begins with the result of train/sft.py
deepspeed train/rl.py recipes/shapes/judge_rl.yaml        # generated images, on a laptop
python train/rl.py recipes/r1_reward_rl.yaml --dry-run
"""

import sys
from pathlib import Path

if not __package__:  # started by its path: import the mmrm of its own clone
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mmrm.data.display.command import exit_on_user_error
from mmrm.train.runs.environment import start

if __name__ == "__main__":
    with exit_on_user_error():
        start(sys.argv[1:], "rl", __doc__)
