# SPDX-License-Identifier: Apache-2.0
# What the jobs of `python -m kvcove.launch slurm` are made of: this, kvcove.sh or mooncake.sh, and for a
# whole job job.sh. No apostrophe may stand in these files: they go into bash -c with single quotes.

kv_say() { echo "[kvcove] ${INFER_NODE_RANK:+node $INFER_NODE_RANK: }$*" >&2; }

# kv_fail MESSAGE [LOG]: ends this shell, with the end of a log.
kv_fail() {
    kv_say "$1"
    if [ -s "${2:-}" ]; then
        kv_say "the end of $2:"
        tail -n 50 "$2" >&2
    fi
    exit 1
}

kv_need() {
    local program
    for program; do
        command -v "$program" > /dev/null ||
            kv_fail "$program is not on PATH of $(uname -n): install it there, or give --setup what activates the environment that has it"
    done
}

# kv_address HOST PORT: with brackets around an IPv6 address.
kv_address() { case $1 in *:*) echo "[$1]:$2" ;; *) echo "$1:$2" ;; esac }

# kv_start PROGRAM...: for the keeper.
kv_start() {
    if [ "$log" = - ]; then "$@" {idle}>&- & else "$@" >> "$log" 2>&1 {idle}>&- & fi
    program=$!
}

# For the keeper: asks its program to end.
kv_ask() { kill -TERM "$program" 2> /dev/null; }

# kv_keep LOG SECONDS PROGRAM...: a keeper (KV_KEPT is its pid) runs a program until this shell ends,
# SIGKILL included, or until the keeper gets SIGTERM. Then kv_ask asks the program, which has SECONDS before it is
# killed, and what KV_REMOVE names is removed. The keeper returns what the program returned.
kv_keep() {
    local log=$1 patience=$2 shell=$BASHPID
    shift 2
    (
        set +e
        told="" ended=0 pause=0
        trap "told=1" TERM INT HUP
        # Where the keeper is killed, the kernel tells the program.
        if command -v setpriv > /dev/null; then set -- setpriv --pdeathsig TERM -- "$@"; fi
        parent=$shell
        # Nothing ever comes from this pipe: a read with a time limit sleeps without another process.
        exec {idle}<> <(:)
        kv_start "$@"
        # A parent that has ended is another one, even before somebody has asked for its status.
        while [ -z "$told" ] && [ "$parent" = "$shell" ]; do
            if ! kill -0 "$program" 2> /dev/null; then
                [ -e "$KV_LOCAL/again_$BASHPID" ] || break
                # Within this second the end of the job shows, which may be what has ended the program.
                if [ "$((pause += 1))" -gt 10 ]; then
                    wait "$program"
                    status=$?
                    if [ "$((ended += 1))" -gt 5 ]; then
                        kv_say "what writes $log has ended $ended times, now with status $status: it is not started again"
                        break
                    fi
                    kv_say "what writes $log has ended with status $status: it is started again ($ended of 5)"
                    kv_start "$@"
                    pause=0
                fi
            fi
            read -r -t 0.1 -u "$idle"
            read -r _ _ _ parent _ < "/proc/$BASHPID/stat"
        done
        trap "" TERM INT HUP  # another signal must not interrupt the wait below
        kv_ask
        for ((i = 0; i < patience * 20; ++i)); do
            kill -0 "$program" 2> /dev/null || break
            sleep 0.05
        done
        kill -KILL "$program" 2> /dev/null
        wait "$program"
        status=$?
        rm -rf -- "${KV_REMOVE[@]}"
        exit "$status"
    ) < /dev/null &
    KV_KEPT=$!
}

# kv_serve LOG PROGRAM...: the same for what serves the job beside its command. It is no job of this
# shell, which others may wait for, and ends when this shell exits.
kv_serve() {
    local log=$1
    shift
    : > "$log" || kv_fail "cannot write $log"
    kv_keep "$log" 10 "$@"
    disown "$KV_KEPT"
    KV_KEEPERS="$KV_KEPT ${KV_KEEPERS:-}"
}

# Ends what kv_serve has started, the last one first.
kv_end() {
    local keeper
    for keeper in ${KV_KEEPERS:-}; do
        kill -TERM "$keeper" 2> /dev/null || continue
        while kill -0 "$keeper" 2> /dev/null; do sleep 0.05; done
    done
    KV_KEEPERS=
    rm -rf -- "${KV_REMOVE[@]}"
}

# kv_await WHAT LOG TEST...: waits until what kv_serve has started last passes a test.
kv_await() {
    local what=$1 log=$2 end=$((SECONDS + KV_TIMEOUT))
    shift 2
    until "$@"; do
        kill -0 "$KV_KEPT" 2> /dev/null || kv_fail "$what ended before it was ready" "$log"
        [ "$SECONDS" -lt "$end" ] || kv_fail "waited $KV_TIMEOUT s for $what" "$log"
        sleep 0.05
    done
}

# From now on, what kv_serve has started last is started again where it ends by itself, up to five
# times. Before, an end is a reason not to go on.
kv_again() { touch "$KV_LOCAL/again_$KV_KEPT"; }

# kv_run PROGRAM...: runs the command of the job, and exits as it does. Signals are passed on.
kv_run() {
    local command status=0 told=""
    KV_REMOVE=()
    # After a signal has interrupted a wait, the next wait may answer -1 (bash 5.2). After a signal has interrupted
    # a command in a trap, the shell may end. So the trap only notes, and wait is called when the command has ended.
    trap "told=1" TERM INT HUP
    kv_keep - "${KV_PATIENCE:-30}" "$@"
    command=$KV_KEPT
    exec {idle}<> <(:)
    while kill -0 "$command" 2> /dev/null; do
        if [ -n "$told" ]; then
            told=""  # first: a signal that comes from here on is noted anew
            kill -TERM "$command" 2> /dev/null || true
        fi
        read -r -t 0.1 -u "$idle" || true
    done
    trap "" TERM INT HUP
    wait "$command" || status=$?
    trap : TERM INT HUP
    exit "$status"
}

# Names what belongs to this job: its directory, which all nodes see, and its ports. Other jobs may use the same OUTPUT_DIR.
kv_begin() {
    [ -n "${SLURM_JOB_ID:-}" ] || kv_fail "SLURM_JOB_ID is not set: this runs in a job of SLURM"
    KV_JOB="${SLURM_JOB_ID}_${SLURM_RESTART_COUNT:-0}_${SLURM_STEP_ID:-batch}"
    KV_DIR="$OUTPUT_DIR/kvcove/job_$KV_JOB"
    KV_PORT=$((KV_FIRST_PORT + SLURM_JOB_ID % 1250 * 8))
    export KV_JOB KV_DIR KV_PORT
}

# kv_process PID: prints NODE BOOT NAMESPACE PID START, which no other process ever has.
kv_process() {
    local stat
    local -a after
    read -r stat 2> /dev/null < "/proc/$1/stat" || return
    # The name of the program, in parentheses, may have spaces. The start is the 20th word after it.
    read -r -a after <<< "${stat##*) }"
    echo "${SLURM_CLUSTER_NAME:-}/${SLURMD_NODENAME:-$(uname -n)} $(< /proc/sys/kernel/random/boot_id) $(readlink /proc/self/ns/pid) $1 ${after[19]}"
}

# kv_sweep DIRECTORY...: removes those that earlier jobs of this user have left on this node: the node died, or all
# shells of a job were killed at once. The file "shell" in each names the shell that was to remove it. A directory
# remains unless that shell is known to have ended: it may be of a job that runs.
kv_sweep() {
    local place line node boot namespace pid here_node here_boot here_namespace
    read -r here_node here_boot here_namespace _ <<< "$(kv_process "$BASHPID")"
    for place; do
        if [ ! -O "$place" ] || [ -L "$place" ] || [ ! -r "$place/shell" ]; then continue; fi
        read -r line < "$place/shell" || continue
        read -r node boot namespace pid _ <<< "$line"
        [ "$node" = "$here_node" ] || continue
        if [ "$boot" = "$here_boot" ]; then
            [ "$namespace" = "$here_namespace" ] || continue
            [ "$(kv_process "$pid")" != "$line" ] || continue
        fi
        kv_say "an earlier job has left $place: it is removed"
        rm -rf -- "$place" || true
    done
}

# kv_own DIRECTORY: has it removed at the end, or by a later job where this shell and its keepers are killed.
kv_own() {
    KV_REMOVE+=("$1")
    kv_process "$BASHPID" > "$1/shell"
}

# kv_node RANK: names what belongs to this node, and ends it with this shell.
kv_node() {
    local -a before
    if [ -z "${KV_LOCAL:-}" ]; then
        # What was to be done at the end of this shell goes first: it may end engines.
        eval "before=($(trap -p EXIT))"
        # shellcheck disable=SC2064  # the command as it is now
        trap "${before[2]:+${before[2]}
}kv_end" EXIT
    fi
    kv_sweep "${TMPDIR:-/tmp}"/kvcove-* "$OUTPUT_DIR"/kvcove/job_*
    KV_LOCAL=$(mktemp -d "${TMPDIR:-/tmp}/kvcove-XXXXXX") || kv_fail "no directory in ${TMPDIR:-/tmp}"
    KV_REMOVE=()
    kv_own "$KV_LOCAL"
    KV_LOGS="$OUTPUT_DIR/$KV_NAME/$KV_JOB/node_$1"
    mkdir -p "$KV_LOGS" || kv_fail "cannot make $KV_LOGS"
}

kv_token() {
    kvcove token "$1" --scopes "$2" --credentials "$KV_DIR/servers.toml" --output "$KV_DIR/$1.toml" > /dev/null ||
        kv_fail "cannot make a token of this job in $KV_DIR"
}

# The first node: the tokens of this job, its master, and where that is. The master listens where
# other hosts reach it, so it lets in only who shows a token, from a file that
# no other user may read.
kv_head() {
    kv_need kvcove
    kv_node 0
    mkdir -p "$OUTPUT_DIR/kvcove" || kv_fail "cannot make $OUTPUT_DIR/kvcove"
    mkdir -m 700 "$KV_DIR" || kv_fail "cannot make $KV_DIR"
    kv_own "$KV_DIR"
    kv_token cluster owner,admin
    kv_token job read,write,reset
    kv_start_master
    kv_again
    kv_address "$LOCAL_IP" "$KV_PORT" > "$KV_DIR/master.new"
    mv "$KV_DIR/master.new" "$KV_DIR/master" || kv_fail "cannot write $KV_DIR/master"
    kv_say "the master is at $(cat "$KV_DIR/master"), its log is $KV_LOGS/master.log"
}

# Each node: an owner that holds a lease. Then what engines need is exported.
kv_join() {
    kv_need kvcove
    local end=$((SECONDS + KV_TIMEOUT))
    until [ -s "$KV_DIR/master" ]; do
        [ "$SECONDS" -lt "$end" ] ||
            kv_fail "waited $KV_TIMEOUT s for the first node to write $KV_DIR/master: is $OUTPUT_DIR on a file system that all nodes share? Its log is $OUTPUT_DIR/$KV_NAME/$KV_JOB/node_0/master.log"
        sleep 0.05
        # Opening a directory of NFS is what makes a new file in it show at once.
        ls "$KV_DIR" > /dev/null 2>&1 || true
    done
    read -r KV_MASTER < "$KV_DIR/master"
    kv_node "$INFER_NODE_RANK"
    # Engines share only what they hash alike.
    export PYTHONHASHSEED=0
    export KVCOVE_TOKEN="$KV_DIR/job.toml"
    export KVCOVE_POOL="kvcove://$KV_MASTER"
    kv_start_owner
    kv_say "the owner of $KV_MEMORY at $LOCAL_IP holds a lease of the master at $KV_MASTER; logs are in $KV_LOGS"
}
