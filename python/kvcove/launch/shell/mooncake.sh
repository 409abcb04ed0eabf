# SPDX-License-Identifier: Apache-2.0

# The programs keep sockets in XDG_RUNTIME_DIR, and read KVCOVE_CREDENTIALS; engines do not get it.
kv_mooncake() {
    local log=$1
    shift
    kv_need "$1"
    kv_serve "$log" env XDG_RUNTIME_DIR="$KV_LOCAL" KVCOVE_CREDENTIALS="$KV_DIR/servers.toml" "$@"
}

kv_start_master() {
    kv_mooncake "$KV_LOGS/master.log" mooncake_master \
        -rpc_address="$LOCAL_IP" -rpc_port="$KV_PORT" -metrics_port="$((KV_PORT + 1))" \
        -enable_http_metadata_server -http_metadata_server_host="$LOCAL_IP" \
        -http_metadata_server_port="$((KV_PORT + 3))" -default_kv_lease_ttl=3600000 \
        -data="$KV_LOCAL/master" ${KV_DISK:+-enable_offload=true "-root_fs_dir=$KV_DISK"}
    kv_await "mooncake_master" "$KV_LOGS/master.log" grep -q "serving at" "$KV_LOGS/master.log"
}

# kv_healthy HOST PORT: mooncake_client answers 200 while its owner holds a lease.
kv_healthy() {
    (
        exec 3<> "/dev/tcp/$1/$2" || exit
        printf "GET /health HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" "$(kv_address "$1" "$2")" >&3
        read -r -t 5 -u 3 _ status _ && [ "$status" = 200 ]
    ) 2> /dev/null
}

kv_start_owner() {
    local metadata="http://${KV_MASTER%:*}:$((KV_PORT + 3))/metadata" segment
    segment=$(kv_address "$LOCAL_IP" "$((KV_PORT + 2))")
    if [ -n "$KV_DISK" ]; then
        mkdir -p "$KV_DISK" || kv_fail "cannot make $KV_DISK"
        export MOONCAKE_OFFLOAD_FSDIR="$KV_DISK"
        export MOONCAKE_OFFLOAD_FILE_STORAGE_PATH="$KV_DISK"
        export MOONCAKE_OFFLOAD_ENABLE_EVICTION=true
    fi
    kv_mooncake "$KV_LOGS/client.log" mooncake_client \
        -host="$segment" -port="$((KV_PORT + 4))" -master_server_address="$KV_MASTER" \
        -metadata_server="$metadata" -protocol=rdma -global_segment_size="$KV_BYTES" -tenant_id=job \
        ${KV_DEVICES:+"-device_names=$KV_DEVICES"} ${KV_DISK:+-enable_offload=true}
    kv_await "mooncake_client" "$KV_LOGS/client.log" kv_healthy "$LOCAL_IP" "$((KV_PORT + 4))"
    kv_again
    export MOONCAKE_PREFERRED_SEGMENT="$segment"
    export MOONCAKE_CONFIG_PATH="$KV_LOGS/config.json"
    kv_need python3
    python3 -c "import json, sys; print(json.dumps(json.loads(sys.argv[1]) | dict(master_server_address=sys.argv[2], metadata_server=sys.argv[3])))" \
        "$KV_CONFIG" "$KV_MASTER" "$metadata" > "$MOONCAKE_CONFIG_PATH" ||
        kv_fail "cannot write $MOONCAKE_CONFIG_PATH"
}
