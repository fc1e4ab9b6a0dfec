#include "worker.h"

#include <poll.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <filesystem>
#include <mutex>
#include <string>

#include "clock.h"
#include "plan.h"

namespace blink {
namespace {

constexpr unsigned kMessageId = 0;
constexpr std::int64_t kCloseUs = 1'000'000;  // most time for connections to close

// Settings that differ from UCX's defaults, unless the user has set them.
//
// Probes: by default UCX probes a peer over a second connection. TCP's probes and the group's monitor detect lost peers.
//
// Connections: by default TCP's connect() blocks, for two minutes if the network loses all packets.
//
// Segments: TCP's are 8 KiB for sending and 64 KiB for receiving by default, and each is a call of the system. UCX 1.13
// accepts other sizes only from the environment.
//
// Copies: a rank leaves UCX alone between calls, so a message may be done only when the kernel has all of its bytes. UCX
// reports a copied message as done at once, although over TCP the copy may wait for room in the socket; and a flush waits
// for the peer's next call. Without copies the report is exact. With an RDMA card, copies stay: the card sends them by
// itself, and messages without copies would need registered memory. Returns whether reports are exact.
bool settle(const ucx::Library& ucp, void* settings) {
  const auto set = [&](const char* variable, const char* value) {
    const std::string name = std::string("UCX_") + variable;
    return getenv(name.c_str()) == nullptr && ucp.config_modify(settings, variable, value) == ucx::kOk;
  };
  set("KEEPALIVE_INTERVAL", "inf");
  set("TCP_CONN_NB", "y");
  set("TCP_TX_SEG_SIZE", "256K");
  set("TCP_RX_SEG_SIZE", "256K");
  std::error_code none;
  return !std::filesystem::exists("/sys/class/infiniband", none) && set("ZCOPY_THRESH", "0");
}

std::nullptr_t failed(blink_error& why, const ucx::Library& ucp, const char* step, ucx::Status status) {
  return refuse(why, BLINK_SYSTEM, "UCX cannot %s: %s", step, ucp.status_string(status));
}

}  // namespace

std::shared_ptr<UcxContext> UcxContext::open(const char* file, const char* devices, blink_error& why) {
  char reason[sizeof why.text] = {};
  const ucx::Library* library = ucx::load(file, reason, sizeof reason);
  if (library == nullptr) return refuse(why, BLINK_UNSUPPORTED, "%s", reason);
  return open(*library, devices, why);
}

std::shared_ptr<UcxContext> UcxContext::open(const ucx::Library& library, const char* devices, blink_error& why) {
  std::shared_ptr<UcxContext> made(new UcxContext(library));
  void* settings = nullptr;
  ucx::Status status = library.config_read(nullptr, nullptr, &settings);
  if (status != ucx::kOk) return failed(why, library, "read its settings (UCX_*)", status);
  made->reports_exactly_ = settle(library, settings);
  if (devices != nullptr) library.config_modify(settings, "NET_DEVICES", devices);
  ucx::ContextParameters parameters{};
  parameters.mask = ucx::kFeatures | ucx::kWorkersShare;
  parameters.features = ucx::kActiveMessages | ucx::kWakeup;
  parameters.workers_share = 1;  // calls and streams have a worker each, and run in different threads
  status = library.init_version(ucx::kMajor, ucx::kMinor, &parameters, settings, &made->handle_);
  library.config_release(settings);
  if (status != ucx::kOk) return failed(why, library, "use a network of this host", status);
  return made;
}

UcxContext::~UcxContext() {
  if (handle_ != nullptr) library_.cleanup(handle_);
}

std::unique_ptr<Worker> Worker::open(std::shared_ptr<UcxContext> context, ucx::OnMessage on_message, void* receiver,
                                     blink_error& why) {
  const ucx::Library& ucp = context->ucp();
  std::unique_ptr<Worker> made(new Worker(context));
  ucx::WorkerParameters parameters{};
  parameters.mask = ucx::kThreadMode;
  parameters.thread_mode = ucx::kSerialized;
  ucx::Status status = ucp.worker_create(context->handle(), &parameters, &made->handle_);
  if (status != ucx::kOk) return failed(why, ucp, "open the host's networks", status);
  status = ucp.worker_get_efd(made->handle_, &made->events_);
  if (status != ucx::kOk) return failed(why, ucp, "wait for messages", status);
  ucx::HandlerParameters handler{};
  handler.mask = ucx::kHandlerId | ucx::kHandlerCall | ucx::kHandlerContext;
  handler.id = kMessageId;
  handler.call = on_message;
  handler.context = receiver;
  status = ucp.worker_set_am_recv_handler(made->handle_, &handler);
  if (status != ucx::kOk) return failed(why, ucp, "receive messages", status);
  void* address = nullptr;
  std::size_t bytes = 0;
  status = ucp.worker_get_address(made->handle_, &address, &bytes);
  if (status != ucx::kOk) return failed(why, ucp, "tell its address", status);
  const auto* first = static_cast<unsigned char*>(address);
  made->address_.assign(first, first + bytes);
  ucp.worker_release_address(made->handle_, address);
  return made;
}

Worker::~Worker() {
  if (handle_ == nullptr) return;
  close(true);
  ucp().worker_destroy(handle_);
}

void Worker::connect(int peer, const void* address) {
  Endpoint& endpoint = endpoints_[peer];
  endpoint = {};
  ucx::EndpointParameters parameters{};
  parameters.mask = ucx::kAddress | ucx::kErrorMode | ucx::kErrorHandler;
  parameters.address = address;
  parameters.error_mode = ucx::kTellsLostPeers;
  parameters.on_error = {on_error, &endpoint};
  if (ucp().ep_create(handle_, &parameters, &endpoint.handle) == ucx::kOk) return;
  endpoint = {nullptr, true};
}

bool Worker::is_broken(int peer) const {
  const auto place = endpoints_.find(peer);
  return place != endpoints_.end() && place->second.broken;
}

bool Worker::send(int peer, const void* header, std::size_t header_bytes, const void* data, std::size_t bytes,
                  const ucx::RequestParameters& parameters) {
  Endpoint& endpoint = endpoints_.find(peer)->second;
  if (endpoint.broken) return true;
  const void* request = ucp().am_send_nbx(endpoint.handle, kMessageId, header, header_bytes, data, bytes, &parameters);
  endpoint.broken = endpoint.broken || ucx::is_error(request);
  return request == nullptr || ucx::is_error(request);
}

bool Worker::receive(int peer, void* offer, void* into, std::size_t bytes, const ucx::RequestParameters& parameters) {
  const void* request = ucp().am_recv_data_nbx(handle_, offer, into, bytes, &parameters);
  if (ucx::is_error(request)) set_broken(peer);
  return request == nullptr || ucx::is_error(request);
}

// Leaves the connections to the end of the process, which has failed. UCX (1.13 to 1.22) may abort a process that closes a
// connection while that is being made, or has messages. Over TCP messages move in progress() only.
void Worker::abandon() {
  static std::mutex mutex;
  static std::vector<std::shared_ptr<UcxContext>> contexts;
  const std::lock_guard<std::mutex> lock(mutex);
  contexts.push_back(context_);
  handle_ = nullptr;
  for (auto& [peer, endpoint] : endpoints_) endpoint = {nullptr, true};
}

bool Worker::close(bool orderly) {
  if (!orderly && context_->reports_exactly()) {
    if (handle_ != nullptr) abandon();
    return true;
  }
  ucx::RequestParameters parameters{};
  parameters.mask = ucx::kFlags;
  // A flush would wait for each peer's next call. It is needed only for messages that are done but still in a buffer.
  parameters.flags = orderly && !context_->reports_exactly() ? 0 : ucx::kCloseAtOnce;
  std::vector<void*> closing;
  for (auto& [peer, endpoint] : endpoints_) {
    if (endpoint.handle == nullptr) continue;
    void* request = ucp().ep_close_nbx(endpoint.handle, &parameters);
    endpoint = {nullptr, true};
    if (request != nullptr && !ucx::is_error(request)) closing.push_back(request);
  }
  const std::int64_t until = now_us() + kCloseUs;
  for (void* request : closing) {
    while (ucp().request_check_status(request) == ucx::kInProgress && now_us() < until) progress();
    ucp().request_free(request);
  }
  return false;
}

void sleep_on(const std::vector<int>& files, int bell, std::int64_t us) {
  std::vector<pollfd> events;
  for (const int file : files) events.push_back({file, POLLIN, 0});
  events.push_back({bell, POLLIN, 0});  // ppoll ignores -1
  const timespec until{us / 1'000'000, us % 1'000'000 * 1000};
  ppoll(events.data(), events.size(), &until, nullptr);
  std::uint64_t rings;
  if ((events.back().revents & POLLIN) != 0 && read(bell, &rings, sizeof rings) < 0) return;
}

}  // namespace blink
