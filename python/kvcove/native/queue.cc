// SPDX-License-Identifier: Apache-2.0
// Asynchronous calls. A queue keeps what its calls work on until their final completion, whatever
// becomes of the Python objects: nothing is freed that bytes may still land in.
#include <fmt/core.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <unordered_map>

#include "session.h"

namespace kvcove::python {
namespace {

struct Operation {
  virtual ~Operation() = default;
  // What the call answers, given its number.
  virtual nb::object Answer(std::uint64_t /*count*/) { return nb::none(); }
  std::shared_ptr<Session> session;  // it must not end before its call
};

struct ResultsOperation : Operation {
  explicit ResultsOperation(std::size_t count) : results(count) {}
  nb::object Answer(std::uint64_t /*count*/) override { return nb::cast(std::move(results)); }
  Results results;
};

struct PutOperation final : ResultsOperation {
  PutOperation(nb::handle keys, nb::handle values, nb::handle after, nb::handle hints)
      : ResultsOperation(0), work(keys, values, after, hints) {
    results = Results(work.items.size());
  }
  PutWork work;
};

struct GetOperation final : ResultsOperation {
  GetOperation(nb::handle keys, nb::handle buffers) : ResultsOperation(0), work(keys, buffers) {
    results = Results(work.items.size());
  }
  GetWork work;
};

struct KeysOperation final : ResultsOperation {
  explicit KeysOperation(nb::handle keys_in) : ResultsOperation(0), keys(keys_in) {
    results = Results(keys.size());
  }
  Keys keys;
};

struct CountOperation final : Operation {
  explicit CountOperation(nb::handle keys_in) : keys(keys_in) {}
  nb::object Answer(std::uint64_t count) override { return nb::int_(count); }
  Keys keys;
};

struct PlainOperation final : Operation {
  bool counts = false;
  nb::object Answer(std::uint64_t count) override {
    if (counts) return nb::int_(count);
    return nb::none();
  }
};

// Needs the GIL.
class PyQueue {
 public:
  explicit PyQueue(std::size_t capacity) : queue_(std::make_unique<CompletionQueue>(capacity)) {
    if (queue_->event_fd() < 0) {
      Raise({.code = Code::kLimit,
             .detail =
                 "no descriptor is left for a completion queue: raise the limit of open files "
                 "(ulimit -n)"});
    }
  }
  ~PyQueue() {
    if (!guard_.Here()) {
      // Its threads are not in this process: nothing of it can end.
      (void)queue_.release();
      for (auto& [tag, operation] : operations_) (void)operation.release();
      return;
    }
    const ReleasedGil release;
    queue_.reset();
  }
  PyQueue(const PyQueue&) = delete;
  PyQueue& operator=(const PyQueue&) = delete;

  int event_fd() const {
    guard_.Check();
    return queue_->event_fd();
  }

  // Starts `call(queue, tag, operation)`; its tag.
  template <typename T, typename Call>
  std::uint64_t Start(const std::shared_ptr<Session>& session, std::unique_ptr<T> operation,
                      Call&& call) {
    guard_.Check();
    const std::uint64_t tag = next_tag_++;
    operation->session = session;
    T& started = *operation;
    operations_[tag] = std::move(operation);
    Status status;
    try {
      status = call(*queue_, tag, started);
    } catch (...) {  // an argument that is out of its bounds
      operations_.erase(tag);
      throw;
    }
    if (!status) {
      operations_.erase(tag);
      Raise(status.error());
    }
    return tag;
  }

  // (tag, answer or exception, final), or None.
  nb::object Next(double timeout) {
    guard_.Check();
    const auto wait = Milliseconds(timeout);
    std::optional<Completion> completion = WithoutGil([&] { return queue_->Next(wait); });
    if (!completion) return nb::none();
    const auto at = operations_.find(completion->tag);
    nb::object answer = nb::none();
    const Code code = completion->status ? Code::kOk : completion->status.error().code;
    const bool per_item = dynamic_cast<ResultsOperation*>(at->second.get()) != nullptr;
    const bool raise = code != Code::kOk && (!per_item || !completion->final ||
                                             code == Code::kInvalid || code == Code::kDenied);
    if (raise) {
      answer = ErrorOf(completion->status.error());
    } else {
      answer = at->second->Answer(completion->count);
    }
    if (completion->final) operations_.erase(at);
    return nb::make_tuple(completion->tag, answer, completion->final);
  }

 private:
  ForkGuard guard_;
  std::unordered_map<std::uint64_t, std::unique_ptr<Operation>> operations_;
  std::unique_ptr<CompletionQueue> queue_;
  std::uint64_t next_tag_ = 1;
};

CallOptions OptionsOf(double timeout) { return {.timeout = Milliseconds(timeout)}; }

std::uint64_t StartPut(PyQueue& queue, const PySession& self, nb::object keys, nb::object values,
                       nb::object token_in, nb::object after, nb::object hints, double timeout) {
  const std::shared_ptr<Session> session = self.Get();
  const std::optional<Token> given = TokenOf(token_in);
  auto operation = std::make_unique<PutOperation>(keys, values, after, hints);
  Token token;
  if (given) {
    token = *given;
  } else {
    // Now, not when a thread comes to it: a reset in between must refuse what was handed in before.
    const auto wait = Milliseconds(timeout);
    Result<Token> captured = WithoutGil([&] { return session->Capture({.timeout = wait}); });
    token = Unwrap(std::move(captured));
  }
  return queue.Start(
      session, std::move(operation), [&](auto& to, std::uint64_t tag, PutOperation& put) {
        CallOptions options = OptionsOf(timeout);
        options.after = put.work.after.first;
        return session->PutAsync(to, tag, token, put.work.items, put.results.items, options);
      });
}

std::uint64_t StartGetInto(PyQueue& queue, const PySession& self, nb::object keys,
                           nb::object buffers, const std::string& version, double timeout) {
  const std::shared_ptr<Session> session = self.Get();
  return queue.Start(session, std::make_unique<GetOperation>(keys, buffers),
                     [&](auto& to, std::uint64_t tag, GetOperation& get) {
                       CallOptions options = OptionsOf(timeout);
                       options.version = version;
                       return session->GetAsync(to, tag, get.work.items, get.results.items,
                                                options);
                     });
}

// `kind`: exists, hold, pin, pin_hard, unpin, remove.
std::uint64_t StartKeys(PyQueue& queue, const PySession& self, const std::string& kind,
                        nb::object keys, std::optional<double> seconds, const std::string& version,
                        double timeout) {
  const std::shared_ptr<Session> session = self.Get();
  return queue.Start(session, std::make_unique<KeysOperation>(keys),
                     [&](auto& to, std::uint64_t tag, KeysOperation& work) -> Status {
                       CallOptions options = OptionsOf(timeout);
                       options.version = version;
                       const auto views = work.keys.views();
                       const std::span<ItemResult> results = work.results.items;
                       const bool hard = kind == "pin_hard";
                       const auto duration = PinDuration(seconds, hard);
                       if (kind == "exists")
                         return session->ExistsAsync(to, tag, views, results, options);
                       if (kind == "hold")
                         return session->HoldAsync(to, tag, views, duration, results, options);
                       if (kind == "pin" || hard) {
                         return session->PinAsync(
                             to, tag, views, hard || !seconds ? PinKind::kHard : PinKind::kSoft,
                             duration, results, options);
                       }
                       if (kind == "unpin")
                         return session->UnpinAsync(to, tag, views, results, options);
                       if (kind == "remove")
                         return session->RemoveAsync(to, tag, views, results, options);
                       return Fail(Code::kInvalid, fmt::format("'{}' is no call on keys", kind));
                     });
}

std::uint64_t StartLongestPrefix(PyQueue& queue, const PySession& self, nb::object keys,
                                 const std::string& version, double timeout) {
  const std::shared_ptr<Session> session = self.Get();
  return queue.Start(session, std::make_unique<CountOperation>(keys),
                     [&](auto& to, std::uint64_t tag, CountOperation& work) {
                       CallOptions options = OptionsOf(timeout);
                       options.version = version;
                       return session->LongestPrefixAsync(to, tag, work.keys.views(), options);
                     });
}

std::uint64_t StartRemoveMatching(PyQueue& queue, const PySession& self, const std::string& pattern,
                                  const std::string& version, double timeout) {
  const std::shared_ptr<Session> session = self.Get();
  auto operation = std::make_unique<PlainOperation>();
  operation->counts = true;
  return queue.Start(session, std::move(operation),
                     [&](auto& to, std::uint64_t tag, PlainOperation&) {
                       CallOptions options = OptionsOf(timeout);
                       options.version = version;
                       return session->RemoveMatchingAsync(to, tag, pattern, options);
                     });
}

std::uint64_t StartReset(PyQueue& queue, const PySession& self,
                         const std::optional<std::string>& version, bool all_void, double timeout) {
  const std::shared_ptr<Session> session = self.Get();
  return queue.Start(
      session, std::make_unique<PlainOperation>(),
      [&](auto& to, std::uint64_t tag, PlainOperation&) {
        return session->ResetAsync(
            to, tag, {.timeout = Milliseconds(timeout), .version = version, .all_void = all_void});
      });
}

std::uint64_t StartPrune(PyQueue& queue, const PySession& self, const std::string& before,
                         double timeout) {
  const std::shared_ptr<Session> session = self.Get();
  auto operation = std::make_unique<PlainOperation>();
  operation->counts = true;
  return queue.Start(session, std::move(operation),
                     [&](auto& to, std::uint64_t tag, PlainOperation&) {
                       return session->PruneAsync(to, tag, before, OptionsOf(timeout));
                     });
}

}  // namespace

void BindQueue(nb::module_& module) {
  nb::class_<PyQueue>(module, "Queue")
      .def(nb::init<std::size_t>(), nb::arg("capacity") = 1024)
      .def("fileno", &PyQueue::event_fd)
      .def("next", &PyQueue::Next, nb::arg("timeout") = 0.0,
           nb::sig("def next(self, timeout: float = 0.0) -> tuple[int, typing.Any, bool] | None"))
      .def("start_put", &StartPut, nb::arg("session"), nb::arg("keys"), nb::arg("values"),
           nb::arg("token").none(), nb::arg("after").none(), nb::arg("hints").none(),
           nb::arg("timeout"),
           nb::sig("def start_put(self, session: Session, keys: object, values: object, token: "
                   "Token | None, after: object | None, hints: object | None, timeout: float) -> "
                   "int"))
      .def("start_get_into", &StartGetInto, nb::arg("session"), nb::arg("keys"), nb::arg("buffers"),
           nb::arg("version"), nb::arg("timeout"))
      .def("start_keys", &StartKeys, nb::arg("session"), nb::arg("kind"), nb::arg("keys"),
           nb::arg("seconds").none(), nb::arg("version"), nb::arg("timeout"))
      .def("start_longest_prefix", &StartLongestPrefix, nb::arg("session"), nb::arg("keys"),
           nb::arg("version"), nb::arg("timeout"))
      .def("start_remove_matching", &StartRemoveMatching, nb::arg("session"), nb::arg("pattern"),
           nb::arg("version"), nb::arg("timeout"))
      .def("start_reset", &StartReset, nb::arg("session"), nb::arg("version").none(),
           nb::arg("all_void"), nb::arg("timeout"))
      .def("start_prune", &StartPrune, nb::arg("session"), nb::arg("before"), nb::arg("timeout"));
}

}  // namespace kvcove::python
