#!/usr/bin/env bash
# Everything worth measuring on a GPU, the most important first: stopped within 8 minutes, whatever fails.
#
#   benchmarks/gpu.sh [RESULTS [DATA]]
#
# RESULTS: folder of the records (benchmarks/results). DATA: folder of the data sets, for accuracy on Fashion-MNIST.
# PYTHON names a python with torch and CUDA (python3); nothing needs to be installed.
set -u
here=$(cd "$(dirname "$0")/.." && pwd)
results=$(realpath -m "${1:-$here/benchmarks/results}")
data=${2:+$(realpath -m "$2")}
mkdir -p "$results"
cd "$here" || exit 1
export PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
failed=0
if ! "${PYTHON:-python3}" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
    echo "gpu.sh: ${PYTHON:-python3} has no torch that finds a CUDA device; set PYTHON to one that has. Nothing was measured."
    exit 2
fi

part() { # seconds (all of them, with 3 to kill each part, below 480), name of the record, script, options
    local limit=$1 name=$2
    shift 2
    echo "== $name"
    rm -f "$results/$name.json" # an old record must not be taken for a new one
    timeout -k 3 "$limit" "${PYTHON:-python3}" "$@" --device cuda --json "$results/$name.json" && return
    echo "== $name: failed or stopped after $limit seconds ($?)"
    failed=1
}

part 75 gpu_step-cifar_cnn benchmarks/gpu_step.py --model cifar_cnn
part 50 gpu_step-mlp benchmarks/gpu_step.py --model mlp
part 50 gpu_step-emnist_cnn benchmarks/gpu_step.py --model emnist_cnn
part 45 gpu_step-cifar_cnn-tf32 benchmarks/gpu_step.py --model cifar_cnn --tf32
if [ -n "$data" ]; then
    part 50 gpu_accuracy benchmarks/gpu_accuracy.py "$data"
else
    echo "== gpu_accuracy: left out, no folder of data sets given"
fi
part 70 gpu_step-resnet18 benchmarks/gpu_step.py --model resnet18
part 35 gpu_step-cifar_cnn-autotune benchmarks/gpu_step.py --model cifar_cnn --autotune
part 35 gpu_step-cifar_cnn-channels_first benchmarks/gpu_step.py --model cifar_cnn --channels-first
part 35 gpu_step-cifar_cnn-alpha0.1 benchmarks/gpu_step.py --model cifar_cnn --alpha 0.1
exit $failed
