// SPDX-License-Identifier: Apache-2.0
// Any bytes as what people and programs write: the admin endpoint's queries, credentials,
// addresses, sizes, tokens. The first byte chooses.
// Fuzzes: kvcove/base/size.cc kvcove/http/url.cc kvcove/model/ids.cc
// Fuzzes: kvcove/rpc/address.cc kvcove/rpc/credentials.cc
#include <string>

#include "kvcove/base/size.h"
#include "kvcove/http/url.h"
#include "kvcove/model/ids.h"
#include "kvcove/rpc/address.h"
#include "kvcove/rpc/credentials.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvcove;
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data + 1), size - 1);
  switch (data[0] % 5) {
    case 0:
      // What is encoded comes back.
      if (http::UrlDecode(http::UrlEncode(text)) != text) __builtin_trap();
      return (void)http::ParseQuery(text), 0;
    case 1:
      return (void)rpc::ParseTenants(text, "fuzz"), 0;
    case 2:
      return (void)rpc::ParseCredential(text, "fuzz"), 0;
    case 3:
      (void)rpc::ParseAddress(text, 0);
      return (void)ParseSize(text), 0;
    default:
      if (const auto token = Token::Parse(text); token && token->ToString().size() != 52) {
        __builtin_trap();
      }
      return 0;
  }
}
