"""Train a reward model that scores responses, with or without a critique before the score.

deepspeed train/rm.py recipes/basereward.yaml                        # on all GPUs of a machine
deepspeed train/rm.py recipes/shapes/naive.yaml                      # on a laptop, in five minutes
python train/rm.py recipes/basereward.yaml --dry-run                 # only print the plan
deepspeed train/rm.py recipes/shapes/naive.yaml optim.learning_rate=1e-4 --resume
"""

import sys
from pathlib import Path

if not __package__:  # started by its path: import the mmrm of its own clone
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mmrm.data.display.command import exit_on_user_error
from mmrm.train.runs.environment import start

if __name__ == "__main__":
    with exit_on_user_error():
        start(sys.argv[1:], "rm", __doc__)
