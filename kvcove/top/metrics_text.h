// SPDX-License-Identifier: Apache-2.0
// Reads metrics in Prometheus' text form, as base/metrics.h writes it. Pure.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "kvcove/base/metrics.h"

namespace kvcove::top {

// Calls `take` for each sample whose name `wanted` takes; the labels of others are not parsed.
// Lines in another form are skipped: they are those of a later build.
void ReadMetrics(
    std::string_view text, const std::function<bool(std::string_view name)>& wanted,
    const std::function<void(std::string_view name, const Labels& labels, double value)>& take);

}  // namespace kvcove::top
