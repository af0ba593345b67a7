#!/usr/bin/env bash
# Pretrain on this machine: bash launch_scripts/one_node.sh configs/glm_large.yaml [section.key=value ...]
#   PROCESSES    how many to start, from the first GPU on; default: one for each GPU, or 2 without a GPU.
#                To choose the GPUs, leave it unset and set CUDA_VISIBLE_DEVICES
#   MASTER_PORT  where they meet; default: one that is free
#   RESTARTS     how often a run that fails is started again in a row without a newer checkpoint; default: 5
#   PYTHONPATH   gets the repository in front
set -euo pipefail

config=${1:?usage: one_node.sh CONFIG [section.key=value ...]}
shift
repository=$(dirname "$0")/..
export PYTHONPATH=$repository${PYTHONPATH:+:$PYTHONPATH}

number=()
if [[ -n ${PROCESSES:-} ]]; then
    number=(--num_accelerators "$PROCESSES")
elif ! nvidia-smi --list-gpus >/dev/null 2>&1; then
    number=(--num_accelerators 2) # by itself DeepSpeed starts one process on a CPU
fi

port=${MASTER_PORT:-$(python -c 'from megatron_glm.training.launchers import free_port; print(free_port())')}
exec python -m launch_scripts.supervise --restarts "${RESTARTS:-5}" -- \
    deepspeed "${number[@]}" --master_port "$port" "$repository/pretrain_glm.py" --config "$config" "$@"
