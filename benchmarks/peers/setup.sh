#!/bin/sh
# Make benchmarks/peers/.venv: this project, pfl-research and Flower beside one build of torch, for compare.py.
#
#     sh benchmarks/peers/setup.sh
#
# torch comes first and alone, so that nothing else decides which build of it is used. The peers are pinned: the
# records name what was measured. pfl's extra "pytorch" is left out, because it asks for torch only.
set -eu
cd "$(dirname "$0")"
"${PYTHON:-python3}" -m venv .venv
.venv/bin/python -m pip install torch==2.13.0
.venv/bin/python -m pip install torch==2.13.0 numpy==2.4.6 scipy==1.17.1 scikit-learn==1.9.1 safetensors==0.8.0 \
    jaxtyping==0.3.11 setuptools==84.2.1 pfl==0.6.0 "flwr[simulation]==1.41.0"
.venv/bin/python -m pip install --no-deps --no-build-isolation --editable ../..
