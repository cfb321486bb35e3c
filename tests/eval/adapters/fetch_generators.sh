#!/bin/sh
# Download the reward clients of UniRL and verl-omni into a folder: fetch_generators.sh FOLDER
# Only the files that they import are downloaded, so that no framework has to be installed. Files
# that are already there are kept. tests/eval/adapters/generators.py checks their contents.
set -e
folder=$1
raw=https://raw.githubusercontent.com

# fetch NAME URL FILE...: each FILE below URL into the folder NAME.
fetch() {
    name=$1
    url=$2
    shift 2
    for file in "$@"; do
        test -e "$folder/$name/$file" && continue
        mkdir -p "$(dirname "$folder/$name/$file")"
        curl --fail --silent --show-error --location --output "$folder/$name/$file.part" "$url/$file"
        mv "$folder/$name/$file.part" "$folder/$name/$file"
    done
}

unirl=$raw/Tencent-Hunyuan/UniRL/1a7b501e8fe8517b432a130220d2ff462f9b5afa
fetch unirl "$unirl" unirl/reward/remote.py unirl/reward/base.py unirl/types/reward.py \
    unirl/types/primitives.py unirl/utils/media.py unirl/config/require.py \
    unirl/distributed/tensor/batch.py
fetch unirl "$unirl/unirl-reward-service" reward_service/client.py
fetch verl_omni "$raw/verl-project/verl-omni/a1139bafffb5b9711f0a6b6edff8ecaa60bfff30" verl_omni/reward_loop/reward_manager/visual.py \
    verl_omni/reward_loop/reward_manager/multi.py verl_omni/utils/reward_score/__init__.py \
    verl_omni/utils/reward_score/http_scorer_client.py
# The commit of verl that verl-omni requires.
fetch verl_omni "$raw/verl-project/verl/8a694930275061f52ebd538c906ef8819af56dbd" \
    verl/experimental/reward_loop/reward_manager/base.py verl/utils/import_utils.py

if ! test -e "$folder/packages"; then  # what these files import and .venv lacks
    python -m pip install --disable-pip-version-check --quiet --target "$folder/packages.part" \
        aiohttp==3.14.5 omegaconf==2.3.0 requests==2.34.2
    mv "$folder/packages.part" "$folder/packages"
fi
