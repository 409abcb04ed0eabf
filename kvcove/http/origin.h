// SPDX-License-Identifier: Apache-2.0
// Recognises requests that a web page may have sent. A page in an operator's browser can reach
// loopback and every address that the browser can; the browser adds headers by which such requests
// are recognised. Thread-safe.
#pragma once

#include <boost/beast/http/message.hpp>

#include "kvcove/base/result.h"

namespace kvcove::http {

// Refuses a request that a page of another origin may have sent. A request passes if
// - it has one Host. With `loopback` that is a loopback address or `localhost`, because the name
//   of a page may resolve to 127.0.0.1 (DNS rebinding); without, also another address or a name;
// - Origin, if present, is "http://" and Host, or with `tls` "https://" and Host;
// - Sec-Fetch-Site, if present, is `same-origin` or `none`;
// - its method is GET or HEAD, or it has `Content-Type: application/json` or `X-Kvcove-Request: 1`:
//   before a browser sends these to another origin it asks, and no answer of this server allows it.
// Errors: kInvalid (Host), kDenied; the text names the header that is wrong or missing.
Status CheckOrigin(const boost::beast::http::request_header<>& head, bool loopback,
                   bool tls = false);

}  // namespace kvcove::http
