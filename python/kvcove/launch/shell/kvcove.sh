# SPDX-License-Identifier: Apache-2.0

kv_start_master() {
    kv_serve "$KV_LOGS/master.log" kvcove master \
        --listen "$(kv_address "$LOCAL_IP" "$KV_PORT")" --admin "127.0.0.1:$((KV_PORT + 1))" \
        --data "$KV_LOCAL/master" --credentials "$KV_DIR/servers.toml"
    kv_await "the master" "$KV_LOGS/master.log" grep -q "master at" "$KV_LOGS/master.log"
}

# kv_disk: PATH:SIZE of a disk for this job. The master knows the job only, so what an earlier one left is of no use.
kv_disk() {
    local place bytes=$KV_DISK_BYTES
    mkdir -p "$KV_DISK" || kv_fail "cannot make $KV_DISK"
    kv_sweep "$KV_DISK"/kvcove-*
    place=$(mktemp -d "$KV_DISK/kvcove-XXXXXX") || kv_fail "cannot write in $KV_DISK"
    kv_own "$place"
    if [ "$bytes" = 0 ]; then
        bytes=$(($(stat -f -c "%a * %S" "$KV_DISK") / 2)) || kv_fail "cannot tell what is free in $KV_DISK"
    fi
    KV_DISK_SPEC="$place:$bytes"
    kvcove doctor --disk "$KV_DISK_SPEC" > "$KV_LOGS/disk.log" 2>&1 ||
        kv_say "kvcove doctor finds something about $KV_DISK_SPEC: see $KV_LOGS/disk.log"
}

# `kvcove run` starts its command when the owner holds a lease, and starts an owner that dies again.
kv_start_owner() {
    local segment
    segment=$(kv_address "$LOCAL_IP" "$((KV_PORT + 2))")
    KV_DISK_SPEC=
    [ -z "$KV_DISK" ] || kv_disk
    kv_serve "$KV_LOGS/run.log" kvcove run --master "$KV_MASTER" --listen "$segment" \
        --memory "$KV_MEMORY" --tenant job --credentials "$KV_DIR/servers.toml" --admin off \
        --socket "$KV_LOCAL/kvcove.sock" --owner-log "$KV_LOGS/owner.log" \
        --ready-timeout "$KV_TIMEOUT" ${KV_DISK_SPEC:+--disk "$KV_DISK_SPEC"} \
        -- bash -c "touch \"\$0\"; exec sleep infinity" "$KV_LOCAL/ready"
    # It gives up by itself, with the end of the owner log; this only bounds it.
    KV_TIMEOUT=$((KV_TIMEOUT + 10)) kv_await "the owner" "$KV_LOGS/run.log" test -e "$KV_LOCAL/ready"
    export KVCOVE_PREFERRED_SEGMENT="$segment"
    # Engines have their own sockets beside it, which vLLM leaves behind: it kills its processes.
    export KVCOVE_SOCKET="$KV_LOCAL/kvcove.sock"
}
