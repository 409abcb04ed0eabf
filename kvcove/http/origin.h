// SPDX-License-Identifier: Apache-2.0
// Which requests a web page may have sent. A page in an operator's browser can reach loopback and
// every address that the browser can; the browser adds headers that tell such requests apart.
#pragma once

#include <boost/beast/http/message.hpp>

#include "kvcove/base/result.h"

namespace kvcove::http {

// Refuses a request that a page of another origin may have sent:
// - Host stands once and names an IP address or `localhost`; with `loopback` a loopback address, as
//   a page's own name may resolve to 127.0.0.1 (DNS rebinding). Without `loopback`, names pass,
//   too.
// - Origin, where there is one, is "http://" and Host.
// - Sec-Fetch-Site, where there is one, is `same-origin` or `none`.
// - Everything but GET and HEAD has `Content-Type: application/json` or `X-Kvcove-Request: 1`:
//   before a browser sends these to another origin it asks, and no answer of ours allows it.
// Errors: kInvalid (Host), kDenied; the text says which header is wrong or missing.
Status CheckOrigin(const boost::beast::http::request_header<>& head, bool loopback);

}  // namespace kvcove::http
