// SPDX-License-Identifier: Apache-2.0
// TCP as a transport, and the one header of this folder that others include. Sockets need no
// registration, and the processor moves their bytes, so Abort() always returns true.
#pragma once

#include "kvcove/transport/endpoint.h"

namespace kvcove::transport::tcp {

Transport& Sockets();

}  // namespace kvcove::transport::tcp
