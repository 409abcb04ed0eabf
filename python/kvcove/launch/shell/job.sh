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
