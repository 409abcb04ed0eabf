# SPDX-License-Identifier: Apache-2.0

# The address of this node that packets to the other nodes of the job carry.
kv_local_ip() {
    local host other=
    for host in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
        if [ "$host" != "$SLURMD_NODENAME" ]; then
            other=$host
            break
        fi
    done
    if [ -z "$other" ]; then
        echo 127.0.0.1
        return
    fi
    other=$(getent ahosts "$other") || return
    ip -o route get "${other%% *}" | sed -n "s/.* src \([^ ]*\).*/\1/p"
}

# kv_srun OPTION... COMMAND: runs the command on each node, and exits as kv_run does. srun kills its tasks at once where
# it gets SIGTERM, so the tasks get it instead. Each has 30 s for its command, and 10 s for its owner.
kv_srun() {
    kv_ask() {
        # The last job of an array has the number of the whole array.
        scancel --signal=TERM "${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_}${SLURM_ARRAY_TASK_ID:-$SLURM_JOB_ID}" > /dev/null 2>&1 &
    }
    KV_PATIENCE=45
    kv_run srun "$@"
}
