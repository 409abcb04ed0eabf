#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The command as programs and people use it: cli_test.sh KVCOVE TRACE
set -u
kvcove=$1
trace=$2
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
failed=0
passed=0

check() { # NAME EXPECTED-STATUS PATTERN-IN-OUTPUT COMMAND...
  local name=$1 status=$2 pattern=$3
  shift 3
  timeout 300 "$@" >"$directory/out" 2>"$directory/err" </dev/null
  local got=$?
  if [ $got -ne "$status" ] || ! cat "$directory/out" "$directory/err" | grep -qE -- "$pattern"; then
    echo "FAILED: $name: status $got (expected $status), looked for '$pattern' in:"
    head -c 600 "$directory/out" "$directory/err"
    failed=$((failed + 1))
  else
    passed=$((passed + 1))
  fi
}

check "help" 0 "serve" "$kvcove" --help
check "version" 0 "protocol 2, segment layout 4, control store 2" "$kvcove" --version
check "unknown option" 2 "did you mean '--memory'" "$kvcove" serve --memroy 4GiB
check "a store without a prefix" 2 "write etcd://HOST:2379,HOST:2379,HOST:2379/PREFIX" "$kvcove" master --store etcd://h1:2379
check "a store and a directory" 2 "excludes" "$kvcove" master --store etcd://h1/p --data "$directory/m"
for where in "--store etcd://h1/p" "--data $directory/m"; do
  # shellcheck disable=SC2086  # two words
  check "a master is not taken over: a standby" 2 "Run several, so that a standby leads" "$kvcove" master $where --take-over
  # shellcheck disable=SC2086
  check "a master is not taken over: start it again" 2 "start it again with its --data" "$kvcove" master $where --take-over
done
check "a master that is not taken over has touched nothing" 0 "untouched" sh -c "test -e $directory/m || echo untouched"
check "shards of masters that believe no clock" 2 "does not go with --strict" "$kvcove" master --store etcd://h1/p --shards on --strict
check "a master that clients cannot be sent to" 2 "say with --advertise" "$kvcove" master --store etcd://h1/p --listen 0.0.0.0:0 --insecure
echo 'user = "kvcove"' >"$directory/user.toml"
check "an open password file" 2 "closed to all others" "$kvcove" master --store etcd://h1/p --store-user-file "$directory/user.toml"
chmod 600 "$directory/user.toml"
check "a password file without one" 2 "needs both" "$kvcove" master --store etcd://h1/p --store-user-file "$directory/user.toml"
check "a backup of nothing" 2 "say where the facts are" "$kvcove" store backup "$directory/backup"
check "a backup of a directory without a pool" 2 "No such file" "$kvcove" store backup "$directory/backup" --data "$directory/none"
echo "no backup" >"$directory/backup"
check "no backup" 2 "is no whole backup" "$kvcove" store restore "$directory/backup" --data "$directory/restored"
check "unknown command" 2 "did you mean 'replay'" "$kvcove" reply
check "unknown option of a subcommand's command" 2 "Run 'kvcove admin keys --help'" "$kvcove" admin keys acme
check "an unknown command without a near name" 2 "'frobnicate' is no command of 'kvcove'$" "$kvcove" frobnicate now
check "it says how to list commands" 2 "Run 'kvcove --help' for the list of commands" "$kvcove" frobnicate
check "an unknown command of a command" 2 "'frobnicate' is no command of 'kvcove admin'$" "$kvcove" admin frobnicate
check "an unknown option instead of a command" 2 "'--frobnicate' is no option of 'kvcove'$" "$kvcove" --frobnicate
check "no command" 2 "'kvcove' needs a command" "$kvcove"
check "no number" 2 "--interval: 'x' is not a number" "$kvcove" top --interval x
check "a number below zero" 2 "--timeout-ms: '-5' is not a whole number, 0 or more" "$kvcove" status --timeout-ms=-5
check "a number that is too large" 2 "--timeout-ms: 99999999999999999999 is too large" "$kvcove" status --timeout-ms 99999999999999999999
check "a flag with another value" 2 "--json: 'maybe' is not true or false" "$kvcove" status --json=maybe
check "wrong size" 2 "--memory: 'lots' is not a size" "$kvcove" serve --memory lots --socket "$directory/a/s"
check "too much memory" 2 "can give .* now; ask for less" "$kvcove" serve --memory 190GiB --socket "$directory/a/s"
for policy in best s3fifo; do
  check "wrong policy $policy" 2 "'$policy' is not an eviction policy; use default or lru" "$kvcove" serve --policy $policy --memory 1MiB --socket "$directory/a/s"
done
check "the policies in the help" 0 "eviction policy: default or lru" "$kvcove" serve --help
check "wrong huge pages" 2 "give auto, require or off" "$kvcove" serve --huge-pages yes --memory 1MiB --socket "$directory/a/s"
check "huge pages that the host lacks" 2 "sysctl -w vm.nr_hugepages=[0-9]+" "$kvcove" serve --huge-pages require --memory 190GiB --socket "$directory/a/s"
check "wrong quota" 2 "acme=2GiB:1GiB" "$kvcove" serve --quota acme --memory 1MiB --socket "$directory/a/s"
check "guarantees too much" 2 "guarantee" "$kvcove" serve --quota a=9MiB:9MiB --memory 1MiB --socket "$directory/a/s"
printf '[owner]\nmemory = "32MiB"\n' >"$directory/good.toml"
printf '[owner]\nmemroy = "32MiB"\n' >"$directory/bad.toml"
check "open address" 2 "insecure" "$kvcove" master --listen 0.0.0.0:7400 --data "$directory/m"
check "open address of an owner" 2 "insecure" "$kvcove" owner --listen 0.0.0.0:0 --socket "$directory/a/s"
check "address without port" 2 "names no host" "$kvcove" master --listen :7400
check "wrong admission" 2 "none of policy, all, keep and never" "$kvcove" serve --disk-admit some --memory 1MiB --socket "$directory/a/s"
check "wrong write rate" 2 "such as 200MiB/s" "$kvcove" serve --disk-write-rate fast --memory 1MiB --socket "$directory/a/s"
check "wrong disk quota" 2 "such as acme=2GiB:1GiB" "$kvcove" serve --disk-quota acme --memory 1MiB --socket "$directory/a/s"
check "wrong disk bandwidth" 2 "not NAMESPACE=READ" "$kvcove" serve --disk-bandwidth acme --memory 1MiB --socket "$directory/a/s"
check "disk quota without a disk" 2 "add --disk" "$kvcove" serve --disk-quota acme=2GiB --memory 1MiB --socket "$directory/a/s"
check "wrong rate of a disk bandwidth" 2 "such as 200MiB/s" "$kvcove" serve --disk-bandwidth acme=1MiB:fast --memory 1MiB --socket "$directory/a/s"
check "the admin interface of one host on an open address" 2 "--credentials FILE" "$kvcove" serve --admin 0.0.0.0:1 --memory 1MiB --socket "$directory/a/s"
check "metrics of one host on an open address" 2 "--metrics .* namespaces' names are in the metrics" "$kvcove" serve --metrics 0.0.0.0:1 --memory 1MiB --socket "$directory/a/s"
printf '[serve]\ndisk = "/nowhere:1GiB"\ndisk-admit = "all"\n' >"$directory/disk.toml"
check "disk in the configuration" 0 'disk="/nowhere:1GiB"' "$kvcove" --config "$directory/disk.toml" serve --print-config
check "disk in the environment" 0 'disk-write-rate="9MiB"' env KVCOVE_DISK_WRITE_RATE=9MiB "$kvcove" --config "$directory/disk.toml" serve --print-config
check "run with a disk that cannot be in a cluster" 2 "at least" "$kvcove" run --disk "$directory:1MiB" --master 127.0.0.1:1 --socket "$directory/disk-run/s" --memory 1MiB --ready-timeout 20 -- true
check "doctor: no disk" 1 "No such file" "$kvcove" doctor --disk /nowhere/at/all:1GiB --memory 1MiB --data "$directory/doctor"
check "doctor: a small disk" 1 "at least" "$kvcove" doctor --disk "$directory:1MiB" --memory 1MiB --data "$directory/doctor"
check "doctor: a disk in memory" 1 "tmpfs" "$kvcove" doctor --disk /dev/shm:1GiB --memory 1MiB --data "$directory/doctor"
check "one disk twice" 2 "are one disk" "$kvcove" serve --disk "$directory:64MiB,$directory/../$(basename "$directory"):64MiB" --memory 1MiB --socket "$directory/a/s"
check "a disk without its size" 2 "not PATH:SIZE" "$kvcove" serve --disk "$directory:64MiB" --disk /nowhere --memory 1MiB --socket "$directory/a/s"
check "doctor: two disks, one too small" 1 "at least" "$kvcove" doctor --disk "$directory:64MiB" --disk "$directory/x:1MiB" --memory 1MiB --data "$directory/doctor"
check "doctor: no size" 2 "not PATH:SIZE" "$kvcove" doctor --disk /nowhere --memory 1MiB --data "$directory/doctor"
check "config" 0 'memory="32MiB"' "$kvcove" --config "$directory/good.toml" owner --print-config
check "environment over config" 0 'memory="16MiB"' env KVCOVE_MEMORY=16MiB "$kvcove" --config "$directory/good.toml" owner --print-config
check "flag over environment" 0 'memory="8MiB"' env KVCOVE_MEMORY=16MiB "$kvcove" --config "$directory/good.toml" owner --memory 8MiB --print-config
check "limits of a master" 0 'max-tenant-calls=77' env KVCOVE_MAX_TENANT_CALLS=77 "$kvcove" master --print-config
check "limits of an owner" 0 'max-total-bytes="1GiB"' "$kvcove" owner --max-total-bytes 1GiB --print-config
for server in serve master owner; do
  check "what is printed for $server is a configuration" 0 "^\[$server\]" sh -c '"$0" --print-config "$1" >"$2" && "$0" --config "$2" --print-config "$1"' "$kvcove" $server "$directory/printed.toml"
done
check "one with a store, too" 0 'store="etcd://h1/p"' sh -c '"$0" master --store etcd://h1/p --print-config >"$1" && "$0" --config "$1" master --print-config' "$kvcove" "$directory/printed.toml"
check "a reader of stdout that has ended" 0 "ended with 141" "$kvcove" run --memory 4MiB --socket "$directory/pipe/s" -- bash -c 'until "$0" metrics >/dev/null 2>&1; do sleep 0.1; done; exec 3> >(true); wait $!; "$0" metrics >&3; echo "ended with $?"' "$kvcove"
check "a limit that is no size" 2 "max-total-bytes" "$kvcove" master --data "$directory/limits" --max-total-bytes much
printf '[ownr]\nmemory = "32MiB"\n' >"$directory/section.toml"
check "unknown config section" 2 "section \[ownr\].*did you mean \[owner\]" "$kvcove" --config "$directory/section.toml" owner --print-config
check "unknown words in their order" 2 "not expected: one --two" "$kvcove" status one --two
check "help within 80 columns" 0 "wide" sh -c 'for command in serve owner run status keys admin; do COLUMNS=80 "$1" $command --help || exit 1; done | awk "length(\$0) > 80 && !/^ +-/ { print; bad = 1 } END { exit bad }" && echo wide enough' sh "$kvcove"
check "unknown config key" 2 "did you mean 'memory'" "$kvcove" --config "$directory/bad.toml" owner --print-config
check "missing trace" 2 "cannot read the trace" "$kvcove" policy /nowhere
echo '{"timestamp": 0}' >"$directory/broken.jsonl"
check "broken trace" 2 "broken.jsonl:1: the field 'input_length' is missing" "$kvcove" replay "$directory/broken.jsonl"
check "unknown trace format" 2 "bailian" "$kvcove" policy "$trace" --trace-format csv
check "a trace of another format" 2 "prompt_token_ids" "$kvcove" policy "$trace" --trace-format vllm
check "hints without a trace" 2 "no --workload" "$kvcove" policy "$trace" --workload loop --hints
check "a disk and ablations" 2 "without --ablations" "$kvcove" policy "$trace" --disk-capacity 9 --ablations
check "zero capacity" 2 "at least one block" "$kvcove" policy "$trace" --capacity 0

mkdir -m 755 "$directory/open"
check "open directory" 2 "such as '[^']*/kvcove" "$kvcove" serve --memory 1MiB --socket "$directory/open/s" --data "$directory/d1"
mkdir -m 1777 "$directory/shared"
mkdir -m 777 "$directory/planted"
ln -s "$directory" "$directory/link"
for data in shared planted link; do
  check "master with data in $data" 2 "the data directory '[^']*/$data'" "$kvcove" master --listen 127.0.0.1:0 --admin off --data "$directory/$data"
  check "serve with data in $data" 2 "the data directory '[^']*/$data'" "$kvcove" serve --memory 1MiB --socket "$directory/a/s" --data "$directory/$data"
  check "doctor with data in $data" 1 "the data directory '[^']*/$data'" "$kvcove" doctor --memory 1MiB --data "$directory/$data"
done
if [ -n "$(find "$directory/shared" "$directory/planted" -mindepth 1)" ]; then echo "FAILED: something was left in a shared directory"; failed=$((failed + 1)); fi
for command in "serve --memory 1MiB --socket /tmp/kvcove-cli-test.sock --data $directory/d1" "serve --memory 1MiB --socket /kvcove-cli-test.sock --data $directory/d1" \
  "master --listen 127.0.0.1:0 --admin off --data /tmp" "serve --memory 1MiB --socket $directory/a/s --data $directory/shared"; do
  # shellcheck disable=SC2086
  check "kvcove $command" 2 "name another directory" "$kvcove" $command
  if grep -q chmod "$directory/err"; then echo "FAILED: kvcove $command suggests chmod: $(cat "$directory/err")"; failed=$((failed + 1)); fi
done
mkdir -m 700 "$directory/data"
head -c 100 /dev/zero | tr '\0' 'x' >"$directory/data/generations"
check "another's data" 2 "no generation file" "$kvcove" serve --memory 1MiB --socket "$directory/b/s" --data "$directory/data"
printf 'kvcovegn\011\0\0\0%080d' 0 >"$directory/data/generations"
check "another version's data" 2 "format version 9" "$kvcove" serve --memory 1MiB --socket "$directory/b/s" --data "$directory/data"

begins=("$kvcove" --log-config owner --listen 0.0.0.0:0 --master etcd://user:secret@127.0.0.1:1/p --memory 8MiB --socket "$directory/a/s")
check "the log begins with the options" 2 '^[^ ]+ info kvcove\[[0-9]+\] kvcove [0-9.]+ owner: socket=.* memory="8MiB".* master="etcd://\*\*\*@127.0.0.1:1/p" listen="0.0.0.0:0"' "${begins[@]}"
check "without passwords" 0 "^none$" sh -c '"$@" 2>&1 | grep -q secret || echo none' sh "${begins[@]}"
check "only that of a server" 1 "^no owner at" "$kvcove" --log-config status --socket "$directory/none"
check "doctor of a container" 0 "/dev/shm: .* kvcove keeps nothing there" sh -c '"$@"; true' sh "$kvcove" doctor --container --memory 1MiB --data "$directory/doctor"
check "doctor of a container of an unknown role" 2 "--role pod: give one of serve, owner, master, engine" "$kvcove" doctor --container --role pod

# $KVCOVE_ADMIN names an endpoint to ask; no server listens there.
for server in master owner serve; do
  check "$server listens at its own place" 0 'admin="(127\.0\.0\.1:748[01]|off)"' env KVCOVE_ADMIN=192.0.2.1:1 "$kvcove" "$server" --print-config
  check "a variable for where $server listens" 0 'admin="127\.0\.0\.1:1"' env KVCOVE_ADMIN=192.0.2.1:1 KVCOVE_ADMIN_LISTEN=127.0.0.1:1 "$kvcove" "$server" --print-config
done
# The variables are for other commands and for engines: without --admin nothing reads their files.
KVCOVE_CREDENTIALS=/nowhere KVCOVE_TLS_AUTHORITY=/nowhere KVCOVE_ADMIN=192.0.2.1:1 "$kvcove" --log off serve --memory 8MiB --socket "$directory/run/s" &
daemon=$!
for _ in $(seq 1200); do [ -S "$directory/run/s" ] && break; sleep 0.05; done
check "socket in use" 2 "in use" "$kvcove" serve --memory 1MiB --socket "$directory/run/s" --data "$directory/d2"
check "data in use" 2 "in use" "$kvcove" serve --memory 1MiB --socket "$directory/c/s" --data "$directory/run/data"
check "replay on a pool" 0 '"wrong_bytes":0' "$kvcove" replay "$trace" --limit 100 --pool "unix:$directory/run/s" --engines 2 --json
for _ in $(seq 1200); do [ -S "$directory/run/admin-s" ] && break; sleep 0.05; done
check "health of a server" 0 "/run/s: ok$" "$kvcove" health --socket "$directory/run/s"
check "health of one that may be used" 0 "/run/s: ok$" "$kvcove" health --ready --socket "$directory/run/s"
check "health by the admin socket" 0 "ok$" "$kvcove" health --admin "unix:$directory/run/admin-s"
python3 -c 'import socket, sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])' "$directory/run/s.left"
check "health beside a socket that a killed server has left" 0 "/run/s.left: nobody serves it$" "$kvcove" health --socket "$directory/run/s"
check "health of a socket that a killed server has left" 1 "nobody serves the socket '[^']*/s.left'" "$kvcove" health --socket "$directory/run/s.left"
rm "$directory/run/s.left"
check "health of nobody" 1 "nobody serves the socket '[^']*/none'; --admin HOST:PORT names" "$kvcove" health --socket "$directory/none"
check "health of nobody at a port" 1 "127.0.0.1:1: " "$kvcove" health --admin 127.0.0.1:1
check "health of two" 2 "give one of them" "$kvcove" health --admin 127.0.0.1:1 --socket "$directory/none"
# The pool of one host, by its admin socket: named by a flag, by a variable, by the pool's address.
check "status of one host" 0 "hit ratio" "$kvcove" status --socket "$directory/run/s"
check "status: what more memory would bring" 0 '"expected":\{"asked":[0-9]+,"distinct":[0-9]+,"hit_ratio"' "$kvcove" status --socket "$directory/run/s" --json
check "status by the endpoint" 0 '"role":"host"' "$kvcove" status --admin "unix:$directory/run/admin-s" --json
check "status in its order" 0 "^role +host" "$kvcove" admin --admin "unix:$directory/run/admin-s" status
check "namespaces of one host" 0 "^NAMESPACE" "$kvcove" namespaces --socket "$directory/run/s"
name=$(sed -n 2p "$directory/out" | cut -d' ' -f1)
check "keys of one host" 0 '"keys":\[\{.*"tier":"memory"' env KVCOVE_SOCKET="$directory/run/s" "$kvcove" keys --limit 3 --json
key=$(grep -oE '"key":"[^"]*"' "$directory/out" | head -1 | cut -d'"' -f4)
check "a key of one host" 0 " at $directory/run/s" env KVCOVE_POOL="unix:$directory/run/s" "$kvcove" key "$key"
check "a flag before a variable" 0 " at $directory/run/s" env KVCOVE_ADMIN=127.0.0.1:1 "$kvcove" key "$key" --socket "$directory/run/s"
check "status: a flag before a variable" 0 "run/s: NUMA node" env KVCOVE_ADMIN=127.0.0.1:1 "$kvcove" status --socket "$directory/run/s"
check "status: an endpoint before a socket" 0 "^role +host" env KVCOVE_ADMIN="unix:$directory/run/admin-s" KVCOVE_SOCKET="$directory/none" "$kvcove" status
check "two endpoints" 2 "give one of them" "$kvcove" keys --socket "$directory/run/s" --admin "unix:$directory/run/admin-s"
check "why of one host" 0 "nowhere: not put since the owner started" "$kvcove" why no-such-key --socket "$directory/run/s"
check "a namespace that is near" 2 "did you mean '$name'" "$kvcove" keys --namespace "${name}x" --socket "$directory/run/s"
check "a prefix of one host" 0 "^1 of 2 keys, weights w[0-9a-f]{32}; the next one: never put" "$kvcove" prefix "$name" "$key" no-such-key --socket "$directory/run/s"
check "a prefix in no namespace" 2 "did you mean '$name'" "$kvcove" prefix "${name}x" "$key" --socket "$directory/run/s"
check "a prefix of bytes" 2 "is no UTF-8" "$kvcove" prefix "$name" $'k\xff' --socket "$directory/run/s"
check "versions of one host" 0 "$name +w[0-9a-f]{32} +[0-9]+[kMG]iB +unused" "$kvcove" versions --socket "$directory/run/s"
check "a prune below versions" 2 "step-9" "$kvcove" versions prune "$name" --before step-9 --socket "$directory/run/s"
check "a prune without a version" 2 "--before is required" "$kvcove" versions prune "$name" --socket "$directory/run/s"
check "an engine without facts" 2 "no engine 'one' has left its facts" "$kvcove" why-not one other --pool "unix:$directory/run/s"
check "an engine of a socket" 2 "no engine 'one' has left its facts" "$kvcove" why-not one other --socket "$directory/run/s"
check "the values without a version are not all" 2 "with version ''" "$kvcove" remove "$name" --version "" --pattern "*" --socket "$directory/run/s"
check "remove of one host" 0 "removed +1" "$kvcove" remove "$name" --pattern "$key" --socket "$directory/run/s"
check "why after it" 0 "nowhere: removed" "$kvcove" why "$key" --socket "$directory/run/s"
check "reset of one host" 0 "proven +yes" "$kvcove" reset "$name" --socket "$directory/run/s"
check "keys after it" 0 "no such keys" "$kvcove" keys --namespace "$name" --socket "$directory/run/s"
check "tasks of one host" 0 "no tasks" "$kvcove" tasks --socket "$directory/run/s"
check "metrics of one host" 0 "kvcove_owner_sessions" "$kvcove" metrics --socket "$directory/run/s"
check "what one host has not" 2 "has no /v1/members" "$kvcove" admin --admin "unix:$directory/run/admin-s" members
check "curl's way" 0 '"role":"host"' python3 -c '
import socket, sys
with socket.socket(socket.AF_UNIX) as s:
    s.connect(sys.argv[1])
    s.sendall(b"GET /v1/status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    print(b"".join(iter(lambda: s.recv(4096), b"")).decode())' "$directory/run/admin-s"
# An endpoint of something else, and of another user.
python3 -c '
import http.server, sys
class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"[1]")
    def log_message(self, *words): pass
server = http.server.HTTPServer(("127.0.0.1", 0), Answers)
print(server.server_port, flush=True)
server.serve_forever()' >"$directory/foreign" &
foreign=$!
for _ in $(seq 1200); do [ -s "$directory/foreign" ] && break; sleep 0.05; done
check "what is no admin endpoint" 2 "answered 200" "$kvcove" keys --admin "127.0.0.1:$(cat "$directory/foreign")"
check "of several endpoints none" 2 "answered 200" "$kvcove" admin --admin "127.0.0.1:$(cat "$directory/foreign"),127.0.0.1:1" status
check "the variables of an engine's TLS" 2 "answered 200" env KVCOVE_TLS_AUTHORITY=/nowhere "$kvcove" admin --admin "127.0.0.1:$(cat "$directory/foreign")" status
kill $foreign
if [ "$(id -u)" = 0 ]; then
  python3 -c '
import os, socket, time
os.setuid(61001)
with socket.socket(socket.AF_UNIX) as s:
    s.bind("\0kvcove/0/embedded-61001-1")
    s.listen()
    print("listens", flush=True)
    time.sleep(600)' >"$directory/stranger" &
  stranger=$!
  for _ in $(seq 1200); do [ -s "$directory/stranger" ] && break; sleep 0.05; done
  check "another user's name is none of this user's pools" 0 "passed over" sh -c 'XDG_RUNTIME_DIR="$2" "$1" keys 2>&1 | grep -q 61001 || echo passed over' sh "$kvcove" "$directory/none"
  kill $stranger
fi
check "nobody at a socket" 2 "nobody serves the socket '$directory/none/s'" "$kvcove" keys --socket "$directory/none/s"
kill -TERM $daemon
wait $daemon
if [ $? -ne 0 ] || [ -e "$directory/run/s" ] || [ -e "$directory/run/admin-s" ]; then echo "FAILED: clean stop"; failed=$((failed + 1)); fi

check "ablations" 0 "no-segments" "$kvcove" policy "$trace" --capacity 1000 --limit 500 --ablations --hints
check "two tiers" 0 '"policy":"worth"' "$kvcove" policy "$trace" --capacity 300 --disk-capacity 1000 --limit 500 --json
check "two tiers with admission" 0 '"policy":"moves-admitted".*"write_amplification":1.*"written_of_evicted":0' "$kvcove" policy "$trace" --capacity 300 --disk-capacity 1000 --limit 500 --json
cat >"$directory/llama.json" <<'END'
{"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "torch_dtype": "bfloat16"}
END
plan=("$kvcove" plan --model "$directory/llama.json")
check "plan" 0 "^a token +128KiB \(131,072 bytes\)$" "${plan[@]}" --memory 64GiB --hosts 4 --disk 1TiB
check "plan of a trace" 0 '"expected":\{"any":0.36.*"hit_ratio":0.24' "${plan[@]}" --memory 640GiB --trace "$trace" --json
check "plan: no model" 2 "--model is required" "$kvcove" plan --memory 1GiB
check "plan: no file" 2 "cannot read '/nowhere'" "$kvcove" plan --model /nowhere --memory 1GiB
check "plan: a trace as a model" 2 "conversation_trace.jsonl: not a JSON object" "$kvcove" plan --model "$trace" --memory 1GiB
check "plan: no size" 2 "--memory: 'lots' is not a size" "${plan[@]}" --memory lots
check "plan: a wrong type" 2 "--kv-dtype" "${plan[@]}" --memory 1GiB --kv-dtype int3
check "plan: ranks that do not fit" 2 "8 KV heads do not spread over TP 3" "${plan[@]}" --memory 1GiB --tp 3
check "policy rows" 0 '"policy":"optimum"' "$kvcove" policy "$trace" --capacity 3000 --json
# LRU and the optimum at 3,000 and 10,000 blocks are known.
check_ratio() { # POLICY CAPACITY LOW HIGH
  local ratio
  ratio=$("$kvcove" policy "$trace" --capacity "$2" --json | grep "\"policy\":\"$1\"" | grep -oE '"hit_ratio":[0-9.]+' | cut -d: -f2)
  if awk -v r="$ratio" -v l="$3" -v h="$4" 'BEGIN { exit !(r >= l && r <= h) }'; then passed=$((passed + 1)); else
    echo "FAILED: hit ratio of $1 at $2 is $ratio, not in [$3, $4]"
    failed=$((failed + 1))
  fi
}
check_ratio lru 3000 0.064 0.066
check_ratio lru 10000 0.210 0.212
check_ratio optimum 3000 0.294 0.295
check_ratio optimum 10000 0.365 0.367
check_ratio default 3000 0.110 0.290
check_ratio default 10000 0.225 0.366

"$kvcove" replay "$trace" --quick --json --limit 300 --report "$directory/report.html" >"$directory/json" 2>/dev/null
for field in requests hit_ratio hit_ratio_own hit_ratio_lru hit_ratio_simulated hit_ratio_optimum wrong_bytes stale_hits bytes latencies; do
  check "replay json $field" 0 "\"$field\":" cat "$directory/json"
done
if [ "$(wc -l <"$directory/json")" -ne 1 ]; then echo "FAILED: stdout is not one JSON line"; failed=$((failed + 1)); fi
check "report" 0 "polyline" cat "$directory/report.html"
check "updates" 0 '"stale_hits":0' "$kvcove" replay "$trace" --limit 600 --update-every 100 --engines 2 --json
check "replay over a disk that is none" 2 "is no directory" "$kvcove" replay "$trace" --quick --limit 100 --disk "$directory/nothing:64MiB"
check "replay over a disk and a pool" 2 "has its own disk" "$kvcove" replay "$trace" --quick --limit 100 --disk "$directory:64MiB" --pool unix:/nowhere
# Where the file system has no O_DIRECT there is no disk.
if "$kvcove" doctor --disk "$directory:64MiB" --memory 1MiB --data "$directory/doctor" | grep -q "O_DIRECT works"; then
  check "replay over two tiers" 0 '"write_amplification":[1-9]' "$kvcove" replay "$trace" --quick --json --limit 400 --blocks 300 --own-blocks 0 --disk "$directory:256MiB" --disk-admit all --report "$directory/tiers.html"
  check "report of both tiers" 0 "Blocks by tier" cat "$directory/tiers.html"
  if ls "$directory"/*.disk >/dev/null 2>&1; then echo "FAILED: the replay's disk stays"; failed=$((failed + 1)); fi
fi
check "bench rows" 0 '"ratio":' "$kvcove" bench local --json --bench reset --most-objects 1000 --seconds 0.1
# With nothing else open: the socket that the other end gets is the descriptor that it is passed as.
check "bench: the plain socket" 0 '"batch":4096' "$kvcove" bench remote --json --bench exists --seconds 0.1

# A cluster with tenants, as an operator meets it.
check "token" 0 "token = \"[0-9a-f]{64}\"" "$kvcove" token acme
check "token files" 0 "added 'acme'" "$kvcove" token acme --credentials "$directory/servers.toml" --output "$directory/acme.toml"
check "token files of the operator" 0 "added 'boss'" "$kvcove" token boss --scopes owner,admin --credentials "$directory/servers.toml" --output "$directory/boss.toml"
check "a tenant twice" 2 "knows the tenant 'acme'" "$kvcove" token acme --credentials "$directory/servers.toml" --output "$directory/other.toml"
check "wrong scope" 2 "did you mean 'reset'" "$kvcove" token acme --scopes rest
servers=$directory/exchange.toml
cp -p "$directory/servers.toml" "$servers"
ln -s exchange.toml "$directory/link.toml"
check "nothing to strike off" 2 "has one token only" "$kvcove" token acme --strike --credentials "$servers"
check "a token is exchanged" 0 "one token more in .*link.toml; it is in .*new.toml" "$kvcove" token acme --exchange --credentials "$directory/link.toml" --output "$directory/new.toml"
check "both tokens count" 0 '^tokens = \["[0-9a-f]{64}", "[0-9a-f]{64}"\]$' cat "$servers"
check "a link stays one" 0 "exchange.toml" readlink "$directory/link.toml"
check "the old one is struck off" 0 "one token in .*, the last of the list" "$kvcove" token acme --strike --credentials "$servers"
check "the client's is what is left" 0 "." grep -F "tokens = [$(sed -n 's/token = //p' "$directory/new.toml")]" "$servers"
check "the cluster's has no client" 0 "every client the new token" "$kvcove" token boss --exchange --credentials "$servers"
check "a client's file that exists" 2 "new.toml.*File exists" "$kvcove" token boss --exchange --credentials "$servers" --output "$directory/new.toml"
check "the servers' file stays" 0 "^2$" grep -c "tokens = " "$servers"
check "exchange of nobody's token" 2 "no tenant 'acne'" "$kvcove" token acne --exchange --credentials "$servers"
check "exchange without a file" 2 "kvcove token TENANT --exchange --credentials FILE" "$kvcove" token acme --exchange
check "servers.toml is untouched" 0 "^2$" grep -cE '^tokens = \["[0-9a-f]{64}"\]$' "$directory/servers.toml"
for file in servers acme boss; do
  if [ "$(stat -c %a "$directory/$file.toml")" != 600 ]; then echo "FAILED: mode of $file.toml"; failed=$((failed + 1)); fi
done
check "metrics on an open address" 2 "namespaces' names are in the metrics" "$kvcove" master --metrics 0.0.0.0:1 --data "$directory/m"
# 192.0.2.1 is nobody's, so it is taken as an address and cannot be listened at.
check "metrics of one host, with credentials" 2 "192.0.2.1:1.*annot assign" \
  "$kvcove" serve --metrics 192.0.2.1:1 --credentials "$directory/servers.toml" --memory 1MiB --socket "$directory/a/s"
check "a token for metrics" 0 'scopes = \["metrics"\]' "$kvcove" token prometheus --scopes metrics
check "no such scope" 2 "did you mean 'metrics'" "$kvcove" token prometheus --scopes metric
check "admin on an open address" 2 "plain HTTP" "$kvcove" master --credentials "$directory/servers.toml" --admin 0.0.0.0:1 --data "$directory/m"
check "tenant without credentials" 2 "no tenants" "$kvcove" owner --tenant acme --socket "$directory/a/s"
chmod 644 "$directory/servers.toml"
check "credentials that others read" 2 "chmod 600" "$kvcove" master --credentials "$directory/servers.toml" --data "$directory/m"
chmod 600 "$directory/servers.toml"
# Five ports in a row, below the range from which connections get theirs. As long as this script runs, a
# process keeps sockets bound to them, which keep out other tests but no server (SO_REUSEADDR).
exec {ports}< <(exec python3 -c '
import random, signal, socket
while True:
    first, kept = random.randrange(10000, 30000), [socket.socket() for _ in range(5)]
    try:
        for i, one in enumerate(kept):
            one.bind(("127.0.0.1", first + i))
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        break
    except OSError:
        [one.close() for one in kept]
print(first, flush=True)
signal.pause()')
keeper=$!
trap 'kill $keeper; rm -rf "$directory"' EXIT
read -r port <&"$ports"
"$kvcove" --log off master --credentials "$directory/servers.toml" --listen "127.0.0.1:$port" --admin 127.0.0.1:$((port + 1)) --data "$directory/m" &
master=$!
"$kvcove" --log off owner --credentials "$directory/servers.toml" --master "127.0.0.1:$port" --listen 127.0.0.1:$((port + 2)) --admin 127.0.0.1:$((port + 3)) --memory 64MiB --socket "$directory/o/s" &
owner=$!
admin=("$kvcove" admin --admin 127.0.0.1:$((port + 1)) --token "$directory/boss.toml")
for _ in $(seq 600); do "${admin[@]}" segments 2>/dev/null | grep -q live && break; sleep 0.1; done
check "admin segments" 0 "live" "${admin[@]}" segments
check "admin segments: the beginning of the host's identity" 0 " [0-9a-f]{8}-[0-9]+ +live" "${admin[@]}" segments
look=("$kvcove" doctor --memory 16MiB --data "$directory" --listen 127.0.0.1:0 --advertise "127.0.0.1:7401" --master "127.0.0.1:$port")
check "doctor: a master that it has proven itself to" 0 "ok +master 127.0.0.1:$port: .* lets this host in" "${look[@]}" --credentials "$directory/servers.toml"
check "doctor: a master that asks for credentials" 0 "warn +master 127.0.0.1:$port: does not let this host in" "${look[@]}"
sed 's/tokens = .*/tokens = ["0123456789012345678901234567890123456789"]/' "$directory/servers.toml" >"$directory/wrong.toml"
chmod 600 "$directory/wrong.toml"
check "doctor: a master of other tokens" 1 "FAIL +master 127.0.0.1:$port: .*is the token in '$directory/wrong.toml' right" "${look[@]}" --credentials "$directory/wrong.toml"
peer=("$kvcove" doctor --memory 16MiB --data "$directory" --listen 127.0.0.1:0 --peer)
check "doctor: a peer" 0 "ok +peer 127.0.0.1:$((port + 2)) by TCP: [0-9.]+ us there and back; [0-9.]+ GB/s from it, [0-9.]+ GB/s to it" "${peer[@]}" "127.0.0.1:$((port + 2))" --credentials "$directory/servers.toml"
check "doctor: how data moves" 0 "data with 127.0.0.1:$((port + 2)): by " "${peer[@]}" "127.0.0.1:$((port + 2))" --credentials "$directory/servers.toml"
KVCOVE_TOKEN="$directory/acme.toml" check "doctor: a peer with a tenant's token" 0 "peer 127.0.0.1:$((port + 2)) by TCP: .* GB/s" "${peer[@]}" "127.0.0.1:$((port + 2))"
check "doctor: a peer that asks for credentials" 0 "warn +peer 127.0.0.1:$((port + 2)): does not let this host in" "${peer[@]}" "127.0.0.1:$((port + 2))"
check "doctor: a peer of other tokens" 1 "FAIL +peer 127.0.0.1:$((port + 2)): does not let this host in" "${peer[@]}" "127.0.0.1:$((port + 2))" --credentials "$directory/wrong.toml"
check "doctor: a peer that is a master" 0 "warn +peer 127.0.0.1:$port by TCP: answers no measurement" "${peer[@]}" "127.0.0.1:$port" --credentials "$directory/servers.toml"
check "doctor: a peer that is another program" 1 "FAIL +peer 127.0.0.1:$((port + 1)): does not answer as kvcove does: .*not a kvcove frame" "${peer[@]}" "127.0.0.1:$((port + 1))" --credentials "$directory/servers.toml"
kill -STOP "$owner"
check "doctor: a peer that is stopped" 1 "FAIL +peer 127.0.0.1:$((port + 2)): takes the connection, and does not answer" "${peer[@]}" "127.0.0.1:$((port + 2))"
kill -CONT "$owner"
for _ in $(seq 600); do "${admin[@]}" segments 2>/dev/null | grep -q live && break; sleep 0.1; done
check "doctor: a peer that is not there" 1 "start 'kvcove owner' there" "${peer[@]}" "127.0.0.1:$((port + 4))"
check "doctor: a peer that is no address" 2 "--peer: " "${peer[@]}" "127.0.0.1:port"
check "admin without token" 2 "credentials" "$kvcove" admin --admin 127.0.0.1:$((port + 1)) status
check "admin health without token" 0 "ok" "$kvcove" admin --admin 127.0.0.1:$((port + 1)) health
check "health of a master without token" 0 ": leader$" "$kvcove" health --ready --admin 127.0.0.1:$((port + 1))
check "top with a tenant's token" 2 'scope "admin"' "$kvcove" top --once --admin 127.0.0.1:$((port + 1)) --token "$directory/acme.toml"
check "top with the cluster's token" 0 "1 of 1 owners" "$kvcove" top --once --admin 127.0.0.1:$((port + 1)) --token "$directory/boss.toml"
check "admin with a tenant's token" 2 "denied" "$kvcove" admin --admin 127.0.0.1:$((port + 1)) --token "$directory/acme.toml" status
check "admin why before any engine" 0 "no engine has registered" "${admin[@]}" why nothing
check "replay as a tenant" 0 '"wrong_bytes":0' "$kvcove" replay "$trace" --limit 200 --engines 2 --json --pool "kvcove://127.0.0.1:$port?token=$directory/acme.toml"
check "replay on hosts" 0 '"wrong_bytes":0' "$kvcove" replay "$trace" --limit 200 --engines 2 --json --launch "env KVCOVE_HOST_ID=a" --launch "env KVCOVE_HOST_ID=b" --pool "kvcove://127.0.0.1:$port?token=$directory/acme.toml"
check "replay as nobody" 2 "token" "$kvcove" replay "$trace" --limit 10 --engines 1 --pool "kvcove://127.0.0.1:$port"
check "admin namespaces" 0 "acme:" "${admin[@]}" namespaces
check "admin keys" 0 '"keys":\[\{' "${admin[@]}" keys --limit 3 --json
check "admin why" 0 '"in":\[\{' "${admin[@]}" why nothing --json
check "admin metrics" 0 'kvcove_master_owner_objects' "${admin[@]}" metrics
cp "$directory/out" "$directory/master.metrics"
check "an owner's metrics" 0 'kvcove_owner_data_connections' "$kvcove" admin --admin 127.0.0.1:$((port + 3)) --token "$directory/boss.toml" metrics
cp "$directory/out" "$directory/owner.metrics"
mkdir -m 700 "$directory/disks"  # as the socket in it wants
"$kvcove" --log off serve --memory 8MiB --disk "$directory/disks:64MiB" --metrics 127.0.0.1:$((port + 4)) --socket "$directory/disks/s" &
daemon=$!
for _ in $(seq 1200); do [ -S "$directory/disks/s" ] && break; sleep 0.05; done
check "metrics of a disk" 0 'kvcove_owner_disk_free_zones' "$kvcove" admin --admin 127.0.0.1:$((port + 4)) metrics
cp "$directory/out" "$directory/disks.metrics"
check "docs/metrics.md has each metric with its type, help and labels" 0 "has all" python3 "$(dirname "$0")/../../scripts/check_metrics.py" "$directory"/*.metrics
check "figures of a disk" 0 '"disk":\{"aside":false,.*"free_zones":[1-9].*"disks":\[\{"aside":false,.*"errors":\{"damaged":0,' "$kvcove" status --json --socket "$directory/disks/s"
check "figures that need counts" 0 '"counted_ms":[1-9].*"read_amplification":null,.*"tombstone_share":0.0,.*"written_bytes_per_day":null' "$kvcove" status --json --socket "$directory/disks/s"
check "what a disk costs and brings" 0 'disk .*/disks: .* written in [0-9]+ min \(.*\); - bytes written for each byte stored, - read for each byte served, .* tombstones: 0.00 % of it' "$kvcove" status --socket "$directory/disks/s"
kill -TERM $daemon
wait $daemon
check "admin drain without room" 1 "no room" "${admin[@]}" drain 127.0.0.1:$((port + 2)) --wait
check "admin repair with nothing to repair" 0 "repair +done .* 0 " "${admin[@]}" repair --wait
check "admin tasks after it" 0 "repair +done" "${admin[@]}" tasks
for task in copy move; do
  check "admin $task with nothing to $task" 0 "$task +done .* 0 " "${admin[@]}" $task 127.0.0.1:$((port + 2)) --prefix nothing --wait
done
check "unknown admin command" 2 "did you mean 'segments'" "$kvcove" admin segmens
kill -TERM $owner $master
wait $owner || { echo "FAILED: clean stop of an owner"; failed=$((failed + 1)); }
wait $master || { echo "FAILED: clean stop of a master"; failed=$((failed + 1)); }
check "admin without master" 2 "unavailable" "${admin[@]}" status
# An owner and engines under different users, where this script may become somebody else.
check "engine user that nobody knows" 2 "'no-such-user'" "$kvcove" serve --engine-user no-such-user --memory 1MiB --socket "$directory/b/s"
other=(setpriv --reuid 61001 --regid 61003 --clear-groups env HOME=/tmp TMPDIR=/tmp)
engine=(setpriv --reuid 61002 --regid 61003 --clear-groups env HOME=/tmp TMPDIR=/tmp)
stranger=(setpriv --reuid 61002 --regid 61004 --clear-groups env HOME=/tmp TMPDIR=/tmp)
if [ "$(id -u)" = 0 ] && "${other[@]}" test -x "$kvcove" 2>/dev/null; then
  shared=$(mktemp -d)
  chmod 777 "$shared"
  head -50 "$trace" >"$shared/trace"
  "${other[@]}" "$kvcove" --log off serve --engine-group 61003 --memory 64MiB --no-populate --socket "$shared/s/kvcove.sock" &
  serve=$!
  for _ in $(seq 600); do [ -S "$shared/s/kvcove.sock" ] && break; sleep 0.1; done
  ask=("$kvcove" replay "$shared/trace" --engines 1 --json --pool "unix:$shared/s/kvcove.sock")
  check "engine under another user" 0 '"wrong_bytes":0' "${engine[@]}" KVCOVE_OWNER_USER=61001 "${ask[@]}"
  check "engine that trusts nobody" 2 "KVCOVE_OWNER_USER" "${engine[@]}" "${ask[@]}"
  check "engine of another group" 2 "Permission denied" "${stranger[@]}" KVCOVE_OWNER_USER=61001 "${ask[@]}"
  kill -TERM $serve
  wait $serve || { echo "FAILED: clean stop beside engines of another user"; failed=$((failed + 1)); }
  check "group of others" 2 "add this user to that group" "${other[@]}" "$kvcove" serve --engine-group 61004 --memory 1MiB --socket "$shared/t/s"
  rm -rf "$shared"
fi
check "doctor" 0 "This host can run kvcove" "$kvcove" doctor --memory 16MiB --data "$directory" --listen "127.0.0.1:$port"
check "doctor: all addresses as people write them" 1 "listen 0.0.0.0:7401: the route" "$kvcove" doctor --memory 16MiB --data "$directory" --listen "127.0.0.1:$port" --master 127.0.0.1:1
check "doctor json" 1 '"verdict":"FAIL"' "$kvcove" doctor --memory 190GiB --data "$directory" --listen "127.0.0.1:$port" --json
if grep -q '^flags.* hypervisor' /proc/cpuinfo; then
  check "doctor: a virtual machine" 0 "machine.*a virtual one .*--strict" sh -c '"$@" | tr "\n" " "' sh "$kvcove" doctor --memory 16MiB --data "$directory" --listen "127.0.0.1:$port"
  master=(timeout --preserve-status -s TERM 2 "$kvcove" master --listen 127.0.0.1:0 --admin off --data "$directory/virtual")
  check "a master on a virtual machine" 0 "this machine is a virtual one .*--strict" "${master[@]}"
  check "one that believes no clock" 0 "stopped" "${master[@]}" --strict
  if grep -q "virtual one" "$directory/err"; then
    echo "FAILED: --strict is advised where it is set"
    failed=$((failed + 1))
  fi
fi
check "doctor: small files only" 1 "file size: at most 1MiB" bash -c 'ulimit -f 1024; exec "$@"' bash "$kvcove" doctor --memory 16MiB --data "$directory" --listen "127.0.0.1:$port"
check "an owner that may write small files only" 2 "may write 1048576 B into a file: ulimit -f" bash -c 'ulimit -f 1024; exec "$@"' bash "$kvcove" serve --memory 16MiB --socket "$directory/small/kvcove.sock"
check "doctor: more than an owner gives" 1 "an owner gives at most 16TiB" "$kvcove" doctor --memory 17TiB --data "$directory" --listen "127.0.0.1:$port"
check "doctor: one thing" 1 "^One thing must change" "$kvcove" doctor --memory 512GiB --data "$directory" --listen "127.0.0.1:$port"
# A host with one RDMA port that is up and one that is down.
for name in mlx5_0 mlx5_1; do
  at="$directory/sys/class/infiniband/$name/ports/1"
  mkdir -p "$at/gids" "$at/gid_attrs/types" "$at/gid_attrs/ndevs"
  echo "1: CA" > "$directory/sys/class/infiniband/$name/node_type"
  echo "4: ACTIVE" > "$at/state"
  echo "5: LinkUp" > "$at/phys_state"
  echo "200 Gb/sec (4X HDR)" > "$at/rate"
  echo "Ethernet" > "$at/link_layer"
  echo "0000:0000:0000:0000:0000:ffff:0a00:0005" > "$at/gids/3"
  echo "RoCE v2" > "$at/gid_attrs/types/3"
  echo "eth9" > "$at/gid_attrs/ndevs/3"
done
echo "1: DOWN" > "$at/state"
doctor=("$kvcove" doctor --memory 16MiB --data "$directory" --listen "127.0.0.1:$port" --sysfs)
check "doctor: an RDMA device" 0 "RDMA device 1: mlx5_0:1 of eth9, 200 Gb/s; GID 3 \(10.0.0.5\): RoCE v2" "${doctor[@]}" "$directory/sys"
check "doctor: an RDMA device that is down" 0 "left out: mlx5_1:1: its state is '1: DOWN'" "${doctor[@]}" "$directory/sys"
check "doctor: named RDMA device" 0 "mlx5_0:1 of eth9, it was named" "${doctor[@]}" "$directory/sys" --rdma-device mlx5_0
check "doctor: named RDMA device that is down" 1 "'mlx5_1': its state is '1: DOWN'; this host has: mlx5_0:1" "${doctor[@]}" "$directory/sys" --rdma-device mlx5_1
check "doctor: RDMA devices with a comma" 1 "'mlx5_1': its state is '1: DOWN'" "${doctor[@]}" "$directory/sys" --devices mlx5_0,mlx5_1
check "doctor: GID index" 1 "no RDMA device has the GID index 9" "${doctor[@]}" "$directory/sys" --gid-index 9
MC_GID_INDEX=3 check "doctor: MC_GID_INDEX" 0 "GID 3 \(10.0.0.5\): the index that was named" "${doctor[@]}" "$directory/sys"
MC_GID_INDEX=three check "doctor: bad MC_GID_INDEX" 0 "MC_GID_INDEX: 'three' is no GID index" "${doctor[@]}" "$directory/sys"
check "doctor: near nothing" 2 "'numa:7' is no NUMA node" "${doctor[@]}" "$directory/sys" --near numa:7
check "doctor: an address without a master" 2 "name the master" "${doctor[@]}" "$directory/sys" --advertise 10.0.0.5
check "doctor: no RDMA" 0 "RDMA devices: none" "${doctor[@]}" "$directory"

# A host with two NUMA nodes, each with 1 GiB, of which an expander is a third.
for node in 0 1 2; do
  at="$directory/two/devices/system/node/node$node"
  mkdir -p "$at"
  if [ $node -eq 2 ]; then echo >"$at/cpulist"; else echo "0-63" >"$at/cpulist"; fi
  printf "Node $node MemTotal: 1048576 kB\nNode $node MemFree: 1048576 kB\n" >"$at/meminfo"
done
echo "0-2" >"$directory/two/devices/system/node/online"
numa=("$kvcove" --log off serve --memory 16MiB --socket "$directory/n/kvcove.sock" --sysfs "$directory/two" --numa)
check "numa: no such node" 2 "neither 'all' nor a NUMA node of this host; there are: 0, 1, 2 \(has memory but no" "${numa[@]}" 7
check "numa: more than a node has" 2 "NUMA node 0 would get 2GiB, but the node can give 1GiB" \
  "$kvcove" serve --memory 4GiB --socket "$directory/n/kvcove.sock" --sysfs "$directory/two" --numa all
check "status of nothing" 1 "no owner at" "$kvcove" status --socket "$directory/n/kvcove.sock"
"${numa[@]}" all &
several=$!
for _ in $(seq 3000); do [ -S "$directory/n/kvcove.node1.sock" ] && break; sleep 0.02; done
check "status: the first" 0 "n/kvcove.sock: NUMA node 0, has its lease, .* of 8MiB free" "$kvcove" status --socket "$directory/n/kvcove.sock"
check "status: the second" 0 "n/kvcove.node1.sock: NUMA node 1, has its lease" "$kvcove" status --socket "$directory/n/kvcove.sock"
for _ in $(seq 3000); do [ -S "$directory/n/admin-kvcove.sock" ] && break; sleep 0.02; done
both=("$kvcove" admin --admin "unix:$directory/n/admin-kvcove.sock")
check "one admin interface: the second owner" 0 "^$directory/n/kvcove.node1.sock .* live +8MiB" "${both[@]}" segments
check "one admin interface: both owners" 0 '"owners_live":2' "${both[@]}" status --json
check "one admin interface: series of each owner" 0 'kvcove_owner_sessions\{socket="[^"]*node1.sock"\} 0' "${both[@]}" metrics
check "status json" 0 '"node":1' "$kvcove" status --json --socket "$directory/n/kvcove.sock"
check "doctor: nodes" 0 "NUMA nodes: node 0: .*node 2: 0 processors" "${doctor[@]}" "$directory/two"
check "doctor: owners" 0 "owners of this host: .*kvcove.sock: 8MiB of node 0; .*node1.sock: 8MiB of node 1" \
  env KVCOVE_SOCKET="$directory/n/kvcove.sock" "${doctor[@]}" "$directory/two"
kill $several
wait $several
check "numa: ends cleanly" 1 "no owner at" "$kvcove" status --socket "$directory/n/kvcove.sock"

# ---- the log: its format, its file, and SIGHUP, which reads the level again and opens the file again
check "wrong log format" 2 "--log-format: 'xml' is not a log format; use text or json" "$kvcove" --log-format xml serve
check "a log file of another command" 2 "only for master, owner and serve" "$kvcove" --log-file "$directory/no.log" status
echo "log-file = \"$directory/no.log\"" >"$directory/shared.toml"
check "a log file of a server, in a configuration that others read, too" 1 "no owner at" \
  "$kvcove" --config "$directory/shared.toml" status --socket "$directory/none/s"
check "a log file of a server is not opened by others" 0 "unopened" sh -c "test -e $directory/no.log || echo unopened"
check "last words in JSON" 2 '^\{"time":.*"level":"error",.*"message":"kvcove: .*--memory: .*lots.*"\}$' \
  "$kvcove" --log-format json serve --memory lots --socket "$directory/a/s"
check "a log file in no directory" 2 "--log-file: opening the log '.*none/log'" "$kvcove" serve --log-file "$directory/none/log"
echo 'log = "error"' >"$directory/log.toml"
"$kvcove" --config "$directory/log.toml" --log-format json --log-file "$directory/log" serve --socket "$directory/l/s" --memory 8MiB &
logged=$!
for _ in $(seq 3000); do "$kvcove" status --socket "$directory/l/s" >/dev/null 2>&1 && break; sleep 0.02; done
mv "$directory/log" "$directory/log.1"
echo 'log = "info"' >"$directory/log.toml"
kill -HUP $logged
for _ in $(seq 3000); do grep -qs SIGHUP "$directory/log" && break; sleep 0.02; done
# Neither can be read again now: a directory, and a pipe in which nobody writes.
mv "$directory/log" "$directory/log.2"
mkdir "$directory/log"
rm "$directory/log.toml"
mkfifo "$directory/log.toml"
kill -HUP $logged
for _ in $(seq 500); do grep -qs "level is that of before" "$directory/log.2" && break; sleep 0.02; done
kill $logged
for _ in $(seq 500); do kill -0 $logged 2>/dev/null || break; sleep 0.02; done
kill -9 $logged 2>/dev/null
wait $logged
check "SIGHUP reads the level again and opens the log again" 0 \
  "info SIGHUP.*info SIGHUP.*error the log's file remains the same: .*Is a directory.*error the log's level remains the same: .*no regular file.*info stopping on SIGTERM.*info stopped" \
  python3 -c '
import datetime, json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
assert all(datetime.datetime.fromisoformat(line["time"]).tzinfo and line["pid"] == int(sys.argv[2]) for line in lines)
print(" ".join(line["level"] + " " + line["message"] for line in lines))' "$directory/log.2" $logged
check "what was moved away is no longer written" 0 "^0$" sh -c "wc -c <'$directory/log.1'"
"$kvcove" owner --master etcd://127.0.0.1:1/p --log-file "$directory/waits" --memory 8MiB --socket "$directory/w/s" &
waiting=$!
for _ in $(seq 3000); do [ -e "$directory/waits" ] && break; sleep 0.02; done
kill -HUP $waiting
kill $waiting
wait $waiting
check "SIGHUP ends no owner that waits for its master" 0 "^$((128 + 15))$" echo $?

echo "cli: $passed passed, $failed failed"
[ $failed -eq 0 ]
