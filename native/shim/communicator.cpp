#include "communicator.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "real_nccl.h"

namespace blink::shim {
namespace {

// Seconds that an abort waits for kernels to give up. A kernel that still runs then ends later, or with the process.
constexpr double kAbortSeconds = 1, kForeverSeconds = 1e9;

// A number of seconds, such as "1800" or "0.5".
std::string seconds_text(double seconds) {
  std::ostringstream text;
  text << seconds;
  return text.str();
}

}  // namespace

Communicator::~Communicator() {
  settle();
  finalize();
}

std::string Communicator::why_not() {
  settle();
  const std::lock_guard<std::mutex> lock(mutex_);
  return resources_ != nullptr ? "" : why_not_;
}

void Communicator::announce() {
  bootstrap_ = Bootstrap::announce(key_, place.nranks, place.rank, &why_not_);
  if (bootstrap_ == nullptr && why_not_.empty()) why_not_ = "this rank cannot be announced";
}

void Communicator::begin() {
  timeout_s_ = seconds_from("BLINK_TIMEOUT", place.without_nccl ? 1800 : 0);  // there is no watchdog then
  place.nccl_version = place.without_nccl ? 0 : real_version();
  if (bootstrap_ == nullptr && why_not_.empty()) announce();
  if (bootstrap_ == nullptr) return say("NCCL runs everything: " + why_not_);
  // In the caller's thread, whose context the program has chosen; the setup thread has none.
  std::string unknown;
  CUdevice device = 0;
  const Driver* const cuda = driver(&unknown);
  unsigned multiprocessors = 0;
  if (cuda != nullptr && cuda->device_get(&device, place.device) == kCudaSuccess &&
      multiprocessors_here(*cuda, device, &multiprocessors) == kCudaSuccess) {
    place.multiprocessors = multiprocessors;
  }
  state_ = State::kSettling;
  setup_ = std::thread([this] { prepare(); });
}

void Communicator::settle() {
  const std::lock_guard<std::mutex> lock(joining_);
  if (setup_.joinable()) setup_.join();
}

bool Communicator::takes(const Operation& operation, std::string* why_left) {
  settle();
  const std::lock_guard<std::mutex> lock(mutex_);
  // A failed communicator must not switch to NCCL: other ranks may be inside this call in Blink.
  if (state_ == State::kFailed) return true;
  const bool ours = state_ == State::kOurs;
  const std::uint64_t bytes = bytes_of(operation);
  std::string why = why_not_;
  const int choice = ours ? decide(operation, bytes, &why) : -1;
  if (choice < 0 && why_left != nullptr) {
    *why_left = why;
  } else if (operation.collective != Collective::kRecv) {  // a message counts at its sender
    count_call(caller(), operation, bytes, ours ? &resources_->bundle : nullptr, choice, why);
  }
  return choice >= 0;
}

ncclResult_t Communicator::enqueue(const Operation& operation) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (state_ != State::kOurs) return ncclRemoteError;
  if (operation.count == 0) return ncclSuccess;
  const ncclResult_t before = trouble();
  if (before != ncclSuccess) return before;
  const std::uint64_t bytes = bytes_of(operation);
  const int choice = decide(operation, bytes);
  InContext context(resources_->engine->driver(), resources_->engine->context());
  if (!context) return ncclUnhandledCudaError;
  Engine::Capture capture;
  CUresult result = resources_->engine->capture_of(operation.stream, &capture);
  // A call that cannot be captured counts, too, since it may have been captured on other ranks.
  const ChunkSearches::Use use = searches_->next(choice, capture.any() || result != kCudaSuccess);
  if (result == kCudaSuccess) result = launch(operation, use, capture);
  if (result == kCudaSuccess) {
    searches_->launched(choice, use, bytes);
    return ncclSuccess;
  }
  return refused(result, "a launch", capture.any());
}

// Reports an error of the driver.
ncclResult_t Communicator::refused(CUresult result, const char* what, bool captured) {
  const std::string text = describe(resources_->engine->driver(), result, what);
  if (captured || concerns_capture(result)) {
    // All ranks capture a call, or none does: nothing was launched anywhere, and the communicator stays usable. The
    // same holds for a call on the legacy stream while another stream is captured.
    warn("rank " + std::to_string(place.rank) + " of " + key_.substr(0, 8) + ": a call cannot be captured: " + text);
  } else {
    give_up(text);  // peers that have launched wait for this rank, so they must be aborted
  }
  return ncclUnhandledCudaError;
}

ncclResult_t Communicator::join(const std::vector<CUstream>& streams) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (streams.size() < 2 || state_ != State::kOurs) return ncclSuccess;
  InContext context(resources_->engine->driver(), resources_->engine->context());
  const CUresult result = context ? resources_->engine->join(streams) : kCudaInvalidContext;
  if (result == kCudaSuccess) return ncclSuccess;
  if (result == kCudaCaptureMerge) {
    warn("rank " + std::to_string(place.rank) + " of " + key_.substr(0, 8) +
         ": the streams of a group's calls must all be captured by the same graph, or none of them");
    return ncclInvalidUsage;
  }
  return refused(result, "the streams of a group");
}

ncclResult_t Communicator::order(CUstream stream, CUresult (Engine::*step)(CUstream)) {
  settle();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (state_ != State::kOurs) return ncclSuccess;
  InContext context(resources_->engine->driver(), resources_->engine->context());
  const CUresult result = context ? (resources_->engine.get()->*step)(stream) : kCudaInvalidContext;
  // NCCL itself refuses calls that a capture does not allow.
  if (result == kCudaSuccess || concerns_capture(result)) return ncclSuccess;
  return refused(result, "the order of NCCL's calls and ours");
}

ncclResult_t Communicator::after_nccl(CUstream stream, ncclResult_t result) {
  if (result == ncclInProgress) {
    late_stream_ = stream;
    late_ = true;
  }
  if (result != ncclSuccess) return result;
  return order(stream, &Engine::after_nccl);
}

void Communicator::fork(CUstream stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (state_ != State::kOurs) return;
  InContext context(resources_->engine->driver(), resources_->engine->context());
  forked_ = context ? resources_->engine->fork(stream) : kCudaInvalidContext;
}

ncclResult_t Communicator::enqueue(const std::vector<Operation>& messages, CUstream stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (state_ != State::kOurs) return ncclRemoteError;
  const ncclResult_t before = trouble();
  if (before != ncclSuccess) return before;
  std::vector<CopyEngines::Message> parts;
  for (const Operation& message : messages) {
    const bool sends = message.collective == Collective::kSend;
    const std::uint64_t bytes = bytes_of(message);
    const Bundle::Split* const split = split_of(resources_->bundle, sends ? place.rank : message.root,
                                                sends ? message.root : place.rank, bytes);
    const auto at = reinterpret_cast<CUdeviceptr>(sends ? message.send : message.recv);
    parts.push_back({split, sends, at, bytes});
  }
  InContext context(resources_->engine->driver(), resources_->engine->context());
  CUresult result = context ? forked_ : kCudaInvalidContext;
  if (result == kCudaSuccess) {
    result = resources_->engine->launch(parts, static_cast<std::uint64_t>(timeout_s_ * 1e9), stream);
  }
  return result == kCudaSuccess ? static_cast<ncclResult_t>(ncclSuccess) : refused(result, "messages");
}

// Watchdogs call it while another thread may be blocked in a launch.
ncclResult_t Communicator::async_error() {
  if (late_.exchange(false)) after_nccl(late_stream_, ncclSuccess);
  if (state_ == State::kSettling) return ncclInProgress;
  const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock) return aborted() ? ncclRemoteError : ncclSuccess;
  return resources_ == nullptr ? static_cast<ncclResult_t>(ncclSuccess) : trouble();
}

void Communicator::abort() {
  cancelled_ = true;  // the setup stops planning
  settle();
  std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock) {
    // A launch into a full GPU queue returns only after the kernels before it have given up.
    raise_abort();
    lock.lock();
  }
  // A rank with no running call leaves without an abort: peers may still finish a call without it, and programs abort
  // at their end. Unobserved replays of a graph count as running.
  if (resources_ != nullptr && (resources_->engine->has_unseen_replays() || !resources_->engine->drain(0))) {
    give_up("aborted", Level::kInfo);
  }
  release(kAbortSeconds, false);
}

ncclResult_t Communicator::finalize() {
  settle();
  const std::lock_guard<std::mutex> lock(mutex_);
  // Kernels wait for peers without a limit, as NCCL's do, and so does this call.
  const ncclResult_t result = release(timeout_s_ > 0 ? timeout_s_ + kAbortSeconds : kForeverSeconds, true);
  bootstrap_.reset();
  report_calls(caller());
  return result;
}

void Communicator::say(const std::string& text, bool every_rank) const {
  if (place.rank == 0 || every_rank) info("communicator " + key_.substr(0, 8) + " of " + std::to_string(place.nranks) +
                             " ranks: " + text);
}

void Communicator::prepare() {
  std::string why;
  std::unique_ptr<Resources> resources;
  try {
    resources = set_up(bootstrap_.get(), place, cancelled_, &why);
  } catch (const std::exception& error) {
    why = error.what();
  }
  bootstrap_.reset();  // no other rank needs this one's socket any more
  const std::lock_guard<std::mutex> lock(mutex_);
  if (resources != nullptr) {
    InContext context(resources->engine->driver(), resources->engine->context());
    searches_ = std::make_unique<ChunkSearches>(resources->engine->driver(), resources->bundle, resources->page.get(),
                                                place.rank);
    const std::uint32_t blocks = resources->engine->blocks(), planned = resources->bundle.blocks();
    say("plan " + resources->bundle.plan.substr(0, 8) + " is loaded" +
        (blocks == planned ? "" : ", with " + std::to_string(blocks) + " of " + std::to_string(planned) +
                                      " thread blocks, the most that fit the GPU"));
  } else {
    why_not_ = cancelled_ ? "aborted before its plan was loaded" : why;
    // Rank 0 logs for all, unless rank 0 itself is missing.
    const bool without_rank_0 = why_not_.compare(0, 7, "rank 0 ") == 0;
    say("NCCL runs everything: " + why_not_, without_rank_0);
  }
  if (resources != nullptr) share_page(resources->page);
  state_ = resources != nullptr ? State::kOurs : State::kTheirs;
  resources_ = std::move(resources);
}

int Communicator::decide(const Operation& operation, std::uint64_t bytes, std::string* why) const {
  if (is_message(operation.collective)) return decide_message(operation, bytes, why);
  const Bundle& bundle = resources_->bundle;
  const Bundle::Choice* const row = choice_of(bundle, operation.collective, operation.root, bytes);
  if (why != nullptr) *why = row == nullptr ? "the plan has no row for it" : bundle.text(row->why);
  return row == nullptr || row->program < 0 ? -1 : static_cast<int>(row - bundle.choices.data());
}

int Communicator::decide_message(const Operation& operation, std::uint64_t bytes, std::string* why) const {
  const Bundle& bundle = resources_->bundle;
  const bool sends = operation.collective == Collective::kSend;
  const Bundle::Split* const row =
      split_of(bundle, sends ? place.rank : operation.root, sends ? operation.root : place.rank, bytes);
  Engine::Capture capture;
  const bool captured = row != nullptr &&
                        resources_->engine->capture_of(operation.stream, &capture) == kCudaSuccess && capture.any();
  if (why != nullptr) {
    *why = row == nullptr ? "no path table (BLINK_PATHS) has more than the direct path for it"
           : captured     ? "copy engines serve no graphs"
                          : bundle.text(row->why);
  }
  // Both ends capture a message, or neither does.
  return row == nullptr || captured ? -1 : static_cast<int>(row - bundle.splits.data());
}

CUresult Communicator::launch(const Operation& operation, const ChunkSearches::Use& use,
                              const Engine::Capture& capture) {
  Call call = call_of(operation);
  call.chunk_bytes = use.way.chunk_bytes;
  call.timeout_ns = static_cast<Word>(timeout_s_ * 1e9);
  Bundle::Protocol protocol = use.way.protocol;
  if (capture.any() && protocol == Bundle::kCopies) {
    // Graphs cannot contain copy engines' work. All ranks capture a call, or none does.
    protocol = Bundle::kSimple;
    call.chunk_bytes = std::min<Word>(call.chunk_bytes, resources_->bundle.slot_bytes);
  }
  return resources_->engine->launch(use.way.program, protocol, call, operation.stream, capture, use.before, use.after);
}

// Reports the kernels' first error, and aborts the peers at once.
ncclResult_t Communicator::trouble() {
  if (state_ == State::kFailed || cancelled_) return ncclRemoteError;  // abort() itself reports a cancellation
  const Status status = resources_->engine->status();
  if (status.code == kRunning) {
    if (__atomic_load_n(resources_->page->abort_word(), __ATOMIC_RELAXED) == 0) return ncclSuccess;
    // No call of this communicator can complete any more.
    give_up("another rank has given up");
    return ncclRemoteError;
  }
  give_up((status.code == kTimedOut ? "waited " + seconds_text(timeout_s_) + " s" : std::string("gave up waiting")) +
          " for " + (status.sending != 0 ? "room for " : "") + "message " + std::to_string(status.position) +
          " on connection " + connection_text(status.connection) + ", channel " + std::to_string(status.channel));
  return ncclRemoteError;
}

std::string Communicator::connection_text(std::uint32_t index) const {
  if (index >= resources_->bundle.connections.size()) return std::to_string(index);
  const Bundle::Connection& connection = resources_->bundle.connections[index];
  return "from rank " + std::to_string(connection.src) + " to rank " + std::to_string(connection.dst);
}

// The abort word on the page stops the waits for this rank: kernels poll it, and so do the threads that watch copies.
void Communicator::share_page(std::shared_ptr<SharedPage> page) {
  const std::lock_guard<std::mutex> lock(page_mutex_);
  page_ = std::move(page);
}

bool Communicator::aborted() {
  const std::lock_guard<std::mutex> lock(page_mutex_);
  return page_ != nullptr && __atomic_load_n(page_->abort_word(), __ATOMIC_RELAXED) != 0;
}

void Communicator::raise_abort() {
  const std::lock_guard<std::mutex> lock(page_mutex_);
  if (page_ != nullptr) __atomic_store_n(page_->abort_word(), 1u, __ATOMIC_RELAXED);
}

void Communicator::give_up(const std::string& why, Level level) {
  if (state_ == State::kFailed) return;
  state_ = State::kFailed;
  why_not_ = why;
  raise_abort();
  log(level, "rank " + std::to_string(place.rank) + " of " + key_.substr(0, 8) + ": " + why);
}

// `frees`: the caller may wait for all work on the GPU, as in NCCL. An abort may not, since that work may never end.
ncclResult_t Communicator::release(double patience_s, bool frees) {
  if (resources_ == nullptr) return ncclSuccess;
  if (!resources_->engine->drain(patience_s)) {
    const bool failed_before = state_ == State::kFailed;
    if (!failed_before) warn("kernels of communicator " + key_.substr(0, 8) + " are still running; Blink aborts them");
    raise_abort();
    resources_->engine->drain(kAbortSeconds);
  }
  const ncclResult_t result = trouble();
  share_page(nullptr);
  const Driver& driver = resources_->engine->driver();
  InContext context(driver, resources_->engine->context());
  searches_.reset();
  release_when_ended(std::move(resources_));
  if (state_ == State::kOurs) state_ = State::kTheirs;
  if (frees) pool::unregister_pages(driver);
  return result;
}

}  // namespace blink::shim
