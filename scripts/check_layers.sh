#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Layers only look downward: what each module may include of the others. kvcove/version.h belongs to base.
set -euo pipefail
cd "$(dirname "$0")/.."
declare -A allowed=(
  [base]="base"
  [model]="base model"
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
  [owner]="base model wire segment disklog policy rpc transport http owner"
  [requester]="base model wire segment rpc transport requester"
  [pool]="base model wire segment disklog policy rpc transport net http master owner requester pool"
  [connector]="base model wire rpc transport requester pool connector"
  [replay]="base model policy pool connector replay"
  [cli]="base model wire segment disklog uring policy rpc transport net http master pool connector replay cli"
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
    other=$(sed -E 's|.*"kvcove/([a-z]+)/.*|\1|' <<<"$include")
    if [[ " ${allowed[$module]} " != *" $other "* ]]; then
      echo "$file:$line: $module must not include $other"
      bad=1
    fi
  done < <(grep -rnE '#include "kvcove/[a-z]+/' "$directory" || true)
done
[ $bad -eq 0 ] && echo "layers: every include looks downward"
exit $bad
