// SPDX-License-Identifier: Apache-2.0
// The files of the page, as they are in page/. CMake makes the source from them.
#pragma once

#include <string_view>

namespace kvcove::master {

extern const std::string_view kPageHtml;
extern const std::string_view kPageCss;
extern const std::string_view kPageJs;
extern const std::string_view kPageSvg;

}  // namespace kvcove::master
