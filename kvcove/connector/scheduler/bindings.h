// SPDX-License-Identifier: Apache-2.0
// The known generations of versions, and the work of the binder's thread.
//
// A session of the pool that has bound a version answers from memory. Its first answer, and the one
// after another engine's reset, is a call to the pool, which may be slow. So the engine's thread
// asks for a version only while it is bound; else the version is queued, and the binder asks for
// it.
//
//   unknown --Add--> queued --Next--> asked --Answered--> bound
//                      ^                         |          | a capture fails
//                      +---- no answer ----------+          v
//                      +------------------------------- not bound
//   asked --Answered: the pool would refuse the next try, too--> refused, until Forget
//
// Where there is no binder's thread (simulations), the engine's thread asks for a version at once
// when it is new.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "kvcove/base/log.h"
#include "kvcove/base/result.h"
#include "kvcove/connector/scheduler/scheduler_types.h"

namespace kvcove::connector {

// Does no I/O: its owner asks the pool, between two calls. Needs its owner's lock.
class Bindings {
 public:
  // Tokens that are remembered. With one more version all are forgotten, which begins an epoch.
  static constexpr std::size_t kMostTokens = 65'536;

  // The options outlive it.
  explicit Bindings(const SchedulerOptions& options) : options_(options) {}

  // Makes the version known, and queues it for the binder, if there is one.
  void Add(const std::string& version, std::int64_t now_ns) { (void)Of(version, now_ns); }
  // Returns whether the version's requests should wait a little: it is being bound for the first
  // time, and KV that they compute until then could not be stored.
  bool Awaits(const std::string& version, std::int64_t now_ns);

  // Finds the token for a request's first step. `ask`: the caller asks the pool, for no longer than
  // `timeout`, and passes the answer to EndCapture. Else `token` may be used, if it is set.
  struct Question {
    bool ask = false;
    std::chrono::milliseconds timeout{};
    std::optional<Token> token;
  };
  // `left`: the step's time for captures. With none left, or while the pool is late, the last token
  // is used: if that is too old by now, the pool refuses the values that are stored under it, and
  // nothing else is lost.
  Question BeginCapture(const std::string& version, std::chrono::milliseconds left,
                        std::int64_t now_ns);
  struct Answer {
    std::optional<Token> token;
    bool ends_waits = false;  // requests that wait because of Awaits need not wait any longer
    // KV that was computed before is void: the generation is another one, or the ones of before are
    // forgotten.
    bool moved = false;
  };
  Answer EndCapture(const std::string& version, const Result<Token>& token, std::int64_t now_ns,
                    LinesAfterLock& lines);

  // Takes the version that was queued first; none: nothing is queued.
  std::optional<std::string> Next();
  Answer Answered(const std::string& version, const Result<Token>& token, LinesAfterLock& lines);
  bool idle() const { return queue_.empty() && !names_queued_; }
  // Chooses the binder's next work. True: a version is queued; versions precede names, as requests
  // wait for them. False: names are due, and are taken off the queue.
  bool BindsNext();
  // Returns whether work was queued since the last call: then the binder has to be woken.
  bool TakeQueued() { return std::exchange(queued_, false); }

  // Note when the pool needs the names of the versions in use. `salts`: each request names its
  // version, and there are requests.
  void NamesChanged() { names_changed_ = true; }
  bool NamesDue(bool salts, std::int64_t now_ns) const;
  void QueueNames(bool salts, std::int64_t now_ns);
  void BeginNaming(std::int64_t now_ns);

  // Forgets the tokens before a reset of this engine: the next one begins no epoch, as the reset
  // does that itself.
  void ForgetTokens() { tokens_.clear(); }
  // Forgets all bindings after a proven reset: the next requests wait for the new generation, as
  // those of another version do, and ask for it. As no call asks before there is work, engines that
  // reset after one update share the generation.
  void Forget();

 private:
  struct Binding {
    bool bound = false;
    bool was_bound = false;     // once bound, its requests do not wait for it any more
    bool queued = false;        // queued for the binder, or being asked for
    bool late = false;          // the pool did not answer the last try in time
    bool refused = false;       // the pool would refuse the next try, too: requests store nothing
    std::int64_t since_ns = 0;  // when it was first wanted
  };
  Binding& Of(const std::string& version, std::int64_t now_ns);
  void Want(const std::string& version, Binding& binding);
  // Decides whether a failed try is repeated; logs a refusal once. True: requests should not wait.
  bool Refuse(std::string_view version, Binding& binding, const Error& error,
              LinesAfterLock& lines);
  std::optional<Token> LastToken(std::string_view version) const;
  // Notes a token. True: the pool has another generation than at the last one, or might have had
  // one unnoticed since the token that was forgotten.
  bool Notice(std::string_view version, const Token& token, LinesAfterLock& lines);

  const SchedulerOptions& options_;
  std::map<std::string, Token, std::less<>> tokens_;  // last seen
  std::map<std::string, Binding, std::less<>> bindings_;
  std::deque<std::string> queue_;
  bool queued_ = false;
  bool refusal_logged_ = false;
  bool names_changed_ = false;
  bool names_queued_ = false;
  std::int64_t named_ns_ = 0;
};

}  // namespace kvcove::connector
