"""Everything that all ranks would import and compute alike; their server does it once (`ranks.py`)."""

from __future__ import annotations

import gc

import deepspeed.runtime.zero.muon.muon_optimizer  # noqa: F401

import mmrm.train.runs.build  # noqa: F401
from mmrm.data.storage.code_digest import code_digest

code_digest("mmrm.data.synthetic.benchmark_files")
# A collection in a rank would write to the objects of all modules, and the system would copy them.
gc.collect()
gc.freeze()
