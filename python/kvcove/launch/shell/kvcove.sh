# SPDX-License-Identifier: Apache-2.0

kv_start_master() {
    kv_serve "$KV_LOGS/master.log" kvcove master \
        --listen "$(kv_address "$LOCAL_IP" "$KV_PORT")" --admin "127.0.0.1:$((KV_PORT + 1))" \
        --data "$KV_LOCAL/master" --credentials "$KV_DIR/servers.toml"
    kv_await "the master" "$KV_LOGS/master.log" grep -q "master at" "$KV_LOGS/master.log"
}

# `kvcove run` starts its command when the owner holds a lease, and starts an owner that dies again.
kv_start_owner() {
    local segment
    segment=$(kv_address "$LOCAL_IP" "$((KV_PORT + 2))")
    kv_serve "$KV_LOGS/run.log" kvcove run --master "$KV_MASTER" --listen "$segment" \
        --memory "$KV_MEMORY" --tenant job --credentials "$KV_DIR/servers.toml" --admin off \
        --socket "$KV_LOCAL/kvcove.sock" --owner-log "$KV_LOGS/owner.log" \
        --ready-timeout "$KV_TIMEOUT" \
        -- bash -c "touch \"\$0\"; exec sleep infinity" "$KV_LOCAL/ready"
    # It gives up by itself, with the end of the owner log; this only bounds it.
    KV_TIMEOUT=$((KV_TIMEOUT + 10)) kv_await "the owner" "$KV_LOGS/run.log" test -e "$KV_LOCAL/ready"
    export KVCOVE_PREFERRED_SEGMENT="$segment"
    # Engines have their own sockets beside it, which vLLM leaves behind: it kills its processes.
    export KVCOVE_SOCKET="$KV_LOCAL/kvcove.sock"
}
