#!/usr/bin/env bash
# All that only a GPU can show, in under eight minutes: the tests of tests/gpu, then the timings of the kernels and of
# training, side by side with what else there is. JSON, a table, plots and what each part said in one directory.
#
#   benchmarks/gpu_check.sh [--dry-run] [--output DIR]
#
# Needs torch >= 2.11 and Triton >= 3.6, and no network: what else is missing comes from .gpu_pack, which
# `python -m benchmarks.gpu.pack` makes where there is one. --dry-run does all of it at toy sizes on a CPU, with the kernels
# in Triton's interpreter. PYTHON chooses the interpreter of Python.
set -euo pipefail
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
output=$repository/runs/gpu_check
dry_run=()
patience=1
while (($#)); do
    case $1 in
        --dry-run) dry_run=(--dry-run) ;;
        --output) output=$2 && shift ;;
        *) echo "usage: $0 [--dry-run] [--output DIR]" >&2 && exit 2 ;;
    esac
    shift
done
mkdir -p "$output"
output=$(cd "$output" && pwd)
cd "$repository"
python=${PYTHON:-python3}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
parts=$scratch/parts
mkdir "$parts"

export PYTHONPATH=$repository:$repository/kernels${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
if ((${#dry_run[@]})); then
    export TRITON_INTERPRET=1 CUDA_VISIBLE_DEVICES= GLM_GPU_REHEARSAL=1
    patience=10 # a CPU may be busy with other things; the limits are those of a GPU
else
    export TRITON_INTERPRET=0
fi
if [[ -d .gpu_pack ]]; then
    "$python" -m benchmarks.gpu.unpack .gpu_pack "$scratch/site"
    export PYTHONPATH=$PYTHONPATH:$scratch/site
    [[ -d ../shared || -n ${GLM_SHARED:-} ]] || export GLM_SHARED=$repository/.gpu_pack/shared
fi

"$python" -m benchmarks.gpu.ready "${dry_run[@]}"

# part NAME SECONDS COMMAND…: a part that fails or hangs takes none of the others along, nor what it found before.
part() {
    local name=$1 limit=$2 code=0
    shift 2
    timeout --kill-after=5 $((limit * patience)) "$@" 2>&1 | tee "$output/$name.log" || code=$?
    echo "$name $code" >>"$parts/status.txt"
}
part tests 150 "$python" -m pytest -q --tb=short -p no:cacheprovider -m gpu tests/gpu
for limit in attention:120 fused:80 training_step:100; do
    name=${limit%:*}
    part "$name" "${limit#*:}" "$python" -m "benchmarks.gpu.$name" --output "$parts" "${dry_run[@]}"
done
"$python" -m benchmarks.gpu.report "$parts" "$output"
