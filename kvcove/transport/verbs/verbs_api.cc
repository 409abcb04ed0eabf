// SPDX-License-Identifier: Apache-2.0
#include "kvcove/transport/verbs/verbs_api.h"

#include <utility>

namespace kvcove::transport::verbs {

std::string_view StatusName(CompletionStatus status) {
  switch (status) {
    case CompletionStatus::kOk:
      return "done";
    case CompletionStatus::kFlushed:
      return "flushed: the queue pair has stopped";
    case CompletionStatus::kRefused:
      return "refused by the peer's device: a key or an address that is not valid";
    case CompletionStatus::kUnreachable:
      return "the peer's device does not answer";
    case CompletionStatus::kFailed:
      return "failed in this host's device";
  }
  std::unreachable();
}

}  // namespace kvcove::transport::verbs
