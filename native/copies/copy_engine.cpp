#include "copy_run.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace blink::shim {
namespace {

constexpr std::chrono::milliseconds kLook(1);

std::uint64_t load(const std::uint64_t& word) { return __atomic_load_n(&word, __ATOMIC_ACQUIRE); }

}  // namespace

CopyWatch::CopyWatch(const Words* words, volatile std::uint32_t* abort, Free free)
    : words_(words), abort_(abort), free_(std::move(free)), thread_([this] { run(); }) {}

CopyWatch::~CopyWatch() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void CopyWatch::look_after(std::uint64_t launch, std::uint64_t timeout_ns) {
  const std::lock_guard<std::mutex> lock(mutex_);
  launched_ = launch;
  timeout_ns_ = timeout_ns;
  changed_.notify_all();
}

void CopyWatch::stop_counting() {
  const std::lock_guard<std::mutex> lock(mutex_);
  launched_ = 0;
}

bool CopyWatch::idle() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return all_ended();
}

// Called with the lock held, like the next two.
bool CopyWatch::all_ended() const { return load(words_->ended) >= launched_; }

// The timeout starts when the launch begins on the caller's stream.
bool CopyWatch::late() {
  const std::uint64_t ended = load(words_->ended);
  const std::uint64_t seen = ended * 2 + (load(words_->begun) > ended ? 1 : 0);
  const auto now = std::chrono::steady_clock::now();
  if (seen != seen_ || seen % 2 == 0) since_ = now;
  seen_ = seen;
  return timeout_ns_ != 0 && now - since_ >= std::chrono::nanoseconds(timeout_ns_);
}

std::uint32_t CopyWatch::trouble() {
  if (__atomic_load_n(abort_, __ATOMIC_RELAXED) != 0) return kAborted;
  return late() ? kTimedOut : kRunning;
}

void CopyWatch::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopping_) {
    if (all_ended()) {
      changed_.wait(lock, [this] { return stopping_ || !all_ended(); });
      continue;
    }
    changed_.wait_for(lock, kLook, [this] { return stopping_; });
    if (stopping_ || all_ended()) continue;
    if (code_ == kRunning) {
      const std::uint32_t code = trouble();
      if (code == kRunning) continue;
      __atomic_store_n(&code_, code, __ATOMIC_RELEASE);
      __atomic_store_n(abort_, 1u, __ATOMIC_RELAXED);  // peers wait for this rank, as it waits for one of them
    }
    lock.unlock();
    free_();
    lock.lock();
  }
}

namespace {

constexpr Word kFar = Word{1} << 62;  // exceeds every counter value that a stream waits for
// A reduce kernel needs only a few multiprocessors to keep up with a link; the others are left to the user's program.
constexpr std::uint32_t kPieceBytes = 32 * 1024;
constexpr int kShareOfMultiprocessors = 4;
// The most chunks of a slice; more would fill its streams with commands.
constexpr Word kMostChunks = 64;
constexpr Word kGroup = 16;

CUdeviceptr address(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

const char* pointer(CUdeviceptr address) { return reinterpret_cast<const char*>(address); }

}  // namespace

CopyEngineRun::CopyEngineRun(const Driver& driver, const Bundle& bundle, const Place& place)
    : driver_(driver), bundle_(bundle), place_(place), positions_(bundle.connections.size()) {
  for (std::atomic<Word>& position : positions_) position = 0;
}

std::unique_ptr<CopyEngines> CopyEngines::open(const Driver& driver, const Bundle& bundle, const Place& place,
                                               std::string* why) {
  auto made = std::make_unique<CopyEngineRun>(driver, bundle, place);
  return made->prepare(why) ? std::move(made) : nullptr;
}

bool CopyEngineRun::prepare(std::string* why) {
  if (driver_.write_value == nullptr || driver_.wait_value == nullptr ||
      driver_.stream_create_with_priority == nullptr || driver_.stream_priorities == nullptr) {
    *why = "the CUDA driver has no stream memory operations (cuStreamWaitValue64_v2), which copy engines need";
    return false;
  }
  int served = 0;
  int multiprocessors = 0;
  int least = 0;
  int greatest = 0;
  const auto ok = [this, why](CUresult result, const char* what) {
    if (result != kCudaSuccess) *why = shim::describe(driver_, result, what);
    return result == kCudaSuccess;
  };
  if (!ok(driver_.device_attribute(&served, kAttributeStreamMemoryOperations64, place_.device), "memory operations") ||
      !ok(driver_.device_attribute(&multiprocessors, kAttributeMultiprocessors, place_.device), "multiprocessors") ||
      !ok(driver_.stream_priorities(&least, &greatest), "cuCtxGetStreamPriorityRange")) {
    return false;
  }
  if (served == 0) {
    *why = "this GPU has no stream memory operations of 64 bits, which copy engines need";
    return false;
  }
  most_blocks_ = static_cast<std::uint32_t>(std::max(1, multiprocessors / kShareOfMultiprocessors));
  // Streams of one priority may share a queue of the GPU. The stream that frees waiting streams must not queue behind
  // them.
  if (!ok(driver_.stream_create_with_priority(&side_, kStreamNonBlocking, greatest), "cuStreamCreateWithPriority") ||
      !ok(driver_.event_create(&begun_, kEventDisableTiming), "cuEventCreate") ||
      !ok(driver_.event_create(&forked_, kEventDisableTiming), "cuEventCreate")) {
    return false;
  }
  watch_ = std::make_unique<CopyWatch>(place_.words, place_.abort, [this] { free_waits(); });
  return true;
}

CopyEngineRun::~CopyEngineRun() {
  watch_.reset();
  for (const auto& entry : streams_) {
    if (entry.second->handle != nullptr) driver_.stream_destroy(entry.second->handle);
    if (entry.second->event != nullptr) driver_.event_destroy(entry.second->event);
  }
  for (const auto& entry : read_) {
    for (CUevent event : entry.second) driver_.event_destroy(event);
  }
  if (side_ != nullptr) driver_.stream_destroy(side_);
  if (begun_ != nullptr) driver_.event_destroy(begun_);
  if (forked_ != nullptr) driver_.event_destroy(forked_);
  for (const auto& entry : programs_) {
    if (entry.second.object != nullptr) dlclose(entry.second.object);
  }
}

// ---- preparation

bool CopyEngineRun::open_object(int program, Program* made, std::string* why) {
  const Bundle::Program& told = bundle_.programs[static_cast<std::size_t>(program)];
  const std::string name = bundle_.kernel_of(told, Bundle::kCopies);
  for (const std::uint32_t number : bundle_.images_of(told)) {
    const Bundle::Image& image = bundle_.images[number];
    if (std::string("host") != bundle_.text(image.arch)) continue;
    std::string code;
    if (!bundle_.read_image(image, &code, why)) return false;  // loading a truncated object would kill this process
    const std::string file = bundle_.file_of(image);
    made->object = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (made->object == nullptr) {
      const char* text = dlerror();
      *why = file + " cannot be opened: " + (text == nullptr ? "no reason given" : text);
      return false;
    }
    const auto entry = reinterpret_cast<CopyEntry>(dlsym(made->object, name.c_str()));
    if (entry == nullptr) return *why = file + " has no " + name, false;
    made->rows = entry();
    return true;
  }
  *why = "the plan has no copy engine code for " + std::string(name_of(told.kind()));
  return false;
}

CopyEngineRun::Stream* CopyEngineRun::stream_for(std::uint32_t level, Use use, int peer, std::string* why) {
  std::unique_ptr<Stream>& stream = streams_[{level, use, peer}];
  if (stream != nullptr) return stream.get();
  auto made = std::make_unique<Stream>();
  CUresult result = driver_.stream_create(&made->handle, kStreamNonBlocking);
  if (result == kCudaSuccess) result = driver_.event_create(&made->event, kEventDisableTiming);
  if (result != kCudaSuccess) *why = shim::describe(driver_, result, "a stream for copies");
  stream = std::move(made);
  return result == kCudaSuccess ? stream.get() : nullptr;
}

bool CopyEngineRun::add(int program, CUfunction fold, std::string* why) {
  Program& made = programs_[program];
  made.fold = fold;
  std::vector<CopyRole> roles;
  if (!open_object(program, &made, why) || !survey(bundle_, *made.rows, place_.rank, &roles, why)) return false;
  for (CopyRole& told : roles) {
    Role role;
    for (const std::uint32_t id : told.sends) {
      role.sends.push_back(stream_for(told.level, Use::kSend, connection(id).dst, why));
      if (role.sends.back() == nullptr) return false;
    }
    if (!role.sends.empty()) {
      role.main = role.sends[0];
    } else if (!told.receives.empty()) {
      role.main = stream_for(told.level, Use::kReceive, connection(told.receives[0]).src, why);
    } else {
      role.main = stream_for(told.level, Use::kOwn, place_.rank, why);
    }
    if (role.main == nullptr) return false;
    for (const std::uint32_t id : told.receives) {
      const bool staged = connection(id).staged();
      role.fetches.push_back(staged ? stream_for(told.level, Use::kFetch, connection(id).src, why) : nullptr);
      if (staged && (role.fetches.back() == nullptr || !make_events(id, why))) return false;
    }
    role.role = std::move(told);
    made.roles.push_back(std::move(role));
  }
  return true;
}

bool CopyEngineRun::make_events(std::uint32_t id, std::string* why) {
  std::vector<CUevent>& events = read_[id];
  CUresult result = kCudaSuccess;
  while (events.size() < bundle_.copy_slots && result == kCudaSuccess) {
    CUevent made = nullptr;
    result = driver_.event_create(&made, kEventDisableTiming);
    if (result == kCudaSuccess) events.push_back(made);
  }
  if (result != kCudaSuccess) *why = shim::describe(driver_, result, "an event for copies");
  return result == kCudaSuccess;
}

void CopyEngineRun::describe(const Call& call) {
  state_.input = call.input;
  state_.output = call.output;
  state_.count = call.count;
  state_.dtype = call.dtype;
  state_.item_bytes = device::item_bytes(call.dtype);
  state_.part = 0;
  state_.parts = 1;
  const Word block_bytes = call.count * state_.item_bytes;
  const Word least = (block_bytes / kMostChunks + kGroup) / kGroup * kGroup;
  state_.chunk_bytes = std::min<Word>(std::max(call.chunk_bytes, least), bundle_.copy_slot_bytes);
}

// Lists the executions of a channel, tick by tick.
void CopyEngineRun::list_steps(const device::Channel& of) {
  const device::ProgramRows& program = *program_->rows;
  const std::uint32_t first = program.channel[static_cast<std::uint32_t>(place_.rank) * program.channels].first_row;
  const Word rounds = of.den == 0 ? 0 : device::rounds_of(state_, of.num, of.den);
  std::vector<Slice> slices;
  for (std::uint32_t n = of.first_piece; n < of.first_piece + of.pieces; ++n) {
    const device::Piece& piece = program.pieces[n];  // with one part all piece boundaries are equivalent
    slices.push_back(device::cut(state_, piece.source_block, piece.target_block, piece.start_num, piece.start_den,
                                 piece.stop_num, piece.stop_den, 0, rounds));
  }
  bool more = true;
  for (std::int64_t tick = 0; more; ++tick) {
    more = false;
    for (std::uint32_t n = of.first_row; n < of.first_row + of.rows; ++n) {
      const device::Row& row = program.rows[n];
      const Slice& slice = slices[row.slice];
      const std::int64_t k = tick + row.chunk, chunks = static_cast<std::int64_t>(slice.chunks);
      more = more || k + 1 < chunks;
      if (k < 0 || k >= chunks) continue;
      const auto number = static_cast<Word>(k);
      const std::uint32_t divisor = row.order.completes && call_->average != 0 ? of.contributors : 1;
      steps_.push_back({number, &program_->roles[n - first], device::chunk_of(state_, slice, number),
                        row.order.own_operand_index, divisor, row.order.keeps});
    }
  }
}

// ---- enqueueing

CUresult CopyEngineRun::launch(int program, const Call& call, CUstream stream) {
  program_ = &programs_.at(program);
  call_ = &call;
  describe(call);
  steps_.clear();
  const device::ProgramRows& rows = *program_->rows;
  const device::Channel* const own = rows.channel + static_cast<std::uint32_t>(place_.rank) * rows.channels;
  for (std::uint32_t channel = 0; channel < rows.channels; ++channel) list_steps(own[channel]);
  std::stable_sort(steps_.begin(), steps_.end(), [](const Step& a, const Step& b) {
    return a.chunk_number != b.chunk_number ? a.chunk_number < b.chunk_number
                                            : a.role->role.level < b.role->role.level;
  });
  readers_.clear();
  begin(call.timeout_ns, stream, begun_);
  if (result_ == kCudaSuccess) good(driver_.event_record(begun_, stream));
  for (const Step& step : steps_) {
    if (result_ != kCudaSuccess) break;
    enqueue(step);
  }
  // After an error too: the work in the streams must end before later work of the caller begins.
  join(stream);
  return result_;
}

void CopyEngineRun::begin(std::uint64_t timeout_ns, CUstream stream, CUevent start) {
  result_ = kCudaSuccess;
  start_ = start;
  used_.clear();
  watch_->look_after(++launches_, timeout_ns);
  const CUdeviceptr word = place_.words_device + offsetof(CopyWatch::Words, begun);
  good(driver_.write_value(stream, word, launches_, kWriteAfterAllBefore));
}

void CopyEngineRun::join(CUstream stream) {
  for (Stream* used : used_) {
    good(driver_.event_record(used->event, used->handle));
    good(driver_.stream_wait_event(stream, used->event, 0));
  }
  const CUdeviceptr word = place_.words_device + offsetof(CopyWatch::Words, ended);
  good(driver_.write_value(stream, word, launches_, kWriteAfterAllBefore));
  if (result_ != kCudaSuccess) watch_->stop_counting();
}

void CopyEngineRun::use(Stream& stream) {
  if (stream.launch == launches_) return;
  stream.launch = launches_;
  used_.push_back(&stream);
  good(driver_.stream_wait_event(stream.handle, start_, 0));
}

void CopyEngineRun::follow(Stream& later, Stream& earlier) {
  use(later);
  if (result_ != kCudaSuccess || !good(driver_.event_record(earlier.event, earlier.handle))) return;
  good(driver_.stream_wait_event(later.handle, earlier.event, 0));
}

void CopyEngineRun::await(Stream& stream, CUdeviceptr counter, Word value) {
  use(stream);
  if (result_ == kCudaSuccess) good(driver_.wait_value(stream.handle, counter, value, kWaitUntilAtLeast));
}

void CopyEngineRun::tell(Stream& stream, CUdeviceptr counter, Word value) {
  use(stream);
  if (result_ == kCudaSuccess) good(driver_.write_value(stream.handle, counter, value, kWriteAfterAllBefore));
}

void CopyEngineRun::copy(Stream& stream, CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  use(stream);
  if (result_ != kCudaSuccess || to == from) return;
  if (char* const host = on_host(to)) {
    good(driver_.copy_to_host(host, from, bytes, stream.handle));
  } else if (const char* const there = on_host(from)) {
    good(driver_.copy_to_device(to, there, bytes, stream.handle));
  } else {
    good(driver_.copy_on_device(to, from, bytes, stream.handle));
  }
}

// Makes the main stream wait for message i of the step, whose place is received().
void CopyEngineRun::receive(const Step& step, std::size_t i) {
  const std::uint32_t id = step.role->role.receives[i];
  Stream& main = *step.role->main;
  Stream* const fetch = step.role->fetches[i];
  if (fetch == nullptr) {
    await(main, tail(id), position(id) + 1);
    return;
  }
  await(*fetch, tail(id), position(id) + 1);
  if (result_ == kCudaSuccess && position(id) >= bundle_.copy_slots) {
    good(driver_.stream_wait_event(fetch->handle, read(id), 0));
  }
  copy(*fetch, received(id), slot(id), step.chunk.bytes);
  tell(*fetch, head(id), position(id) + 1);
  follow(main, *fetch);
}

// Frees the slot of a received message, which `stream` was the last to read.
void CopyEngineRun::give_back(Stream& stream, std::uint32_t id) {
  use(stream);
  if (!connection(id).staged()) {
    tell(stream, head(id), position(id) + 1);
  } else if (result_ == kCudaSuccess) {
    good(driver_.event_record(read(id), stream.handle));
  }
  advance(id);
}

// Reduces the own operand and the messages of a step with one kernel in `stream`.
void CopyEngineRun::fold(Stream& stream, const Step& step, CUdeviceptr target) {
  use(stream);
  const std::vector<std::uint32_t>& receives = step.role->role.receives;
  const CUdeviceptr base = segment(place_.rank);
  Reduction reduction = {};
  reduction.own = step.chunk.source;
  reduction.target = const_cast<char*>(pointer(target));
  reduction.messages = pointer(base);
  reduction.scale = call_->scale_kind == kScaleStored ? address(call_->scale_at) : call_->scale;
  reduction.scale_kind = static_cast<std::uint8_t>(call_->scale_kind);
  reduction.bytes = step.chunk.bytes;
  reduction.divisor = step.divisor;
  reduction.receives = static_cast<std::uint8_t>(receives.size());
  reduction.own_operand_index =
      step.own_operand_index == kNoOwnOperand ? kOwnStaysOut : static_cast<std::uint8_t>(step.own_operand_index);
  reduction.dtype = static_cast<std::uint8_t>(call_->dtype);
  reduction.op = static_cast<std::uint8_t>(call_->op);
  for (std::size_t i = 0; i < receives.size(); ++i) {
    reduction.lines[i] = static_cast<std::uint32_t>((received(receives[i]) - base) / kLineBytes);
  }
  const std::uint32_t pieces = std::min(most_blocks_, (reduction.bytes + kPieceBytes - 1) / kPieceBytes);
  const std::uint32_t groups = (reduction.bytes + 15) / 16;
  reduction.piece_bytes = (groups + pieces - 1) / pieces * 16;
  void* arguments[] = {&reduction};
  if (result_ != kCudaSuccess) return;
  good(driver_.launch(program_->fold, pieces, 1, 1, bundle_.threads, 1, 1, 0, stream.handle, arguments, nullptr));
}

CopyEngineRun::Result CopyEngineRun::combine(const Step& step) {
  const std::vector<std::uint32_t>& receives = step.role->role.receives;
  const bool joins = step.own_operand_index != kNoOwnOperand;
  const bool touched = receives.size() + (joins ? 1 : 0) > 1 || (joins && call_->scale_kind != kUnscaled) ||
                       step.divisor > 1;
  Stream& main = *step.role->main;
  const CUdeviceptr output = address(step.chunk.target);
  if (touched) {
    if (!step.keeps && receives.empty()) return {0, false};
    const CUdeviceptr target = step.keeps ? output : received(receives[0]);
    fold(main, step, target);
    if (joins) readers_[step.chunk.source].push_back(&main);
    return {target, true};
  }
  const CUdeviceptr source = receives.empty() ? address(step.chunk.source) : received(receives[0]);
  if (step.keeps) copy(main, output, source, step.chunk.bytes);
  return {source, !receives.empty()};
}

// In place, the result overwrites the rank's own data: the streams that still read these must finish first.
void CopyEngineRun::follow_readers(const Step& step) {
  const auto readers = readers_.find(step.chunk.target);
  if (!step.keeps || readers == readers_.end()) return;
  for (Stream* reader : readers->second) {
    if (reader != step.role->main) follow(*step.role->main, *reader);
  }
  readers_.erase(readers);
}

void CopyEngineRun::send(const Step& step, std::size_t i, CUdeviceptr source) {
  const std::uint32_t id = step.role->role.sends[i];
  Stream& stream = *step.role->sends[i];
  if (position(id) >= bundle_.copy_slots) await(stream, head(id), position(id) + 1 - bundle_.copy_slots);
  if (source == 0) {
    fold(stream, step, slot(id));
  } else {
    copy(stream, slot(id), source, step.chunk.bytes);
  }
  tell(stream, tail(id), position(id) + 1);
  advance(id);
}

void CopyEngineRun::enqueue(const Step& step) {
  const CopyRole& role = step.role->role;
  Stream& main = *step.role->main;
  for (std::size_t i = 0; i < role.receives.size(); ++i) receive(step, i);
  follow_readers(step);
  const Result result = combine(step);
  // Slots that a send reads are freed after that send, all others now.
  std::vector<std::uint32_t> held;
  for (const std::uint32_t id : role.receives) {
    if (!role.sends.empty() && result.at == received(id)) {
      held.push_back(id);
    } else {
      give_back(main, id);
    }
  }
  // Waits for all work of the main stream so far, without its own sends.
  if (result.of_main) {
    for (Stream* stream : step.role->sends) {
      if (stream != &main) follow(*stream, main);
    }
  }
  for (std::size_t i = 0; i < role.sends.size(); ++i) {
    send(step, i, result.at);
    if (!result.of_main) readers_[step.chunk.source].push_back(step.role->sends[i]);
  }
  if (held.empty()) return;
  for (Stream* stream : step.role->sends) {
    if (stream != &main) follow(main, *stream);
  }
  for (const std::uint32_t id : held) give_back(main, id);
}

// ---- messages

CUresult CopyEngineRun::launch(const std::vector<Message>& messages, std::uint64_t timeout_ns, CUstream stream) {
  std::vector<Piece> pieces;
  std::map<std::uint32_t, Word> numbers;
  for (const Message& message : messages) cut(message, &numbers, &pieces);
  std::stable_sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
    return a.number != b.number ? a.number < b.number : a.sends && !b.sends;
  });
  begin(timeout_ns, stream, forked_);
  for (const Piece& piece : pieces) {
    if (result_ != kCudaSuccess) break;
    enqueue(piece);
  }
  join(stream);
  return result_;
}

// Cuts a message into pieces, equally at both ends: the cuts depend on the split and the size only. All parts have as
// many pieces as the longest, if they have enough groups of bytes.
void CopyEngineRun::cut(const Message& message, std::map<std::uint32_t, Word>* numbers,
                        std::vector<Piece>* pieces) const {
  const auto end_of = [&message](std::uint64_t stop) {
    return device::boundary(stop, Bundle::kWhole, message.bytes, kGroup);
  };
  Word longest = 0;
  Word begin = 0;
  for (const Bundle::Part& part : bundle_.parts_of(*message.split)) {
    longest = std::max(longest, end_of(part.stop) - begin);
    begin = end_of(part.stop);
  }
  const Word slot = bundle_.path_slot_bytes;
  const Word rounds = std::max<Word>(message.split->chunks, (longest + slot - 1) / slot);
  begin = 0;
  for (const Bundle::Part& part : bundle_.parts_of(*message.split)) {
    const Word end = end_of(part.stop);
    const Word chunk = ((end - begin + rounds - 1) / rounds + kGroup - 1) / kGroup * kGroup;
    Word& number = (*numbers)[part.path];
    for (; begin < end; begin += std::min(chunk, end - begin)) {
      pieces->push_back({number++, message.sends, part.path, message.at + begin, std::min(chunk, end - begin)});
    }
  }
}

void CopyEngineRun::enqueue(const Piece& piece) {
  const std::uint32_t id = piece.path;
  std::string why;
  Stream* const made = stream_for(id, Use::kPath, place_.rank, &why);
  if (made == nullptr) return void(good(kCudaOutOfMemory));
  Stream& stream = *made;
  const Word before = position(id);
  if (piece.sends) {
    if (before >= bundle_.path_slots) await(stream, head(id), before + 1 - bundle_.path_slots);
    copy(stream, slot(id), piece.at, piece.bytes);
    tell(stream, tail(id), before + 1);
  } else {
    await(stream, tail(id), before + 1);
    copy(stream, piece.at, slot(id), piece.bytes);
    tell(stream, head(id), before + 1);
  }
  advance(id);
}

// ---- early end

// Raises all counters of this rank above every awaited value. The remaining work then moves invalid data, and ends.
void CopyEngineRun::free_waits() {
  int mode = kCaptureModeRelaxed;
  driver_.stream_capture_mode(&mode);  // keeps other threads' captures valid
  InContext context(driver_, place_.context);
  if (!context) return;
  if (!fault_known_) find_fault();
  for (std::uint32_t id = 0; id < bundle_.connections.size(); ++id) {
    if (!connection(id).copied()) continue;
    if (connection(id).dst == place_.rank) driver_.write_value(side_, tail(id), kFar, kWriteAfterAllBefore);
    if (connection(id).src == place_.rank) driver_.write_value(side_, head(id), kFar, kWriteAfterAllBefore);
  }
  driver_.stream_synchronize(side_);
}

// Finds the first connection end of this rank that waits, for the error message.
void CopyEngineRun::find_fault() {
  fault_known_ = true;
  for (std::uint32_t id = 0; id < bundle_.connections.size(); ++id) {
    const bool sending = connection(id).src == place_.rank;
    if (!connection(id).copied() || (!sending && connection(id).dst != place_.rank)) continue;
    Word counted = 0;
    const CUdeviceptr counter = sending ? head(id) : tail(id);
    if (const char* const host = on_host(counter)) {
      counted = load(*reinterpret_cast<const std::uint64_t*>(host));
    } else if (driver_.copy_to_host(&counted, counter, sizeof counted, side_) != kCudaSuccess ||
               driver_.stream_synchronize(side_) != kCudaSuccess) {
      return;
    }
    const Word reached = counted + (sending ? bundle_.slots_of(id) : 0);
    if (reached >= positions_[id].load(std::memory_order_relaxed)) continue;
    const std::lock_guard<std::mutex> lock(fault_mutex_);
    fault_.connection = id;
    fault_.sending = sending ? 1 : 0;
    fault_.position = reached;
    return;
  }
}

Status CopyEngineRun::status() const {
  const std::lock_guard<std::mutex> lock(fault_mutex_);
  Status status = fault_;
  status.code = watch_->code();
  return status;
}

}  // namespace blink::shim
