#include "engine.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>

#include "environment.h"
#include "log.h"

namespace blink::shim {
namespace {

constexpr CUresult kPeerAlreadyEnabled = 704;
constexpr unsigned kIpcLazyPeerAccess = 1;
constexpr std::size_t kWordsOfCopies = 2048;  // in the status page
constexpr char kFold[] = "blink_fold";
constexpr std::size_t kCapturesAtOnce = 8;  // with alternating calls of one communicator; the oldest is dropped

bool from_hex(const std::string& text, char* bytes, std::size_t size) {
  if (text.size() != 2 * size) return false;
  for (std::size_t i = 0; i < size; ++i) {
    unsigned value = 0;
    if (std::sscanf(text.c_str() + 2 * i, "%2x", &value) != 1) return false;
    bytes[i] = static_cast<char>(value);
  }
  return true;
}

// NCCL's own switch: with 0 the program itself orders graphs and calls, and graphs get no nodes for it.
bool mixes_graphs() {
  const char* text = variable("NCCL_GRAPH_MIXING_SUPPORT");
  if (text == nullptr) return true;
  char* end = nullptr;
  return std::strtol(text, &end, 0) != 0 || end == text;
}

// Process ids repeat across PID namespaces; random numbers make the name unique.
std::string process_name() {
  static const std::string drawn = [] {
    std::random_device source;
    return std::to_string(source()) + "-" + std::to_string(source());
  }();
  return std::to_string(getpid()) + "@" + drawn;
}

}  // namespace

Engine::Engine(const Driver& driver, const Bundle& bundle, int rank)
    : driver_(driver), bundle_(bundle), rank_(rank), peers_(static_cast<std::size_t>(bundle.nranks)),
      mixes_(mixes_graphs()) {}

bool Engine::ok(CUresult result, const char* what, std::string* why) const {
  if (result == kCudaSuccess) return true;
  *why = describe(driver_, result, what);
  return false;
}

std::unique_ptr<Engine> Engine::open(const Driver& driver, const Bundle& bundle, int rank, int device, int sharing,
                                     unsigned multiprocessors, std::shared_ptr<SharedPage> page, std::string* why) {
  std::unique_ptr<Engine> engine(new Engine(driver, bundle, rank));
  engine->ordinal_ = device;
  int major = 0;
  int minor = 0;
  const bool opened = engine->ok(driver.device_get(&engine->device_, device), "cuDeviceGet", why) &&
                     engine->ok(driver.device_attribute(&major, kAttributeMajor, engine->device_), "capability", why) &&
                     engine->ok(driver.device_attribute(&minor, kAttributeMinor, engine->device_), "capability", why) &&
                     engine->ok(driver.primary_retain(&engine->context_, engine->device_), "cuDevicePrimaryCtxRetain",
                                why);
  if (!opened) return nullptr;
  engine->kept_ = pool::place_of(driver, engine->context_, device);
  engine->remote_ = has_remote_domain(driver, engine->device_);
  engine->arch_ = "sm_" + std::to_string(major) + std::to_string(minor);
  InContext context(driver, engine->context_);
  if (!context) {
    *why = "the GPU's context cannot be made current";
    return nullptr;
  }
  if (!engine->allocate(why) || !engine->load(why) || !engine->reserve_blocks(sharing, multiprocessors, why) ||
      !engine->share_host_memory(std::move(page), why) || !engine->share_staging(why)) {
    return nullptr;
  }
  return engine;
}

// The segment, followed by the table of connections and the memory of their probes.
bool Engine::allocate(std::string* why) {
  const std::size_t table = (bundle_.segments[static_cast<std::size_t>(rank_)] + 255) / 256 * 256;
  const std::size_t bytes = table + bundle_.connections.size() * (sizeof(Connection) + PeerWriteProbe::kProbeBytes);
  if (!pool::take(driver_, kept_, bytes, &arena_, why)) return false;
  table_ = arena_.segment + table;
  return ok(driver_.stream_create(&setup_stream_, kStreamNonBlocking), "cuStreamCreate", why) &&
         ok(driver_.event_create(&last_event_, kEventDisableTiming), "cuEventCreate", why) &&
         ok(driver_.event_create(&nccl_event_, kEventDisableTiming), "cuEventCreate", why) &&
         ok(driver_.event_create(&joined_, kEventDisableTiming), "cuEventCreate", why) &&
         ok(driver_.memset_async(arena_.segment, 0, bytes, setup_stream_), "cuMemsetD8Async", why) &&
         ok(driver_.event_record(last_event_, setup_stream_), "cuEventRecord", why) &&
         ok(driver_.stream_synchronize(setup_stream_), "cuStreamSynchronize", why);
}

bool Engine::load(std::string* why) {
  for (const Bundle::Program& program : bundle_.programs) {
    const auto images = bundle_.images_of(program);
    const auto image = std::find_if(images.begin(), images.end(), [this](std::uint32_t one) {
      return bundle_.text(bundle_.images[one].arch) == arch_;
    });
    if (image == images.end()) {
      *why = "the plan has no code for " + arch_ + " of " + name_of(program.kind());
      return false;
    }
    const Bundle::Image& code = bundle_.images[*image];
    CUmodule module = nullptr;
    if (!pool::module(driver_, kept_, bundle_.file_of(code),
                      [&](std::string* content) { return bundle_.read_image(code, content, why); }, &module, why)) {
      return false;
    }
    // cuModuleGetFunction loads the code even where CUDA loads lazily (its programming guide, "Lazy Loading"). A launch
    // that had to load would wait for running kernels, and they may wait for it.
    Kernels kernels;
    for (const Bundle::Protocol protocol : {Bundle::kSimple, Bundle::kLL, Bundle::kLL128}) {
      if (!program.has(protocol)) continue;
      const std::string name = bundle_.kernel_of(program, protocol);
      if (!ok(driver_.module_function(&kernels.by_protocol[protocol], module, name.c_str()),
              ("cuModuleGetFunction of " + name).c_str(), why)) {
        return false;
      }
    }
    if (program.has(Bundle::kCopies) &&
        !ok(driver_.module_function(&kernels.fold, module, kFold),
            ("cuModuleGetFunction of " + std::string(kFold)).c_str(), why)) {
      return false;
    }
    kernels_.push_back(kernels);
  }
  return true;
}

bool Engine::reserve_blocks(int sharing, unsigned multiprocessors, std::string* why) {
  unsigned usable = 0;  // in the primary context, where an MPS share is visible, too
  if (!ok(multiprocessors_here(driver_, device_, &usable), "multiprocessors", why)) return false;
  std::uint32_t channels = 0;
  int each = 0;
  for (std::size_t i = 0; i < kernels_.size(); ++i) {
    for (CUfunction kernel : kernels_[i].by_protocol) {
      if (kernel == nullptr) continue;  // programs of copy engines keep no blocks on the GPU
      int blocks = 0;
      if (!ok(driver_.occupancy(&blocks, kernel, static_cast<int>(bundle_.threads), 0), "occupancy", why)) return false;
      each = channels == 0 ? blocks : std::min(each, blocks);
      channels = std::max(channels, bundle_.programs[i].channels);
    }
  }
  if (channels == 0) return true;  // copy engines run all programs
  const auto count = [](int number) { return static_cast<std::uint32_t>(std::max(number, 0)); };
  const ResidentBlocks::Gpu gpu = {ordinal_, std::min(usable, multiprocessors), count(each), count(sharing)};
  room_ = blocks_.reserve(gpu, channels, bundle_.blocks(), why);
  return room_ != 0;
}

void Engine::use_blocks(std::uint32_t blocks) {
  room_ = blocks;
  blocks_.keep(blocks);
}

bool Engine::share_host_memory(std::shared_ptr<SharedPage> page, std::string* why) {
  const unsigned flags = kHostRegisterPortable | kHostRegisterDeviceMap;
  CUdeviceptr shown = 0;
  page_ = std::move(page);
  if (!ok(driver_.host_register(page_->memory(), page_->bytes(), flags), "cuMemHostRegister of the shared page", why) ||
      !ok(driver_.host_device_pointer(&shown, page_->memory(), 0), "cuMemHostGetDevicePointer", why)) {
    return false;
  }
  const char* word = reinterpret_cast<const char*>(const_cast<const std::uint32_t*>(page_->abort_word()));
  abort_device_ = shown + static_cast<CUdeviceptr>(word - static_cast<const char*>(page_->memory()));
  return true;
}

bool Engine::share_staging(std::string* why) {
  const std::uint64_t bytes = bundle_.memory_bytes();
  if (bytes == 0) return true;
  if (page_->staging_bytes() < bytes) {
    *why = "the plan needs " + std::to_string(bytes) + " bytes of host memory for staging, but the ranks share " +
           std::to_string(page_->staging_bytes());
    return false;
  }
  const unsigned flags = kHostRegisterPortable | kHostRegisterDeviceMap;
  if (!ok(driver_.host_register(page_->staging(), page_->staging_bytes(), flags),
          "cuMemHostRegister of the memory for staging", why)) {
    return false;
  }
  return ok(driver_.host_device_pointer(&staging_device_, page_->staging(), 0), "cuMemHostGetDevicePointer", why);
}

// The segments' addresses on this GPU: 0 for a peer without a connection from here; then the host memories.
std::vector<CUdeviceptr> Engine::segments() const {
  std::vector<CUdeviceptr> all;
  for (const Peer& peer : peers_) all.push_back(peer.base);
  CUdeviceptr memory = staging_device_;
  for (std::size_t i = peers_.size(); i < bundle_.segments.size(); ++i) {
    all.push_back(memory);
    memory += bundle_.segments[i];
  }
  return all;
}

std::string Engine::address() const {
  CUipcMemHandle handle{};
  char bus_id[64] = "";
  InContext context(driver_, context_);
  // Without IPC handles (some containers), ranks of the same process still reach each other.
  const bool exported = context && driver_.ipc_get(&handle, arena_.segment) == kCudaSuccess;
  const bool named = driver_.device_bus_id(bus_id, sizeof bus_id, device_) == kCudaSuccess && bus_id[0] != '\0';
  return process_name() + " " + std::to_string(arena_.segment) + " " + std::to_string(ordinal_) + " " +
         (exported ? hex(handle.reserved, sizeof handle.reserved) : "-") + " " + (named ? bus_id : "?");
}

bool Engine::map_peer(int peer, const std::string& address, std::string* why) {
  char process[160] = "";
  char handle[160] = "";
  char gpu[64] = "";
  unsigned long long base = 0;
  int ordinal = 0;
  const std::string whom = "rank " + std::to_string(peer);
  if (std::sscanf(address.c_str(), "%159s %llu %d %159s %63s", process, &base, &ordinal, handle, gpu) != 5) {
    *why = whom + " sent a malformed address: " + address;
    return false;
  }
  Peer& entry = peers_[static_cast<std::size_t>(peer)];
  entry.gpu = gpu;
  if (process_name() == process) {
    if (ordinal != ordinal_) {
      CUdevice device = 0;
      CUcontext context = nullptr;
      if (!ok(driver_.device_get(&device, ordinal), "cuDeviceGet", why) ||
          !ok(driver_.primary_retain(&context, device), "cuDevicePrimaryCtxRetain", why)) {
        return false;
      }
      const CUresult enabled = driver_.enable_peer(context, 0);
      driver_.primary_release(device);  // the peer's own engine retains it
      if (enabled != kPeerAlreadyEnabled && !ok(enabled, ("cuCtxEnablePeerAccess to " + whom).c_str(), why)) {
        return false;
      }
    }
    entry.base = base;
    return true;
  }
  CUipcMemHandle memory{};
  if (!from_hex(handle, memory.reserved, sizeof memory.reserved)) {
    *why = whom + " cannot share its memory with other processes";
    return false;
  }
  return ok(driver_.ipc_open(&entry.base, memory, kIpcLazyPeerAccess), ("cuIpcOpenMemHandle of " + whom).c_str(), why);
}

// Maps the peer's segment and, if the path leads over a third GPU, that GPU's segment.
bool Engine::map_for(const Bundle::Connection& connection, const std::vector<std::string>& addresses,
                     std::string* why) {
  if (connection.staged()) return true;
  for (const int rank : {connection.src, connection.dst, connection.home}) {
    const std::size_t peer = static_cast<std::size_t>(rank);
    if (peers_[peer].base == 0 && !map_peer(rank, addresses[peer], why)) return false;
  }
  return true;
}

bool Engine::connect(const std::vector<std::string>& addresses, std::string* why) {
  InContext context(driver_, context_);
  if (!context) {
    *why = "the GPU's context cannot be made current";
    return false;
  }
  peers_[static_cast<std::size_t>(rank_)].base = arena_.segment;
  std::vector<Connection> table(bundle_.connections.size());
  for (std::size_t i = 0; i < table.size(); ++i) {
    const Bundle::Connection& from = bundle_.connections[i];
    if (from.src != rank_ && from.dst != rank_) continue;
    if (!map_for(from, addresses, why)) return false;
    const std::vector<CUdeviceptr> at = segments();
    const CUdeviceptr home = at[static_cast<std::size_t>(from.home)];
    const CUdeviceptr tail = at[static_cast<std::size_t>(from.tail_at())] + from.tail;
    const CUdeviceptr head = at[static_cast<std::size_t>(from.head_at())] + from.head;
    const CUdeviceptr own = arena_.segment + (from.src == rank_ ? from.src_position : from.dst_position);
    table[i] = {reinterpret_cast<char*>(home + from.ring), reinterpret_cast<char*>(home + from.lines),
                reinterpret_cast<Word*>(tail), reinterpret_cast<Word*>(head), reinterpret_cast<Word*>(own)};
  }
  const bool written =
      table.empty() ||
      (ok(driver_.copy_to_device(table_, table.data(), table.size() * sizeof(Connection), setup_stream_),
          "cuMemcpyHtoDAsync of the connection table", why) &&
       ok(driver_.stream_synchronize(setup_stream_), "cuStreamSynchronize", why));
  const CUdeviceptr behind_table = table_ + table.size() * sizeof(Connection);
  probe_ = std::make_unique<PeerWriteProbe>(driver_, bundle_, rank_, segments(), behind_table);
  return written && open_copies(why);
}

// Waits for setup_stream_. Unfinished work counts as a launch: drain() waits for it, and nothing is freed.
bool Engine::wait_for_setup(const Deadline& deadline, const char* what, std::string* why) {
  CUresult result = note(setup_stream_, 0);
  while (result == kCudaSuccess && (result = driver_.event_query(last_event_)) == kCudaNotReady) {
    if (deadline.passed()) {
      *why = std::string(what) + " did not end within the timeout (BLINK_PEER_TIMEOUT)";
      return false;
    }
    result = kCudaSuccess;
    usleep(20);
  }
  return ok(result, what, why);
}

bool Engine::write_probes(const Deadline& deadline, std::string* why) {
  InContext context(driver_, context_);
  return ok(context ? probe_->write(setup_stream_) : kCudaInvalidContext, "cuMemcpyDtoDAsync to the peers", why) &&
         wait_for_setup(deadline, "writing into the peers' memory", why);
}

bool Engine::check_probes(const Deadline& deadline, std::string* why) {
  InContext context(driver_, context_);
  std::vector<int> missing;
  const CUresult gathered = context ? probe_->gather(setup_stream_) : kCudaInvalidContext;
  if (!ok(gathered, "cuMemcpyDtoDAsync of what peers wrote", why) ||
      !wait_for_setup(deadline, "reading what peers wrote", why) ||
      !ok(probe_->missing(setup_stream_, &missing), "cuMemcpyDtoHAsync of what peers wrote", why)) {
    return false;
  }
  if (missing.empty()) return true;
  const int peer = missing.front();
  *why = "bytes written by rank " + std::to_string(peer) + " (GPU " + peers_[static_cast<std::size_t>(peer)].gpu +
         ") did not arrive at rank " + std::to_string(rank_) +
         (missing.size() == 1 ? "" : ", nor those of " + std::to_string(missing.size() - 1) + " more ranks");
  return false;
}

// A GPU has fewer queues than there are streams. One rank's streams may share a queue (copy_plan.h), but a wait for
// another rank must not precede that rank's own work in a queue. So the planner uses no copy engines where ranks of one
// process share a GPU.
bool Engine::open_copies(std::string* why) {
  const auto folds = [](const Kernels& one) { return one.fold != nullptr; };
  const bool any = std::any_of(kernels_.begin(), kernels_.end(), folds);
  if ((any || !bundle_.splits.empty()) && !open_copy_engines(why)) return false;
  for (std::size_t i = 0; i < kernels_.size(); ++i) {
    if (kernels_[i].fold != nullptr && !copies_->add(static_cast<int>(i), kernels_[i].fold, why)) return false;
  }
  return true;
}

bool Engine::open_copy_engines(std::string* why) {
  CopyEngines::Place place;
  place.rank = rank_;
  place.device = device_;
  place.context = context_;
  place.segments = segments();
  place.staging = static_cast<char*>(page_->staging());
  place.staging_device = staging_device_;
  place.staging_bytes = bundle_.memory_bytes();
  place.words = reinterpret_cast<CopyEngines::Words*>(reinterpret_cast<char*>(arena_.status) + kWordsOfCopies);
  place.words_device = arena_.status_device + kWordsOfCopies;
  place.abort = page_->abort_word();
  copies_ = CopyEngines::open(driver_, bundle_, place, why);
  return copies_ != nullptr;
}

CUresult Engine::capture_of(CUstream stream, Capture* capture) const {
  int state = kCaptureNone;
  unsigned long long id = 0;
  const CUresult result = driver_.stream_capture(stream, &state, &id, nullptr, nullptr, nullptr);
  if (result != kCudaSuccess) return result;
  *capture = {state == kCaptureActive ? id : 0, state == kCaptureInvalidated};
  return kCudaSuccess;
}

// Makes `stream` wait for the communicator's last launch by Blink. Before a launch of Blink (`ours`) it also waits for
// NCCL's last; NCCL orders its own calls.
CUresult Engine::follow(CUstream stream, unsigned long long capture, bool ours) {
  const auto is_it = [capture](const Captured& one) { return one.capture == capture; };
  const auto earlier = std::find_if(captures_.begin(), captures_.end(), is_it);
  if (capture != 0 && earlier != captures_.end()) {
    return earlier->stream == stream ? kCudaSuccess : driver_.stream_wait_event(stream, earlier->event, 0);
  }
  if (capture != 0 && !mixes_) return kCudaSuccess;
  in_graphs_ = in_graphs_ || capture != 0;
  // Also on the same stream: the handle may have been reused while the old stream's work still runs.
  const unsigned flags = capture != 0 ? kEventExternal : 0;
  const CUresult result = driver_.stream_wait_event(stream, last_event_, flags);
  if (result != kCudaSuccess || !ours || (capture == 0 && !beside_nccl_)) return result;
  // A graph waits even if NCCL runs its first call only later.
  return driver_.stream_wait_event(stream, nccl_event_, flags);
}

CUresult Engine::note(CUstream stream, unsigned long long capture, CUevent event) {
  if (capture == 0) return driver_.event_record(event, stream);
  // The last call of a capture is not known in advance. So each call is recorded, each record follows the one before,
  // and the last one counts.
  CUresult result = kCudaSuccess;
  if (mixes_) result = driver_.event_record_with_flags(event, stream, kEventExternal);
  unseen_ = unseen_ || (event == last_event_ && (!mixes_ || result != kCudaSuccess));
  return result == kCudaSuccess ? note_captured(stream, capture) : result;
}

CUresult Engine::note_captured(CUstream stream, unsigned long long capture) {
  const auto is_it = [capture](const Captured& one) { return one.capture == capture; };
  auto entry = std::find_if(captures_.begin(), captures_.end(), is_it);
  if (entry == captures_.end()) {
    Captured fresh;
    if (captures_.size() < kCapturesAtOnce) {
      const CUresult created = driver_.event_create(&fresh.event, kEventDisableTiming);
      if (created != kCudaSuccess) return created;
    } else {
      fresh.event = captures_.front().event;
      captures_.erase(captures_.begin());
    }
    entry = captures_.insert(captures_.end(), fresh);
  }
  entry->capture = capture;
  entry->stream = stream;
  return driver_.event_record(entry->event, stream);
}

CUresult Engine::launch(int program, Bundle::Protocol protocol, Call call, CUstream stream, const Capture& capture,
                        CUevent before, CUevent after) {
  if (capture.lost) return kCudaCaptureInvalidated;
  if (capture.id != 0 && protocol == Bundle::kCopies) return kCudaCaptureUnsupported;
  CUresult result = follow(stream, capture.id);
  if (result == kCudaSuccess && before != nullptr) result = driver_.event_record(before, stream);
  if (result != kCudaSuccess) return result;
  result = run(program, protocol, call, stream);
  if (result == kCudaSuccess && after != nullptr) result = driver_.event_record(after, stream);
  // Recorded after an error, too, since part of the launch may run.
  const CUresult noted = note(stream, capture.id);
  return result == kCudaSuccess ? noted : result;
}

CUresult Engine::join(const std::vector<CUstream>& streams) {
  std::vector<Capture> captures(streams.size());
  CUresult result = kCudaSuccess;
  for (std::size_t i = 0; i < streams.size(); ++i) {
    result = capture_of(streams[i], &captures[i]);
    if (result != kCudaSuccess) return result;
    if (captures[i].id != captures[0].id || captures[i].lost != captures[0].lost) return kCudaCaptureMerge;
  }
  if (captures[0].lost) return kCudaSuccess;  // the calls report it
  result = follow(streams[0], captures[0].id);
  for (std::size_t i = 1; i < streams.size() && result == kCudaSuccess; ++i) {
    result = driver_.event_record(joined_, streams[i]);
    if (result == kCudaSuccess) result = driver_.stream_wait_event(streams[0], joined_, 0);
  }
  if (result == kCudaSuccess) result = note(streams[0], captures[0].id);
  for (std::size_t i = 1; i < streams.size() && result == kCudaSuccess; ++i) {
    result = follow(streams[i], captures[i].id);
  }
  return result;
}

CUresult Engine::before_nccl(CUstream stream) {
  Capture capture;
  const CUresult result = capture_of(stream, &capture);
  return result != kCudaSuccess || capture.lost ? result : follow(stream, capture.id, false);
}

CUresult Engine::after_nccl(CUstream stream) {
  Capture capture;
  const CUresult result = capture_of(stream, &capture);
  beside_nccl_ = true;
  return result != kCudaSuccess || capture.lost ? result : note(stream, capture.id, nccl_event_);
}

CUresult Engine::fork(CUstream stream) {
  const CUresult result = follow(stream, 0);
  return result == kCudaSuccess ? copies_->fork(stream) : result;
}

CUresult Engine::launch(const std::vector<CopyEngines::Message>& messages, std::uint64_t timeout_ns, CUstream stream) {
  const CUresult result = copies_->launch(messages, timeout_ns, stream);
  const CUresult noted = note(stream, 0);
  return result == kCudaSuccess ? noted : result;
}

CUresult Engine::run(int program, Bundle::Protocol protocol, Call call, CUstream stream) {
  if (protocol == Bundle::kCopies) return copies_->launch(program, call, stream);
  call.connections = reinterpret_cast<const Connection*>(table_);
  call.abort = reinterpret_cast<const std::uint32_t*>(abort_device_);
  call.status = reinterpret_cast<Status*>(arena_.status_device);
  call.slot_bytes = bundle_.slot_bytes;
  call.line_bytes = bundle_.line_bytes;
  call.slots = bundle_.slots;
  call.piece_bytes = kPieceBytes;
  call.rank = static_cast<std::uint32_t>(rank_);
  void* arguments[] = {&call};
  const std::size_t index = static_cast<std::size_t>(program);
  const Bundle::Program& of = bundle_.programs[index];
  call.program = of.number;
  // Equal on all ranks, which have read the same plan and agreed on the room.
  call.parts = std::min(of.parts, room_ / of.channels);
  const unsigned blocks = of.channels * call.parts;
  return shim::launch(driver_, kernels_[index].by_protocol[protocol], {blocks, bundle_.threads}, stream, arguments,
                      remote_);
}

Status Engine::status() const {
  if (copies_ != nullptr) {
    const Status of_copies = copies_->status();
    if (of_copies.code != kRunning) return of_copies;
  }
  // A kernel that gives up stores the rest first, then code and connection as one word. Other blocks try to claim that
  // word before and after it (state.h).
  typedef Word __attribute__((may_alias)) AnyWord;
  const Word first = __atomic_load_n(reinterpret_cast<const AnyWord*>(arena_.status), __ATOMIC_ACQUIRE);
  const auto code = static_cast<std::uint32_t>(first);
  if (code == kRunning) return {};
  const Status& status = *arena_.status;
  return {code, static_cast<std::uint32_t>(first >> 32), status.sending, status.channel, status.position};
}

bool Engine::drain(double seconds) {
  InContext context(driver_, context_);
  const Deadline deadline(seconds);
  CUresult last = kCudaSuccess;
  while (context && ((last = driver_.event_query(last_event_)) == kCudaNotReady ||
                     (last == kCudaSuccess && copies_ != nullptr && !copies_->idle()))) {
    if (deadline.passed()) return false;
    usleep(20);
  }
  return true;
}

// Mappings of peers' memory stay open, as that memory stays allocated (pool.h).
Engine::~Engine() {
  if (context_ == nullptr) return;
  InContext context(driver_, context_);
  if (context) {  // otherwise the program has reset the GPU
    copies_.reset();
    // A graph may refer to these events, and CUDA does not define the behaviour of a graph without its event.
    if (joined_ != nullptr) driver_.event_destroy(joined_);
    for (CUevent event : {last_event_, nccl_event_}) {
      if (event != nullptr && !in_graphs_) driver_.event_destroy(event);
    }
    for (const Captured& captured : captures_) driver_.event_destroy(captured.event);
    if (setup_stream_ != nullptr) driver_.stream_destroy(setup_stream_);
  }
  pool::give(kept_, arena_, std::move(page_));
}

}  // namespace blink::shim
