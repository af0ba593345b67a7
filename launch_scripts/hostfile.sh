#!/usr/bin/env bash
# Pretrain on several machines: bash launch_scripts/hostfile.sh configs/glm_large.yaml [section.key=value ...]
#   HOSTFILE     lines `host slots=GPUS`, the host of rank 0 first; required
#   MASTER_ADDR  name or address of the first host that all others reach; default: its name in the hostfile
#   MASTER_PORT  a port that is free on that host; default: 29500
#   NODE_RANK    this machine's line in the hostfile, from 0: start the script on every machine yourself.
#                Unset: start it on one, and ssh and pdsh start the others (no password may be asked)
#   RESTARTS     how often a run that fails is started again in a row without a newer checkpoint; default: 5
#   PDSH_SSH_ARGS_APPEND  options of ssh; default: a minute without a word from a host ends the connection to it
#   PYTHONPATH   gets the repository in front
set -euo pipefail

config=${1:?usage: hostfile.sh CONFIG [section.key=value ...]}
shift
repository=$(dirname "$0")/..
export PYTHONPATH=$repository${PYTHONPATH:+:$PYTHONPATH}

# ssh itself would wait for ever for a host that has lost its power, and the supervisor for ssh.
export PDSH_SSH_ARGS_APPEND=${PDSH_SSH_ARGS_APPEND:--o ServerAliveInterval=15 -o ServerAliveCountMax=4}

hostfile=${HOSTFILE:?set HOSTFILE to a file with a line "host slots=GPUS" for each machine}
first_host=$(awk '!/^[[:space:]]*(#|$)/ { print $1; exit }' "$hostfile")

by_hand=()
if [[ -n ${NODE_RANK:-} ]]; then
    by_hand=(--no_ssh --node_rank "$NODE_RANK")
fi

exec python -m launch_scripts.supervise --restarts "${RESTARTS:-5}" -- \
    deepspeed --hostfile "$hostfile" --master_addr "${MASTER_ADDR:-$first_host}" --master_port "${MASTER_PORT:-29500}" \
    "${by_hand[@]}" "$repository/pretrain_glm.py" --config "$config" "$@"
