#include "streams.h"

#include <unistd.h>

#include <algorithm>
#include <map>

#include "devices.h"
#include "entry.h"
#include "handles.h"

namespace cuda_double {
namespace {

using std::chrono::microseconds;
constexpr int kLagUs = 3000, kLongHoldUs = 5000, kShortHoldUs = 300;

struct Engine {
  std::mutex mutex;
  std::condition_variable finished;  // notifies the host of finished work
  std::vector<std::weak_ptr<Stream>> streams;
  std::map<int, std::shared_ptr<Stream>> legacy;
  std::vector<std::weak_ptr<Capture>> captures;
  int next_number = 0;
  std::uint64_t next_capture = 1;
};

Engine& all() {
  static Engine& only = *new Engine;
  return only;
}

thread_local int capture_mode = kCaptureModeGlobal;

std::shared_ptr<Stream> made(int device, bool blocking) {
  auto stream = std::make_shared<Stream>();
  stream->device = device;
  stream->blocking = blocking;
  stream->number = all().next_number++;
  stream->random.seed(seed() * 1000003 + static_cast<std::uint64_t>(stream->number) * 7919 +
                      static_cast<std::uint64_t>(getpid() % 64) * (seed() ? 1 : 0));
  stream->lags = seed() && stream->random() % 3 == 0;
  auto& streams = all().streams;
  streams.erase(std::remove_if(streams.begin(), streams.end(), [](const auto& one) { return one.expired(); }),
                streams.end());
  streams.push_back(stream);
  return stream;
}

bool all_done(const std::vector<OpPtr>& ops) {
  return std::all_of(ops.begin(), ops.end(), [](const OpPtr& op) { return op->done; });
}

// The time for which the stream delays its next work. `first`: it was idle before.
microseconds hold(Stream& stream, bool first) {
  if (!seed()) return microseconds(0);
  if (stream.lags && first) return microseconds(kLagUs);
  switch (stream.random() % 8) {
    case 0: case 1: return microseconds(stream.random() % kShortHoldUs);
    case 2: return microseconds(1000 + stream.random() % kLongHoldUs);
    default: return microseconds(0);
  }
}

void work_through(std::shared_ptr<Stream> stream) {
  std::unique_lock<std::mutex> lock(engine());
  for (;;) {
    const bool first = stream->queue.empty();
    stream->wake.wait(lock, [&] { return !stream->queue.empty() || stream->closed; });
    if (stream->queue.empty()) return;
    const OpPtr op = stream->queue.front();
    stream->wake.wait(lock, [&] { return all_done(op->after); });
    const microseconds held = std::max(hold(*stream, first || stream->fresh), op->held);
    stream->fresh = false;
    if (held.count() > 0) {
      stream->wake.wait_until(lock, std::chrono::system_clock::now() + held, [&] { return op->urgent; });
    }
    Work work;
    work.swap(op->work);
    if (work) {
      lock.unlock();
      work();
      work = nullptr;
      lock.lock();
    }
    stream->queue.pop_front();
    complete(op);
  }
}

// Ends the delays of this work and its predecessors, because a thread waits for it.
void urge(const OpPtr& op) {
  std::vector<OpPtr> open{op};
  while (!open.empty()) {
    const OpPtr one = open.back();
    open.pop_back();
    if (one->done || one->urgent) continue;
    one->urgent = true;
    open.insert(open.end(), one->after.begin(), one->after.end());
    open.insert(open.end(), one->within.begin(), one->within.end());
    if (const auto stream = one->stream.lock()) {
      for (const OpPtr& earlier : stream->queue) {
        if (earlier == one) break;
        open.push_back(earlier);
      }
      stream->wake.notify_all();
    }
  }
}

}  // namespace

std::mutex& engine() { return all().mutex; }

std::uint64_t seed() {
  static const auto value = static_cast<std::uint64_t>(setting("BLINK_DOUBLE_SEED", 0));
  return value;
}

void dawdle(std::mt19937_64& random) {
  if (seed() && random() % 4 == 0) std::this_thread::sleep_for(microseconds(random() % kShortHoldUs));
}

std::shared_ptr<Stream> stream_of(CUstream handle) {
  const auto number = reinterpret_cast<std::uintptr_t>(handle);
  if (number > 1) return handles<Stream>().find(handle);
  const int device = current_device();
  if (device < 0) return nullptr;
  std::lock_guard<std::mutex> lock(engine());
  auto& stream = all().legacy[device];
  if (!stream) {
    stream = made(device, true);
    stream->legacy = true;
  }
  return stream;
}

void invalidate(Capture& capture) { capture.invalid = true; }

// The streams under capture for which work in the legacy stream would have to wait.
static std::vector<std::shared_ptr<Stream>> captured_beside(const Stream& stream) {
  std::vector<std::shared_ptr<Stream>> found;
  for (const auto& weak : all().streams) {
    const auto other = weak.lock();
    if (stream.legacy && other && other->blocking && other->device == stream.device && other->capture) {
      found.push_back(other);
    }
  }
  return found;
}

CUresult check_capture(Stream& stream) {
  if (stream.capture) return stream.capture->invalid ? kCaptureInvalidated : kSuccess;
  const auto others = captured_beside(stream);
  for (const auto& other : others) invalidate(*other->capture);
  return others.empty() ? kSuccess : kCaptureImplicit;
}

OpPtr enqueue(Stream& stream, Work work, std::vector<OpPtr> after) {
  auto op = std::make_shared<Op>();
  op->work = std::move(work);
  op->stream = stream.shared_from_this();
  if (stream.legacy) {
    for (const auto& weak : all().streams) {
      const auto other = weak.lock();
      if (other && other.get() != &stream && other->blocking && other->device == stream.device && other->last) {
        after.push_back(other->last);
      }
    }
  } else if (stream.blocking) {
    const auto at = all().legacy.find(stream.device);
    if (at != all().legacy.end() && at->second->last) after.push_back(at->second->last);
  }
  for (OpPtr& other : after) {
    if (other->done) continue;
    other->followers.push_back(stream.shared_from_this());
    op->after.push_back(std::move(other));
  }
  stream.queue.push_back(op);
  stream.last = op;
  if (!stream.started) {
    stream.started = true;
    std::thread(work_through, stream.shared_from_this()).detach();
  }
  stream.wake.notify_all();
  return op;
}

void add_node(Stream& stream, Node node) {
  node.after = stream.heads;
  stream.capture->nodes.push_back(std::move(node));
  stream.heads = {static_cast<int>(stream.capture->nodes.size()) - 1};
}

void complete(const OpPtr& op) {
  op->done = true;
  op->done_at = std::chrono::steady_clock::now();
  op->after.clear();
  op->within.clear();
  for (const auto& follower : op->followers) follower->wake.notify_all();
  op->followers.clear();
  all().finished.notify_all();
}

CUresult submit(CUstream handle, Work work, OpPtr* op, microseconds held) {
  const auto stream = stream_of(handle);
  if (!stream) return kInvalidHandle;
  std::lock_guard<std::mutex> lock(engine());
  if (CUresult error = check_capture(*stream)) return error;
  if (stream->capture) {
    Node node;
    node.work = std::move(work);
    add_node(*stream, std::move(node));
    return kSuccess;
  }
  OpPtr made_op = enqueue(*stream, std::move(work));
  made_op->held = held;
  if (op) *op = std::move(made_op);
  return kSuccess;
}

void wait_for(std::unique_lock<std::mutex>& lock, const OpPtr& op) {
  if (!op) return;
  urge(op);
  all().finished.wait(lock, [&] { return op->done; });
}

void wait_for_op(const OpPtr& op) {
  std::unique_lock<std::mutex> lock(engine());
  wait_for(lock, op);
}

void await_lazily(const OpPtr& op) {
  std::unique_lock<std::mutex> lock(engine());
  all().finished.wait(lock, [&] { return op->done; });
}

void wait_for_device(int device) {
  std::unique_lock<std::mutex> lock(engine());
  std::vector<OpPtr> last;
  for (const auto& weak : all().streams) {
    const auto stream = weak.lock();
    if (stream && stream->device == device && stream->last) last.push_back(stream->last);
  }
  for (const OpPtr& op : last) urge(op);
  for (const OpPtr& op : last) wait_for(lock, op);
}

CUresult refuse_while_capturing() {
  if (capture_mode == kCaptureModeRelaxed) return kSuccess;
  std::lock_guard<std::mutex> lock(engine());
  CUresult error = kSuccess;
  for (const auto& weak : all().captures) {
    const auto capture = weak.lock();
    if (!capture || capture->ended) continue;
    const bool own = capture->thread == std::this_thread::get_id() && capture->mode != kCaptureModeRelaxed;
    const bool others = capture_mode == kCaptureModeGlobal && capture->mode == kCaptureModeGlobal;
    if (!own && !others) continue;
    invalidate(*capture);
    error = kCaptureUnsupported;
  }
  return error;
}

}  // namespace cuda_double

using namespace cuda_double;

CU_API cuThreadExchangeStreamCaptureMode(int* mode) {
  CU_ENTER(kDriver);
  if (!mode || *mode < 0 || *mode > 2) return kInvalidValue;
  std::swap(*mode, capture_mode);
  return kSuccess;
}

static CUresult create(CUstream* out, unsigned flags) {
  if (!out || flags > kStreamNonBlocking) return kInvalidValue;
  std::shared_ptr<Stream> stream;
  {
    std::lock_guard<std::mutex> lock(engine());
    stream = made(current_device(), !(flags & kStreamNonBlocking));
  }
  *out = handles<Stream>().add(stream);
  return kSuccess;
}

CU_API cuStreamCreateWithPriority(CUstream* out, unsigned flags, int) {
  CU_ENTER(kDriver | kContext);
  return create(out, flags);
}

CU_API cuStreamCreate(CUstream* out, unsigned flags) {
  CU_ENTER(kDriver | kContext);
  return create(out, flags);
}

CU_API cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  CU_ENTER(kDriver | kContext);
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return kSuccess;
}

CU_API cuStreamDestroy_v2(CUstream handle) {
  CU_ENTER(kDriver | kContext);
  const auto stream = handles<Stream>().remove(handle);  // its work still runs
  if (!stream) return kInvalidHandle;
  std::lock_guard<std::mutex> lock(engine());
  if (stream->capture) invalidate(*stream->capture);
  stream->closed = true;
  stream->wake.notify_all();
  return kSuccess;
}

// A captured stream must not be queried; the capture is invalidated.
static CUresult refuse_captured(Stream& stream) {
  if (CUresult error = check_capture(stream)) return error;
  if (!stream.capture) return kSuccess;
  invalidate(*stream.capture);
  return kCaptureUnsupported;
}

CU_API cuStreamSynchronize(CUstream handle) {
  CU_ENTER(kDriver | kContext);
  const auto stream = stream_of(handle);
  if (!stream) return kInvalidHandle;
  {
    std::lock_guard<std::mutex> lock(engine());
    if (CUresult error = refuse_captured(*stream)) return error;
  }
  if (CUresult error = refuse_while_capturing()) return error;
  OpPtr op;
  if (stream->legacy) {  // it also waits for the blocking streams
    if (CUresult error = submit(handle, nullptr, &op)) return error;
  }
  std::unique_lock<std::mutex> lock(engine());
  if (!op) op = stream->last;
  wait_for(lock, op);
  return kSuccess;
}

CU_API cuStreamGetCaptureInfo_v2(CUstream handle, int* status, std::uint64_t* id, CUgraph* graph, const void** nodes,
                                 std::size_t* count) {
  CU_ENTER(kDriver | kContext);
  const auto stream = stream_of(handle);
  if (!stream) return kInvalidHandle;
  if (!status) return kInvalidValue;
  std::lock_guard<std::mutex> lock(engine());
  if (!captured_beside(*stream).empty()) return kCaptureImplicit;  // the captures continue
  *status = !stream->capture ? kCaptureStatusNone
                             : stream->capture->invalid ? kCaptureStatusInvalidated : kCaptureStatusActive;
  if (id) *id = stream->capture ? stream->capture->id : 0;
  if (graph) *graph = nullptr;
  if (nodes) *nodes = nullptr;
  if (count) *count = 0;
  return kSuccess;
}

CU_API cuStreamBeginCapture_v2(CUstream handle, int mode) {
  CU_ENTER(kDriver | kContext);
  const auto stream = stream_of(handle);
  if (!stream) return kInvalidHandle;
  if (mode < 0 || mode > 2) return kInvalidValue;
  if (stream->legacy) return kCaptureUnsupported;
  std::lock_guard<std::mutex> lock(engine());
  if (stream->capture) return kIllegalState;
  auto capture = std::make_shared<Capture>();
  capture->id = all().next_capture++;
  capture->origin = stream.get();
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->streams.push_back(stream);
  stream->capture = capture;
  stream->heads.clear();
  auto& captures = all().captures;
  captures.erase(std::remove_if(captures.begin(), captures.end(), [](const auto& one) { return one.expired(); }),
                 captures.end());
  captures.push_back(capture);
  return kSuccess;
}
