// SPDX-License-Identifier: Apache-2.0
// `kvcove bench remote`: what a cluster does over TCP, beside a plain socket that moves the same
// bytes between two processes of this machine in the same run.
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "kvcove/base/random.h"
#include "kvcove/base/size.h"
#include "kvcove/rpc/address.h"
#include "lab/commands/bench.h"
#include "lab/commands/bench_cluster.h"

namespace kvcove::lab {
namespace {

struct StreamRequest {
  std::uint64_t in = 0;   // bytes that follow
  std::uint64_t out = 0;  // bytes to answer
};

bool SendAll(int fd, const std::byte* data, std::uint64_t size) {
  while (size > 0) {
    const ssize_t sent = send(fd, data, size, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    data += sent;
    size -= static_cast<std::uint64_t>(sent);
  }
  return true;
}

bool ReceiveAll(int fd, std::byte* data, std::uint64_t size) {
  if (fd < 0) return false;
  while (size > 0) {
    const ssize_t got = recv(fd, data, size, 0);
    if (got <= 0) return false;
    data += got;
    size -= static_cast<std::uint64_t>(got);
  }
  return true;
}

// The limit: request and reply of the given sizes over one blocking TCP socket.
class PlainSocket {
 public:
  static Result<std::unique_ptr<PlainSocket>> Start() {
    rpc::Address address{.host = "127.0.0.1", .port = 0};
    KVCOVE_ASSIGN(const UniqueFd listener, rpc::ListenTcp(address));
    auto plain = std::make_unique<PlainSocket>();
    KVCOVE_ASSIGN(plain->process_,
                  BenchProcess::Start({"bench-stream"}, {.passed = listener.get()}));
    KVCOVE_ASSIGN(plain->socket_, rpc::ConnectTcp(address, Now() + 5 * kSecond));
    fcntl(plain->socket_.get(), F_SETFL, 0);
    return plain;
  }
  ~PlainSocket() { socket_.Reset(); }
  // False: the other end is gone, and the time that this took means nothing.
  bool Call(const std::byte* in, std::uint64_t in_bytes, std::byte* out, std::uint64_t out_bytes) {
    const StreamRequest request{.in = in_bytes, .out = out_bytes};
    return SendAll(socket_.get(), reinterpret_cast<const std::byte*>(&request), sizeof(request)) &&
           SendAll(socket_.get(), in, in_bytes) && ReceiveAll(socket_.get(), out, out_bytes);
  }

 private:
  std::unique_ptr<BenchProcess> process_;
  UniqueFd socket_;
};

Status NoLimit() { return Fail(Code::kUnavailable, "the plain socket's other end is gone"); }

struct Shape {
  std::uint64_t object_bytes;
  std::uint64_t batch;
};

Status BenchGet(const BenchOptions& options, PlainSocket& plain, const Shape& shape,
                bool checksum) {
  KVCOVE_ASSIGN(Cluster cluster,
                Cluster::Start({.owners = 1, .memory = kGiB, .checksum = checksum}));
  const std::uint64_t objects = std::min<std::uint64_t>(512 * kMiB / shape.object_bytes, 20000);
  KVCOVE_TRY(Fill(*cluster.session, objects, shape.object_bytes));
  const std::uint64_t bytes = shape.object_bytes * shape.batch;
  std::vector<std::byte> buffer(bytes, std::byte{0});
  Random random(1);
  std::vector<std::string> keys(shape.batch);
  std::vector<MutableBuffer> pieces(shape.batch);
  std::vector<GetItem> items(shape.batch);
  std::vector<ItemResult> results(shape.batch);
  Status failed;
  const auto get = [&](std::size_t) {
    for (std::uint64_t i = 0; i < shape.batch; ++i) {
      keys[i] = KeyOf(random.Below(objects));
      pieces[i] = {.data = buffer.data() + i * shape.object_bytes, .size = shape.object_bytes};
      items[i] = {.key = keys[i], .into = {&pieces[i], 1}};
    }
    if (auto got = cluster.session->Get(items, results, {.timeout = kTimeout}); !got) failed = got;
    for (const ItemResult& result : results) {
      if (!result.ok()) failed = Fail(result.code, "a get of the benchmark failed");
    }
  };
  const auto limit = [&](std::size_t) {
    if (!plain.Call(nullptr, 0, buffer.data(), bytes)) failed = NoLimit();
  };
  for (std::size_t turn = 0; turn < 5; ++turn) {
    get(turn);
    limit(turn);
  }
  KVCOVE_TRY(failed);
  Row row{.bench = "get",
          .form = "remote",
          .objects = objects,
          .object_bytes = shape.object_bytes,
          .batch = shape.batch,
          .limit = "plain TCP socket",
          .extra = {{"checksum", checksum}}};
  Measure(options, row, bytes, get, limit);
  KVCOVE_TRY(failed);
  Print(options, row);
  return {};
}

Status BenchPut(const BenchOptions& options, PlainSocket& plain, const Shape& shape,
                bool checksum) {
  KVCOVE_ASSIGN(Cluster cluster,
                Cluster::Start({.owners = 1, .memory = kGiB, .checksum = checksum}));
  const std::uint64_t bytes = shape.object_bytes * shape.batch;
  const std::vector<std::byte> values(bytes, std::byte{3});
  std::vector<std::byte> answer(64);
  KVCOVE_TRY(Fill(*cluster.session, std::min<std::uint64_t>(kGiB / shape.object_bytes, 1 << 20),
                  shape.object_bytes, 1ULL << 40));
  KVCOVE_ASSIGN(const Token token, cluster.session->Capture({}));
  std::vector<std::string> keys(shape.batch);
  std::vector<ConstBuffer> pieces(shape.batch);
  std::vector<PutItem> items(shape.batch);
  std::vector<ItemResult> results(shape.batch);
  std::uint64_t next = 0;
  Status failed;
  const auto prepare = [&] {
    for (std::uint64_t i = 0; i < shape.batch; ++i) {
      keys[i] = KeyOf(next++);
      pieces[i] = {.data = values.data() + i * shape.object_bytes, .size = shape.object_bytes};
      items[i] = {.key = keys[i], .value = {&pieces[i], 1}, .after = {}};
    }
  };
  const auto put = [&](std::size_t) {
    if (auto done = cluster.session->Put(token, items, results, {.timeout = kTimeout}); !done) {
      failed = done;
    }
    for (const ItemResult& result : results) {
      if (!result.ok()) failed = Fail(result.code, "a put of the benchmark failed");
    }
    prepare();
  };
  const auto limit = [&](std::size_t) {
    if (!plain.Call(values.data(), bytes, answer.data(), answer.size())) {
      failed = NoLimit();
    }
  };
  prepare();
  put(0);
  KVCOVE_TRY(failed);
  Row row{.bench = "put",
          .form = "remote",
          .objects = kGiB / shape.object_bytes,
          .object_bytes = shape.object_bytes,
          .batch = shape.batch,
          .limit = "plain TCP socket",
          .extra = {{"checksum", checksum}}};
  Measure(options, row, bytes, put, limit);
  KVCOVE_TRY(failed);
  row.extra["objects_per_s"] = static_cast<double>(shape.batch) / row.p50_us * 1e6;
  Print(options, row);
  return {};
}

Status BenchExists(const BenchOptions& options, PlainSocket& plain, std::uint64_t batch) {
  constexpr std::uint64_t kObjects = 100'000;
  KVCOVE_ASSIGN(Cluster cluster, Cluster::Start({.owners = 1, .memory = 256 * kMiB}));
  KVCOVE_TRY(Fill(*cluster.session, kObjects, 64));
  Random random(3);
  std::vector<std::vector<std::string>> keys(64);
  std::vector<std::vector<std::string_view>> views(64);
  for (std::size_t p = 0; p < keys.size(); ++p) {
    for (std::size_t i = 0; i < batch; ++i) keys[p].push_back(KeyOf(random.Below(kObjects)));
    views[p].assign(keys[p].begin(), keys[p].end());
  }
  std::vector<ItemResult> results(batch);
  std::vector<std::byte> request(batch * 16);
  std::vector<std::byte> answer(batch * 12);
  Status failed;
  const auto exists = [&](std::size_t turn) {
    (void)cluster.session->Exists(views[turn % views.size()], results, {.timeout = kTimeout});
    for (const ItemResult& result : results) {
      if (!result.ok()) failed = Fail(result.code, "a key of the benchmark was not found");
    }
  };
  const auto limit = [&](std::size_t) {
    if (!plain.Call(request.data(), request.size(), answer.data(), answer.size())) {
      failed = NoLimit();
    }
  };
  for (std::size_t turn = 0; turn < 64; ++turn) exists(turn);
  KVCOVE_TRY(failed);
  Row row{.bench = "exists",
          .form = "remote",
          .objects = kObjects,
          .object_bytes = 64,
          .batch = batch,
          .limit = "plain TCP socket"};
  Measure(options, row, batch * 28, exists, limit);
  KVCOVE_TRY(failed);
  Print(options, row);
  return {};
}

Status BenchReset(const BenchOptions& options, std::uint64_t objects) {
  KVCOVE_ASSIGN(Cluster cluster,
                Cluster::Start({.owners = 3, .memory = objects * 64, .max_objects = objects}));
  KVCOVE_TRY(cluster.session->Reset({.timeout = kTimeout}));
  std::vector<double> ours;
  const int rounds = 10;
  for (int round = 0; round < rounds; ++round) {
    KVCOVE_TRY(Fill(*cluster.session, round == 0 ? objects : objects / 10, 64));
    const std::int64_t start = Now();
    KVCOVE_TRY(cluster.session->Reset({.timeout = kTimeout}));
    ours.push_back(static_cast<double>(Now() - start) / 1e3);
  }
  Row row{.bench = "reset",
          .form = "remote",
          .objects = objects,
          .object_bytes = 64,
          .batch = 1,
          .limit = "50 ms"};
  row.p50_us = Quantile(ours, 0.5);
  row.p99_us = Quantile(ours, 0.99);
  row.limit_p50_us = 50000;
  row.extra = {{"rounds", rounds}, {"owners", 3}};
  row.bytes_per_s = 1e6 / row.p50_us;
  row.limit_bytes_per_s = 20;
  Print(options, row);
  return {};
}

}  // namespace

Result<int> RunStream() {
  const UniqueFd socket(accept(cli::kPassedFd, nullptr, nullptr));
  if (!socket.valid()) {
    // The listener does not block: wait for the one connection.
    pollfd poller{.fd = cli::kPassedFd, .events = POLLIN, .revents = 0};
    poll(&poller, 1, 5000);
  }
  const UniqueFd late(socket.valid() ? -1 : accept(cli::kPassedFd, nullptr, nullptr));
  const int fd = socket.valid() ? socket.get() : late.get();
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  std::vector<std::byte> memory(64 * kMiB, std::byte{1});
  StreamRequest request;
  while (ReceiveAll(fd, reinterpret_cast<std::byte*>(&request), sizeof(request))) {
    if (request.in > memory.size() || request.out > memory.size()) return 1;
    if (!ReceiveAll(fd, memory.data(), request.in)) return 0;
    if (!SendAll(fd, memory.data(), request.out)) return 0;
  }
  return 0;
}

Result<int> RunRemoteBench(const BenchOptions& options) {
  const auto wanted = [&](const std::string& name) {
    return options.benches.empty() ||
           std::ranges::find(options.benches, name) != options.benches.end();
  };
  const auto chosen = [&](const Shape& shape) {
    return options.batches.empty() ||
           std::ranges::find(options.batches, shape.batch) != options.batches.end();
  };
  KVCOVE_ASSIGN(const auto plain, PlainSocket::Start());
  if (wanted("get")) {
    for (const bool checksum : {true, false}) {
      for (const Shape& shape : {Shape{kMiB, 1}, Shape{kMiB, 64}, Shape{4 * kKiB, 128}}) {
        if (!chosen(shape)) continue;
        KVCOVE_TRY(BenchGet(options, *plain, shape, checksum));
      }
    }
  }
  if (wanted("put")) {
    for (const bool checksum : {true, false}) {
      for (const Shape& shape : {Shape{kMiB, 64}, Shape{256, 256}}) {
        if (!chosen(shape)) continue;
        KVCOVE_TRY(BenchPut(options, *plain, shape, checksum));
      }
    }
  }
  if (wanted("exists")) {
    for (const std::uint64_t batch : {128ULL, 4096ULL}) {
      KVCOVE_TRY(BenchExists(options, *plain, batch));
    }
  }
  if (wanted("reset")) {
    KVCOVE_TRY(BenchReset(options, std::min<std::uint64_t>(options.most_objects, 1'000'000)));
  }
  return 0;
}

}  // namespace kvcove::lab
