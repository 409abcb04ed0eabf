#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Layers only look downward: what each module may include of the others. kvcove/version.h belongs to base.
# No source but kvcove/transport/pick (and tests/rdma) names one of the transports: all others use transport/peer.h.
# And no source asks the locale of the program that loads it what a letter or a number is (kvcove/base/text.h).
set -euo pipefail
cd "$(dirname "$0")/.."
declare -A allowed=(
  [base]="base"
  [model]="base model"
  [kvevents]="base model kvevents"
  [wire]="base model wire"
  [segment]="base model segment"
  [disklog]="base model disklog"
  [policy]="base model policy"
  [uring]="base disklog uring"
  [rpc]="base model wire rpc"
  [transport]="base model wire rpc transport"
  [net]="base rpc net"
  [http]="base http"
  [master]="base model wire rpc http master"
  [owner]="base model wire segment disklog policy rpc transport owner"
  [requester]="base model wire segment rpc transport requester"
  [pool]="base model wire segment disklog policy rpc transport net master owner requester pool"
  [server]="base model kvevents wire segment rpc net http master owner requester pool server"
  [connector]="base model wire rpc transport requester pool connector"
  [top]="base rpc http top"
  [cli]="base model kvevents wire segment disklog uring policy rpc transport net http master pool server connector top cli"
)
# The same for the folders of a module; `top` is the module's own. lab/ may use all modules. Tests, fixtures and fakes may use any of them.
declare -A folders=(
  [base/top]="top"
  [base/host]="top host"
  [owner/core]="core"
  [owner/memory]="core memory"
  [owner/tier]="core memory tier"
  [owner/disk]="core memory tier disk"
  [owner/link]="core disk link"
  [owner/top]="core memory tier disk link top"
  [owner/data]="core top data"
  [master/store]="store"
  [master/control]="store control"
  [master/directory]="control directory"
  [master/shards]="control directory shards"
  [master/top]="control directory shards top"
  [master/etcd]="store etcd"
  [master/server]="store control directory shards top etcd server"
  [net/top]="top"
  [net/devices]="devices"
  [requester/top]="top"
  [requester/local]="top local"
  [requester/cluster]="top local cluster"
  [connector/top]="top"
  [connector/scheduler]="top scheduler"
  [connector/worker]="top worker"
  [transport/top]="top"
  [transport/tcp]="top tcp verbs"
  [transport/verbs]="top verbs"
  [transport/pick]="top tcp verbs pick"
  [transport/cuda]="top cuda"
  [lab/policy]="policy"
  [lab/replay]="policy replay"
  [lab/serving]="serving"
  [lab/sizing]="policy replay sizing"
  [lab/commands]="policy replay serving sizing commands"
)
# An engine's library has these folders of modules that are two targets (their CMakeLists.txt); `pool` uses no other.
declare -A engines=(
  [master]="store control"
  [net]="top"
)
# They link less than the whole module: what they must not include, although the module may.
declare -A engines_without=(
  [master]="http rpc"
)
bad=0
for directory in kvcove/*/; do
  module=$(basename "$directory")
  if [ -z "${allowed[$module]:-}" ]; then
    echo "kvcove/$module is in no layer; add it to scripts/check_layers.sh"
    bad=1
    continue
  fi
  while IFS=: read -r file line include; do
    [[ $include =~ \"kvcove/([a-z]+)/ ]]
    other=${BASH_REMATCH[1]}
    folder=${file#"$directory"}
    folder=${folder%%/*}
    if [[ " ${allowed[$module]} " != *" $other "* ]]; then
      echo "$file:$line: $module must not include $other"
      bad=1
    elif [[ " ${engines[$module]:-} " == *" $folder "* && " ${engines_without[$module]:-} " == *" $other "* ]]; then
      echo "$file:$line: $module/$folder is in an engine's library and must not include $other"
      bad=1
    elif [ "$module" = pool ] && [ -n "${engines[$other]:-}" ] && [[ $include =~ \"kvcove/$other/(([a-z]+)/)? ]] &&
      [[ " ${engines[$other]} " != *" ${BASH_REMATCH[2]:-top} "* ]]; then
      echo "$file:$line: an engine's library has of $other no more than: ${engines[$other]}"
      bad=1
    fi
  done < <(grep -rnE '#include "kvcove/[a-z]+/' "$directory" || true)
done
while IFS=: read -r file line include; do
  [[ $file =~ ^(kvcove/)?([a-z]+)/(([a-z]+)/)?[^/]+$ ]] || continue
  module=${BASH_REMATCH[2]}
  folder=${BASH_REMATCH[4]:-top}
  [[ $include =~ \"(kvcove/)?$module/(([a-z]+)/)?[^/]+\" ]] || continue
  other=${BASH_REMATCH[3]:-top}
  if [[ " ${!folders[*]}" == *" $module/"* ]] && [[ " ${folders[$module/$folder]:-} " != *" $other "* ]]; then
    echo "$file:$line: $module/$folder must not include $module/$other; the order is in scripts/check_layers.sh"
    bad=1
  fi
done < <(grep -rnE '#include "(kvcove|lab)/[a-z]+/' kvcove lab --include='*.cc' --include='*.h' \
  --exclude='*_test.cc' --exclude='*_fixture.h' --exclude='fake_*.h' --exclude='test_*.h' || true)
while IFS=: read -r file line _; do
  echo "$file:$line: the laboratory is for the command's main function and for tests"
  bad=1
done < <(grep -rn '#include "lab/' kvcove python bench --include='*.cc' --include='*.h' --exclude-dir=main || true)
# A transport is a folder that pick/ includes; inside of the module its namespace is named without the module's.
transports=$(grep -oP '#include "kvcove/transport/\K(?!pick)[a-z]+(?=/)' kvcove/transport/pick/transports.cc | sort -u | paste -sd'|')
while IFS=: read -r file line text; do
  [[ $file =~ ^(kvcove/transport/($transports|pick)|tests/rdma)/ ]] && continue
  echo "$file:$line: only kvcove/transport/pick names a transport; transport/peer.h is for all others: ${text# }"
  bad=1
done < <(
  grep -rnE "#include \"kvcove/transport/($transports)/|\btransport::($transports)\b" kvcove lab tests python --include='*.cc' --include='*.h' || true
  grep -rnE "\b($transports)::" kvcove/transport --include='*.cc' --include='*.h' || true
)
of_the_locale='\b(strto(l|ll|ul|ull|f|d|ld|imax|umax)|sto(i|l|ll|ul|ull|f|d|ld)|ato(i|l|ll|f)|to(lower|upper)|is(alpha|alnum|digit|xdigit|lower|upper|space|blank|cntrl|graph|print|punct))\('
while IFS=: read -r file line text; do
  echo "$file:$line: the locale decides about this; kvcove/base/text.h and std::from_chars do not ask it: ${text# }"
  bad=1
done < <(grep -rnE "$of_the_locale" kvcove lab python/kvcove/native --include='*.cc' --include='*.h' --exclude='*_test.cc' --exclude=text.h || true)
[ $bad -eq 0 ] && echo "layers: every include looks downward; no source names a transport; no source asks the locale"
exit $bad
