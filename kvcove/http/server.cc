// SPDX-License-Identifier: Apache-2.0
#include "kvcove/http/server.h"

#include <fmt/core.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <list>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/base/keys.h"
#include "kvcove/base/log.h"
#include "kvcove/base/mutex.h"
#include "kvcove/http/logins.h"
#include "kvcove/http/origin.h"
#include "kvcove/http/url.h"

namespace kvcove::http {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
using asio::ip::tcp;
using boost::system::error_code;
// A connection behind TLS is a Unix socket, and so may the listener be.
using Protocol = asio::generic::stream_protocol;
using Acceptor = asio::basic_socket_acceptor<Protocol>;

constexpr std::size_t kMaxBodyBytes = 64U << 10;
constexpr std::size_t kMaxHeaderBytes = 16U << 10;
constexpr std::int64_t kBodyNs = kSecond;  // in which 8 MiB arrive at 100 Mbit/s
constexpr auto kNoRoom = boost::system::errc::not_enough_memory;
constexpr std::chrono::milliseconds kRefusalDelay(100);  // as rpc::kRefusalDelayNs
constexpr std::chrono::seconds kLookEvery(1);            // whether the listener's name is there
constexpr const char* kLoginPath = "/v1/login";
constexpr const char* kLogoutPath = "/v1/logout";

Protocol ProtocolOf(const UniqueFd& listener) {
  int family = AF_INET;
  socklen_t length = sizeof(family);
  (void)getsockopt(listener.get(), SOL_SOCKET, SO_DOMAIN, &family, &length);
  return {family, 0};
}

// A request that the parser refused, not a connection that ended or ran out of time.
bool IsMalformed(const error_code& error) {
  return error.category() == make_error_code(beast::http::error::bad_method).category() &&
         error != beast::http::error::end_of_stream && error != beast::http::error::partial_message;
}

// Returns whether the request has two lengths, or a length beside chunks. A proxy may then see
// another end of the request than this server, which would take the rest for the next request
// (request smuggling). The parser lets equal lengths pass.
bool HasTwoLengths(const beast::http::request_header<>& head) {
  const std::size_t lengths = head.count(beast::http::field::content_length);
  return lengths > 1 || (lengths == 1 && (head.count(beast::http::field::transfer_encoding) > 0 ||
                                          head[beast::http::field::content_length].find(',') !=
                                              beast::string_view::npos));
}

// Answers a request that the parser refused, or whose end is in doubt.
Response MalformedResponse(const error_code& error) {
  if (error == beast::http::error::header_limit) {
    Response answer = ErrorResponse(
        {Code::kLimit, fmt::format("the head is longer than {} bytes", kMaxHeaderBytes)});
    answer.status = 431;
    return answer;
  }
  return ErrorResponse(
      {Code::kInvalid, fmt::format("not an HTTP/1.1 request: {}",
                                   error ? error.message() : "its length is given twice")});
}

// Parses a body whose fields are parameters. Lists and objects in it are dropped while they are
// read: to print 30,000 of them, one in the other, takes a stack of more than 2 MiB.
Result<nlohmann::json> ParseParameters(const std::string& text) {
  using Event = nlohmann::json::parse_event_t;
  std::set<std::string> names;
  std::string name;
  std::string wrong;  // the first error of a field
  const auto keep = [&](int depth, Event event, nlohmann::json& parsed) {
    if (event == Event::key && depth == 1) {
      name = parsed.get<std::string>();
      if (!names.insert(name).second && wrong.empty()) {
        wrong = fmt::format("'{:.64}' is given twice in the body", name);
      }
    }
    const bool begins = event == Event::object_start || event == Event::array_start;
    if (begins && depth > 0 && wrong.empty()) {
      wrong = fmt::format("'{:.64}' is a list or an object; text or a number is wanted", name);
    }
    return depth == 0 || !begins;
  };
  // To the parser a NUL byte is the end.
  if (text.contains('\0')) return Fail(Code::kInvalid, "the body has a NUL byte, so it is no JSON");
  nlohmann::json body = nlohmann::json::parse(text, keep, /*allow_exceptions=*/false);
  if (!body.is_object()) return Fail(Code::kInvalid, "the body is no JSON object");
  if (!wrong.empty()) return Fail(Code::kInvalid, std::move(wrong));
  return body;
}

// Takes the parameters of the query and, unless the route reads the body itself, of the body. A
// null route: the request is of a login.
Status TakeParameters(std::string_view target, const Route* route, Request& asked) {
  // Probes and scrapes add parameters of their own, such as Prometheus' `params`, which may repeat
  // a name. These routes take none.
  const bool monitors = route != nullptr && (route->open || route->metrics);
  if (const std::size_t mark = target.find('?'); mark != std::string_view::npos && !monitors) {
    KVCOVE_ASSIGN(asked.query, ParseQuery(target.substr(mark + 1)));
  }
  if (asked.body.empty() || (route != nullptr && route->body_bytes > 0)) return {};
  KVCOVE_ASSIGN(const nlohmann::json body, ParseParameters(asked.body));
  for (const auto& [key, value] : body.items()) {
    if (asked.query.contains(key)) {
      return Fail(Code::kInvalid,
                  fmt::format("'{:.64}' is given in the query and in the body", key));
    }
    if (value.is_null()) return Fail(Code::kInvalid, fmt::format("'{:.64}' is null", key));
    asked.query[key] = value.is_string() ? value.get<std::string>() : value.dump();
  }
  return {};
}

// Checks that a request of a login has no parameter but these.
Status CheckNames(const Request& asked, std::span<const std::string_view> known) {
  for (const auto& [name, value] : asked.query) {
    if (std::ranges::find(known, name) != known.end()) continue;
    return UnknownKey("parameter", name.substr(0, 64), known);
  }
  return {};
}

// Runs a route. An exception that left it would end the process.
Response Run(const Route& route, const Request& asked) {
  try {
    return route.answer(asked);
  } catch (const std::exception& error) {
    LogError("{} {}: {}", route.method, route.path, error.what());
    return ErrorResponse({Code::kInternal, "this is a fault of kvcove's; its log has the error"});
  }
}

// Returns the path of the request, decoded, without the query.
std::string PathOf(const beast::http::request_header<>& head) {
  const std::string_view target(head.target().data(), head.target().size());
  return UrlDecode(target.substr(0, target.find('?')));
}

}  // namespace

Result<std::string> Request::Need(const std::string& name) const {
  const auto at = query.find(name);
  if (at == query.end()) {
    return Fail(Code::kInvalid, fmt::format("'{}' is missing", name));
  }
  // Most likely a variable of a script that is unset: an empty namespace must not mean any.
  if (at->second.empty()) return Fail(Code::kInvalid, fmt::format("'{}' is empty", name));
  return at->second;
}

std::string Request::Get(const std::string& name, const std::string& otherwise) const {
  const auto at = query.find(name);
  return at == query.end() ? otherwise : at->second;
}

Response ErrorResponse(const Error& error) {
  int status = 500;
  if (error.code == Code::kInvalid || error.code == Code::kLimit) status = 400;
  if (error.code == Code::kMiss) status = 404;
  if (error.code == Code::kDenied) status = 403;
  if (error.code == Code::kTimeout || error.code == Code::kNotProven) status = 504;
  if (error.code == Code::kUnavailable) status = 503;
  Response response = JsonResponse({{"error", CodeName(error.code)}, {"detail", error.detail}});
  response.status = status;
  return response;
}

std::vector<Route> MonitoringRoutes(const std::vector<Route>& routes) {
  std::vector<Route> some;
  for (const Route& route : routes) {
    if (route.open || route.metrics) some.push_back(route);
  }
  return some;
}

Response JsonResponse(const nlohmann::json& body) {
  return {.body = body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n"};
}

class Server::Impl {
 public:
  Impl(ServerOptions options, std::vector<Route> routes)
      : options_(std::move(options)), routes_(std::move(routes)), acceptor_(loop_) {
    {
      const MutexLock lock(entrance_->mutex);
      entrance_->server = this;
    }
  }
  Status Start() {
    if (options_.listener.valid() || !options_.relisten) {
      KVCOVE_TRY(Listen(std::move(options_.listener)));
    }
    if (options_.relisten) LookForListener();
    while (workers_.size() < options_.workers) {
      KVCOVE_ASSIGN(std::thread worker, StartThread("kvcove-answer", [this] { answers_.run(); }));
      workers_.push_back(std::move(worker));
    }
    if (options_.tick) Tick();
    KVCOVE_ASSIGN(thread_, StartThread("kvcove-http", [this] { loop_.run(); }));
    return {};
  }
  ~Impl() {
    // First: a handshake that ends from here on must not touch the loop any more.
    {
      const MutexLock lock(entrance_->mutex);
      entrance_->server = nullptr;
    }
    // The workers are joined while the loop runs: their last step posts to the loop, and they write
    // into the coroutines' frames, which end with the loop.
    answers_work_.reset();
    for (std::thread& worker : workers_) worker.join();
    if (!thread_.joinable()) return;
    asio::post(loop_, [this] {
      // A forked child may have the listener, too. Without this the name of a Unix socket would
      // accept connections for as long as the child runs, and answer none.
      if (options_.admit) (void)shutdown(acceptor_.native_handle(), SHUT_RDWR);
      acceptor_.close();
      retry_.cancel();
      look_.cancel();
      tick_.cancel();
      for (const auto& [turn, waiting] : waiting_) waiting.close();  // handshakes, too
      loop_.stop();
    });
    thread_.join();
  }

 private:
  using Stream = beast::basic_stream<Protocol>;
  using Parser = beast::http::request_parser<beast::http::string_body>;
  using HttpRequest = beast::http::request<beast::http::string_body>;
  using HttpResponse = beast::http::response<beast::http::string_body>;

  Status Listen(UniqueFd listener) {
    error_code error;
    (void)acceptor_.assign(ProtocolOf(listener), listener.get(), error);
    if (error) {
      return Fail(Code::kInternal, fmt::format("accepting HTTP connections: {}", error.message()));
    }
    (void)listener.Release();
    ++listeners_;
    Accept();
    return {};
  }

  void LookForListener() {
    look_.expires_after(kLookEvery);
    look_.async_wait([this](const error_code& stopped) {
      if (stopped) return;
      if (UniqueFd listener = options_.relisten(); listener.valid()) {
        error_code ignored;
        (void)acceptor_.close(ignored);
        const Status listens = Listen(std::move(listener));
        if (!listens) LogError("no admin socket: {}", listens.error().detail);
      }
      LookForListener();
    });
  }

  void Tick() {
    tick_.expires_after(std::chrono::seconds(1));
    tick_.async_wait([this](const error_code& stopped) {
      if (stopped) return;
      options_.tick();
      Tick();
    });
  }

  void Accept() {
    acceptor_.async_accept(
        [this, of = listeners_](const error_code& error, Protocol::socket socket) {
          if (!acceptor_.is_open() || of != listeners_) return;
          if (error) {
            retry_.expires_after(std::chrono::milliseconds(20));
            retry_.async_wait([this, of](const error_code& stopped) {
              if (!stopped && acceptor_.is_open() && of == listeners_) Accept();
            });
            return;
          }
          if (options_.admit && !options_.admit(socket.native_handle())) return Accept();
          if (count_ < options_.max_connections || CloseLongestWaiting()) {
            ++count_;
            if (options_.tunnel) {
              BeginHandshake(std::move(socket));
            } else {
              asio::co_spawn(loop_, Serve(Stream(std::move(socket))), asio::detached);
            }
          }
          Accept();
        });
  }

  // The way back from handshakes, which another thread makes, and which may outlive this server.
  struct Entrance {
    Mutex mutex;
    Impl* server KVCOVE_GUARDED_BY(mutex) = nullptr;
  };
  // Reports the end of a handshake to the loop when it is destroyed: the tunnel calls `done` only
  // for one that has succeeded, but always destroys it.
  class Handshake {
   public:
    Handshake(std::shared_ptr<Entrance> entrance, std::uint64_t turn)
        : entrance_(std::move(entrance)), turn_(turn) {}
    Handshake(const Handshake&) = delete;
    ~Handshake() {
      const MutexLock lock(entrance_->mutex);
      Impl* const server = entrance_->server;
      if (server == nullptr) return;
      asio::post(server->loop_, [server, turn = turn_, plain = std::move(plain_)]() mutable {
        server->EndHandshake(turn, std::move(plain));
      });
    }
    void Passed(UniqueFd plain) { plain_ = std::move(plain); }

   private:
    const std::shared_ptr<Entrance> entrance_;
    const std::uint64_t turn_;
    UniqueFd plain_;
  };

  void BeginHandshake(Protocol::socket socket) {
    error_code error;
    UniqueFd fd(socket.release(error));
    if (error) {
      --count_;
      return;
    }
    const std::uint64_t turn = ++last_turn_;
    auto handshake = std::make_shared<Handshake>(entrance_, turn);
    // EndHandshake runs on this loop, so it finds this entry even if the handshake has ended
    // already.
    waiting_[turn] = {.close = options_.tunnel(std::move(fd), options_.idle_ns,
                                               [handshake = std::move(handshake)](UniqueFd plain) {
                                                 handshake->Passed(std::move(plain));
                                               }),
                      .shakes_hands = true};
  }

  void EndHandshake(std::uint64_t turn, UniqueFd plain) {
    // Replaced by a newer connection, which took over its place in count_.
    if (waiting_.erase(turn) == 0) return;
    Protocol::socket socket(loop_);
    error_code error;
    if (plain.valid()) (void)socket.assign(Protocol(AF_UNIX, 0), plain.get(), error);
    if (!plain.valid() || error) {
      --count_;
      return;
    }
    (void)plain.Release();
    asio::co_spawn(loop_, Serve(Stream(std::move(socket))), asio::detached);
  }

  // While it exists, the server waits for this client: for `idle_ns` at most, and the connection
  // may be closed for a newer one.
  class Wait {
   public:
    Wait(Impl& server, Stream& stream) : server_(server), turn_(++server.last_turn_) {
      stream.expires_after(std::chrono::nanoseconds(server.options_.idle_ns));
      server.waiting_[turn_] = {.close = [&stream] { stream.close(); }};
    }
    Wait(const Wait&) = delete;
    ~Wait() { server_.waiting_.erase(turn_); }

   private:
    Impl& server_;
    const std::uint64_t turn_;
  };

  // Closes the connection that has waited longest for its client, so that clients that are silent,
  // or send a byte now and then, cannot keep others out. False: none waits for its client.
  bool CloseLongestWaiting() {
    if (waiting_.empty()) return false;
    const Waiting longest = std::move(waiting_.begin()->second);
    waiting_.erase(waiting_.begin());
    longest.close();
    // A handshake ends on another thread, perhaps late; EndHandshake does not count it again. Any
    // other connection counts until its Serve() ends.
    if (longest.shakes_hands) --count_;
    return true;
  }

  asio::awaitable<void> Serve(Stream stream) {
    try {
      beast::flat_buffer buffer(kMaxHeaderBytes + kMaxBodyBytes);
      bool more = true;
      while (more) more = co_await ServeOne(stream, buffer);
    } catch (const std::exception& error) {
      LogDebug("an admin connection ended: {}", error.what());
    }
    error_code ignored;
    (void)stream.socket().shutdown(Protocol::socket::shutdown_both, ignored);
    --count_;
  }

  // The part of `long_bodies_bytes` that one request has. Belongs to the loop's thread.
  class LongBody {
   public:
    LongBody(Impl& server, Stream& stream) : server_(server), stream_(stream) {}
    LongBody(const LongBody&) = delete;
    ~LongBody() { GiveBack(); }
    // False: there is no room for so much now. Bodies that are late make room.
    bool Take(std::size_t bytes) {
      while (bytes > server_.options_.long_bodies_bytes - server_.long_bodies_bytes_) {
        if (!server_.EndLateBody()) return false;
      }
      server_.long_bodies_bytes_ += bytes;
      bytes_ += bytes;
      late_ns_ = server_.clock_.NowNs() + kBodyNs;
      server_.arriving_.push_back(this);
      return true;
    }
    void Arrived() { server_.arriving_.remove(this); }
    void GiveBack() {
      Arrived();
      server_.long_bodies_bytes_ -= std::exchange(bytes_, 0);
    }

    bool IsLate() const { return server_.clock_.NowNs() >= late_ns_; }
    void End() {
      stream_.close();
      GiveBack();
    }

   private:
    Impl& server_;
    Stream& stream_;
    std::size_t bytes_ = 0;
    std::int64_t late_ns_ = 0;  // from then on others need not wait for it
  };

  // Ends the connection whose long body has been arriving longest, if it is late: clients that are
  // slow, or say that they will send much and do not, keep no others out. False: none is late.
  bool EndLateBody() {
    if (arriving_.empty() || !arriving_.front()->IsLate()) return false;
    arriving_.front()->End();
    return true;
  }

  // Reads one request. Its body remains unread where the caller may not send so much (body_limit),
  // and where too many others are in memory (kNoRoom).
  asio::awaitable<error_code> Read(Stream& stream, beast::flat_buffer& buffer, Parser& parser,
                                   LongBody& long_body) {
    parser.header_limit(kMaxHeaderBytes);
    // The parser compares a length in the header with the limit that it has then, so the limit of
    // the path comes after that check.
    parser.body_limit(boost::none);
    error_code error;
    const Wait wait(*this, stream);  // one deadline for all of the request
    co_await beast::http::async_read_header(stream, buffer, parser,
                                            asio::redirect_error(asio::use_awaitable, error));
    if (error) co_return error;
    const std::size_t limit = BodyLimit(parser.get());
    parser.body_limit(limit);
    const std::uint64_t length = parser.content_length().value_or(0);
    if (length > limit) co_return beast::http::error::body_limit;
    if (length > kMaxBodyBytes && !long_body.Take(length)) co_return make_error_code(kNoRoom);
    // libcurl asks so before a long body, and waits a second for an answer.
    if (beast::iequals(parser.get()[beast::http::field::expect], "100-continue")) {
      HttpResponse go_on(beast::http::status::continue_, 11);
      co_await beast::http::async_write(stream, go_on,
                                        asio::redirect_error(asio::use_awaitable, error));
      if (error) co_return error;
    }
    // A body in chunks has no length: once it is long, it may become as long as the limit.
    parser.eager(true);
    for (bool counted = !parser.chunked(); !counted && !error && !parser.is_done();) {
      co_await beast::http::async_read_some(stream, buffer, parser,
                                            asio::redirect_error(asio::use_awaitable, error));
      if (error || parser.get().body().size() <= kMaxBodyBytes) continue;
      if (!long_body.Take(limit)) co_return make_error_code(kNoRoom);
      counted = true;
    }
    if (!error && !parser.is_done()) {
      co_await beast::http::async_read(stream, buffer, parser,
                                       asio::redirect_error(asio::use_awaitable, error));
    }
    long_body.Arrived();
    co_return error;
  }

  // Reads and drops what a client still sends, for `idle_ns` at most. Otherwise the end of the
  // connection would reset it, and the client might never read the answer.
  asio::awaitable<void> DropRest(Stream& stream) {
    error_code error;
    // The end of one direction of a tunnel ends the other, too. The answer says how long it is.
    if (!options_.tunnel) (void)stream.socket().shutdown(Protocol::socket::shutdown_send, error);
    std::array<char, 4096> rest{};
    const Wait wait(*this, stream);
    while (!error) {
      co_await stream.async_read_some(asio::buffer(rest),
                                      asio::redirect_error(asio::use_awaitable, error));
    }
  }

  // Serves one request. False: the connection ends.
  asio::awaitable<bool> ServeOne(Stream& stream, beast::flat_buffer& buffer) {
    Parser parser;
    LongBody long_body(*this, stream);
    error_code error = co_await Read(stream, buffer, parser, long_body);
    Body body = Body::kRead;
    if (error == beast::http::error::body_limit) body = Body::kTooLong;
    if (error == make_error_code(kNoRoom)) body = Body::kNoRoom;
    const bool unread = body != Body::kRead;
    if (error && !unread && !IsMalformed(error)) co_return false;
    const bool malformed = (error && !unread) || HasTwoLengths(parser.get().base());
    HttpRequest request = parser.release();
    Response answer;
    if (malformed) {
      answer = MalformedResponse(unread ? error_code() : error);
    } else {
      answer = co_await Answer(request, body);
    }
    long_body.GiveBack();  // Answer has dropped the body
    if (answer.status == 401 &&
        (request.count(beast::http::field::authorization) > 0 || PathOf(request) == kLoginPath)) {
      // Delays the answer to a wrong bearer, so that guesses are bounded. Meanwhile a newer client
      // may take this connection's place, so guesses keep nobody out.
      const Wait wait(*this, stream);
      asio::steady_timer delay(loop_, kRefusalDelay);
      co_await delay.async_wait(asio::redirect_error(asio::use_awaitable, error));
    }
    HttpResponse response(static_cast<beast::http::status>(answer.status),
                          malformed ? 11 : request.version());
    response.set(beast::http::field::content_type, answer.type);
    response.set(beast::http::field::cache_control, "no-store");
    if (answer.status == 401) response.set(beast::http::field::www_authenticate, "Bearer");
    for (const auto& [name, value] : answer.headers) response.set(name, value);
    response.keep_alive(request.keep_alive() && !malformed && !unread);
    response.body() = std::move(answer.body);
    response.prepare_payload();
    {
      const Wait wait(*this, stream);
      if (request.method() == beast::http::verb::head) {
        // A body would be taken for the next answer.
        beast::http::response_serializer<beast::http::string_body> head(response);
        co_await beast::http::async_write_header(stream, head,
                                                 asio::redirect_error(asio::use_awaitable, error));
      } else {
        co_await beast::http::async_write(stream, response,
                                          asio::redirect_error(asio::use_awaitable, error));
      }
    }
    if (!error && (unread || malformed)) co_await DropRest(stream);
    co_return !error && response.keep_alive();
  }

  // Returns the route of a method and path; null: there is none. HEAD is GET without the body.
  const Route* RouteOf(std::string_view method, std::string_view path) const {
    if (method == "HEAD") method = "GET";
    const auto found = std::ranges::find_if(
        routes_, [&](const Route& route) { return route.method == method && route.path == path; });
    return found == routes_.end() ? nullptr : &*found;
  }

  // Returns how large the body of a request may be.
  std::size_t BodyLimit(const HttpRequest& request) const {
    const std::string_view method(request.method_string().data(), request.method_string().size());
    const Route* const route = RouteOf(method, PathOf(request));
    if (route == nullptr || route->body_bytes == 0) return kMaxBodyBytes;
    return Admits(route, AuthorizationOf(request)) ? route->body_bytes : kMaxBodyBytes;
  }

  // Returns what the request shows: a bearer, which counts alone, or else that of its login.
  std::string AuthorizationOf(const HttpRequest& request) const {
    const auto shown = request[beast::http::field::authorization];
    if (!shown.empty()) return {shown.data(), shown.size()};
    const Cookie cookie = CookieOf(request);
    if (cookie.value.empty()) return {};
    return logins_.Find(cookie.value, clock_.NowNs()).authorization;
  }

  // Returns whether a caller that shows this may ask. A null route: there is none.
  bool Admits(const Route* route, const std::string& authorization) const {
    if (!options_.authorize || (route != nullptr && route->open)) return true;
    return options_.authorize(authorization, route != nullptr && route->metrics);
  }

  // Answers a request that has no route with those that there are.
  Response NoRoute(const Request& asked) const {
    std::vector<std::pair<std::string_view, std::string_view>> routes;
    for (const Route& route : routes_) routes.emplace_back(route.method, route.path);
    if (options_.logins) {
      routes.insert(routes.end(),
                    {{"GET", kLoginPath}, {"POST", kLoginPath}, {"POST", kLogoutPath}});
    }
    std::string methods;
    std::vector<std::string_view> paths;
    nlohmann::json list = nlohmann::json::array();
    for (const auto& [method, path] : routes) {
      list.push_back(fmt::format("{} {}", method, path));
      paths.push_back(path);
      if (path == asked.path) methods += fmt::format("{}{}", methods.empty() ? "" : ", ", method);
    }
    if (methods.empty()) {
      const std::string_view nearest = NearestKey(asked.path, paths);
      Response answer = JsonResponse(
          {{"error", "no such path"},
           {"detail", fmt::format("no path '{:.64}' here{}", asked.path,
                                  nearest.empty() ? std::string()
                                                  : fmt::format("; did you mean '{}'?", nearest))},
           {"paths", std::move(list)}});
      answer.status = 404;
      return answer;
    }
    Response answer = JsonResponse(
        {{"error", "this path has another method"},
         {"detail", fmt::format("{} takes {}, not {:.16}", asked.path, methods, asked.method)}});
    answer.status = 405;
    answer.headers.emplace_back("Allow", methods);
    return answer;
  }

  enum class Body { kRead, kTooLong, kNoRoom };
  // Takes the request's body. If it was not read, the answer is an error.
  asio::awaitable<Response> Answer(HttpRequest& request, Body body) {
    const bool tls = options_.tunnel != nullptr;
    if (const Status origin = CheckOrigin(request, options_.loopback, tls); !origin) {
      co_return ErrorResponse(origin.error());
    }
    Request asked{.method = std::string(request.method_string()),
                  .body = std::move(request.body()),
                  .arrived_ns = clock_.NowNs()};
    asked.authorization = AuthorizationOf(request);
    asked.path = PathOf(request);
    const Route* const found = RouteOf(asked.method, asked.path);
    const bool logs_in = options_.logins && body == Body::kRead &&
                         (asked.path == kLoginPath || asked.path == kLogoutPath);
    // Before anything is parsed: nobody without credentials learns more than that.
    if (!logs_in && !Admits(found, asked.authorization)) {
      const bool metrics = found != nullptr && found->metrics;
      Response denied = JsonResponse(
          {{"error", "denied"},
           {"detail", fmt::format("this path asks for credentials with the scope \"admin\"{}: "
                                  "'kvcove admin --admin HOST:PORT --token FILE', or the header "
                                  "'Authorization: Bearer X', X from 'kvcove token --bearer FILE'",
                                  metrics ? " or \"metrics\"" : "")}});
      denied.status = 401;
      co_return denied;
    }
    if (body == Body::kNoRoom) {
      Response later = ErrorResponse(
          {Code::kUnavailable,
           fmt::format("long bodies of other requests are under way, {} bytes of {}; try again",
                       long_bodies_bytes_, options_.long_bodies_bytes)});
      later.headers.emplace_back("Retry-After", "1");
      co_return later;
    }
    if (body == Body::kTooLong) {
      const std::size_t limit =
          found != nullptr && found->body_bytes > 0 ? found->body_bytes : kMaxBodyBytes;
      co_return ErrorResponse(
          {Code::kLimit, fmt::format("the body is longer than {} bytes", limit)});
    }
    if (!logs_in && found == nullptr) co_return NoRoute(asked);
    const std::string_view target(request.target().data(), request.target().size());
    if (const Status taken = TakeParameters(target, found, asked); !taken) {
      co_return ErrorResponse(taken.error());
    }
    if (logs_in) co_return LogIn(asked, CookieOf(request));
    if (!found->waits) co_return Run(*found, asked);
    Response answer;
    const auto executor = co_await asio::this_coro::executor;
    asio::steady_timer done(executor);
    done.expires_at(asio::steady_timer::time_point::max());
    // The worker refers to this coroutine's frame. It posts the end of the wait to the loop, which
    // runs this coroutine: so async_wait() below has begun before cancel() runs, and the answer is
    // written before it is read.
    asio::post(answers_, [&] {
      answer = Run(*found, asked);
      asio::post(executor, [&done] { done.cancel(); });
    });
    error_code error;
    co_await done.async_wait(asio::redirect_error(asio::use_awaitable, error));
    co_return answer;
  }

  struct Cookie {
    std::string name;
    std::string value;  // empty: the request has none
  };
  Cookie CookieOf(const HttpRequest& request) const {
    if (!options_.logins) return {};
    const auto host = request[beast::http::field::host];
    const auto cookies = request[beast::http::field::cookie];
    Cookie cookie{.name = CookieName({host.data(), host.size()}), .value = {}};
    cookie.value = CookieIn({cookies.data(), cookies.size()}, cookie.name);
    return cookie;
  }

  // Answers the paths of logins. GET never fails: a page asks whether it must show its form, and a
  // browser reports each refused request as an error of the page.
  Response LogIn(const Request& request, const Cookie& cookie) {
    const bool secure = options_.tunnel != nullptr;
    const auto may = [this](const std::string& authorization) {
      return !options_.authorize || options_.authorize(authorization, /*metrics=*/false);
    };
    const bool bearer = request.path == kLoginPath && request.method == "POST";
    if (const Status names = bearer ? Status() : CheckNames(request, {}); !names) {
      return ErrorResponse(names.error());
    }
    if (request.path == kLoginPath && (request.method == "GET" || request.method == "HEAD")) {
      const Logins::Found login = logins_.Find(cookie.value, clock_.NowNs());
      return JsonResponse({{"needed", options_.authorize != nullptr},
                           {"logged_in", may(login.authorization)},
                           {"seconds_left", login.left_ns / kSecond}});
    }
    if (request.method != "POST") return NoRoute(request);
    logins_.End(cookie.value);
    Response answer = JsonResponse({{"logged_in", false}});
    std::string value;
    if (request.path == kLoginPath) {
      const std::string authorization = "Bearer " + request.Get("bearer");
      if (!may(authorization)) {
        answer = JsonResponse({{"error", "denied"},
                               {"detail",
                                "this is no bearer of a token with the scope \"admin\" that the "
                                "servers' credentials file has now; a token that was struck off "
                                "counts no more. 'kvcove token --bearer FILE' prints the bearer "
                                "of one that is in the file"}});
        answer.status = 401;
        return answer;
      }
      // Checked behind the bearer: a client that guesses bearers is told of its other mistakes only
      // once it has a right one.
      constexpr std::string_view kKnown[] = {"bearer"};
      if (const Status names = CheckNames(request, kKnown); !names) {
        return ErrorResponse(names.error());
      }
      value = logins_.Begin(authorization, clock_.NowNs());
      answer = JsonResponse({{"logged_in", true}, {"seconds_left", Logins::kLifetimeNs / kSecond}});
    }
    answer.headers.emplace_back("Set-Cookie", SetCookie(cookie.name, value, secure));
    return answer;
  }

  ServerOptions options_;
  const std::vector<Route> routes_;
  const Clock& clock_ = SystemClock::Instance();
  // Belong to the loop's thread. Declared before the loop, because they must outlive it: its
  // connections refer to them.
  struct Waiting {
    std::function<void()> close;
    bool shakes_hands = false;
  };
  std::map<std::uint64_t, Waiting> waiting_;  // by turn, the longest wait first
  const std::shared_ptr<Entrance> entrance_ = std::make_shared<Entrance>();
  Logins logins_;
  std::uint64_t last_turn_ = 0;
  std::size_t count_ = 0;
  std::size_t long_bodies_bytes_ = 0;  // of all LongBody
  std::list<LongBody*> arriving_;      // those that are being read, the first one since longest
  asio::io_context loop_{1};
  Acceptor acceptor_;
  std::uint64_t listeners_ = 0;  // so far: a callback of an earlier one does nothing
  asio::steady_timer retry_{loop_};
  asio::steady_timer look_{loop_};
  asio::steady_timer tick_{loop_};
  asio::io_context answers_;
  asio::executor_work_guard<asio::io_context::executor_type> answers_work_{answers_.get_executor()};
  std::vector<std::thread> workers_;  // run `answers_`
  std::thread thread_;
};

Result<std::unique_ptr<Server>> Server::Open(ServerOptions options, std::vector<Route> routes) {
  std::unique_ptr<Impl> impl;
  try {
    impl = std::make_unique<Impl>(std::move(options), std::move(routes));
  } catch (const boost::system::system_error& error) {  // a loop has descriptors of its own
    return Fail(Code::kLimit, fmt::format("serving HTTP: {}", error.what()));
  }
  KVCOVE_TRY(impl->Start());
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() = default;

Result<Response> Call(const CallOptions& options) {
  asio::io_context loop(1);
  beast::tcp_stream stream(loop);
  Result<Response> result = Fail(Code::kTimeout, options.server + " did not answer in time");
  const auto run = [&]() -> asio::awaitable<void> {
    error_code error;
    const auto wait = [&] { return asio::redirect_error(asio::use_awaitable, error); };
    const auto fail = [&] {
      result = Fail(
          error == beast::error::timeout ? Code::kTimeout : Code::kUnavailable,
          fmt::format("{} {}:{}: {}", options.server, options.host, options.port, error.message()));
    };
    stream.expires_after(std::chrono::nanoseconds(options.timeout_ns));
    tcp::resolver resolver(loop);
    const auto found =
        co_await resolver.async_resolve(options.host, std::to_string(options.port), wait());
    if (error) co_return fail();
    co_await stream.async_connect(found, wait());
    if (error) co_return fail();
    beast::http::request<beast::http::string_body> request(
        beast::http::string_to_verb(options.method), options.target, 11);
    const bool six = options.host.find(':') != std::string::npos;
    request.set(beast::http::field::host,
                fmt::format("{}:{}", six ? "[" + options.host + "]" : options.host, options.port));
    if (options.method != "GET") request.set("X-Kvcove-Request", "1");  // as CheckOrigin asks
    if (!options.authorization.empty()) {
      request.set(beast::http::field::authorization, options.authorization);
    }
    request.keep_alive(false);
    if (!options.body.empty()) request.set(beast::http::field::content_type, "application/json");
    request.body() = options.body;
    request.prepare_payload();
    co_await beast::http::async_write(stream, request, wait());
    if (error) co_return fail();
    beast::flat_buffer buffer;
    beast::http::response_parser<beast::http::string_body> parser;
    parser.body_limit(64U << 20);
    co_await beast::http::async_read(stream, buffer, parser, wait());
    if (error) co_return fail();
    const auto& response = parser.get();
    const auto type = response[beast::http::field::content_type];
    result = Response{.status = static_cast<int>(response.result_int()),
                      .body = response.body(),
                      .type = std::string(type.data(), type.size())};
  };
  asio::co_spawn(loop, run(), asio::detached);
  loop.run();
  return result;
}

}  // namespace kvcove::http
