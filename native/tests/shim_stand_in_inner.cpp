// Stand-ins for what the outer half uses of the inner half: communicators that note what is asked of them.

#include "shim_stand_in_inner.h"

#include <atomic>
#include <cerrno>
#include <mutex>
#include <new>
#include <stdexcept>

#include "communicator.h"
#include "log.h"
#include "shim_events.h"

namespace {

std::mutex mutex;
std::vector<std::string> lines;
std::atomic<bool> finished{false};

void note(const std::string& text) { shim_event(text.c_str()); }

}  // namespace

void shim_event(const char* text) {
  const std::lock_guard<std::mutex> lock(mutex);
  lines.emplace_back(text);
}

const char* shim_events_text() {
  static std::string text;
  text = shim_test::history();
  return text.c_str();
}

namespace shim_test {

Behaviour behaviour;

void finish() { finished = true; }

std::vector<std::string> events() {
  const std::lock_guard<std::mutex> lock(mutex);
  std::vector<std::string> taken;
  taken.swap(lines);
  return taken;
}

std::string history() {
  std::string text;
  for (const std::string& line : events()) text += (text.empty() ? "" : "; ") + line;
  return text;
}

}  // namespace shim_test

namespace blink::shim {
namespace {

using shim_test::behaviour;

class NotedMeeting final : public Meeting {
 public:
  explicit NotedMeeting(std::string name) : name_(std::move(name)) {}
  ~NotedMeeting() override {
    if (!kept) note("leave " + name_);
  }
  bool exchange(int, const std::string&, std::vector<std::string>*, double, const Deadline&, std::string*) override {
    return false;
  }
  int share_descriptor(int, const Deadline&, std::string*) override { return -1; }

  bool kept = false;  // by a communicator: of interest is only what leaves before there is one

 private:
  std::string name_;
};

class Noted final : public Communicator {
 public:
  Noted(std::string key, std::unique_ptr<Meeting> meeting, std::string why_not)
      : key_(std::move(key)), meeting_(std::move(meeting)), why_not_(std::move(why_not)) {
    if (meeting_ != nullptr) static_cast<NotedMeeting&>(*meeting_).kept = true;
  }

  const std::string& key() const override { return key_; }
  std::uint64_t next_child() override { return children_++; }
  void rely(const std::string&) override {}
  std::string why_not() override { return why_not_; }

  void begin(ncclComm_t, int nranks, int rank, int device, double grace_s) override {
    rank_ = rank;
    note("begin " + key_ + " " + std::to_string(rank) + " of " + std::to_string(nranks) + " on " +
         std::to_string(device) + " grace " + std::to_string(static_cast<int>(grace_s)) +
         (why_not_.empty() ? "" : " without: " + why_not_));
  }
  bool settled() const override { return !behaviour.late || finished; }
  void settle() override { note("settle " + std::to_string(rank_)); }

  bool takes(const Operation& operation) override {
    errno = EAGAIN;
    if (behaviour.throws_bad_alloc) throw std::bad_alloc();
    if (behaviour.throws_other) throw std::runtime_error("odd");
    note("takes? " + text(operation));
    return behaviour.takes;
  }
  ncclResult_t enqueue(const Operation& operation) override {
    note("run " + text(operation));
    return behaviour.enqueues;
  }

  void know(int op, const PremulSum& scalar) override {
    note("know " + std::to_string(op) + " type " + std::to_string(scalar.dtype) +
         (scalar.stored ? " stored" : " first byte " + std::to_string(scalar.scalar[0])));
  }
  void forget(int op) override { note("forget " + std::to_string(op)); }
  ncclResult_t async_error() override { return settled() ? ncclSuccess : ncclInProgress; }
  void abort() override { note("abort " + std::to_string(rank_)); }
  void finalize() override { note("finalize " + std::to_string(rank_)); }

 private:
  std::string text(const Operation& operation) const {
    std::string text = name_of(operation.collective);
    text += " " + std::to_string(operation.count) + " type " + std::to_string(operation.dtype) + " op " +
            std::to_string(operation.op);
    if (operation.root >= 0) text += " root " + std::to_string(operation.root);
    if (operation.send == operation.recv) text += " in place";
    return text + " on rank " + std::to_string(rank_);
  }

  std::string key_;
  std::unique_ptr<Meeting> meeting_;
  std::string why_not_;
  std::uint64_t children_ = 0;
  int rank_ = -1;
};

}  // namespace

const char* name_of(Collective collective) {
  const char* const names[] = {"broadcast",      "reduce", "allreduce", "allgather",
                               "reduce_scatter", "gather", "scatter",   "alltoall"};
  return names[static_cast<int>(collective)];
}

std::shared_ptr<Communicator> Communicator::make(std::string key, std::unique_ptr<Meeting> meeting,
                                                 std::string why_not) {
  if (behaviour.throws_at_make) throw std::bad_alloc();
  return std::make_shared<Noted>(std::move(key), std::move(meeting), std::move(why_not));
}

std::unique_ptr<Meeting> Meeting::announce(const std::string& key, int rank, std::string* why) {
  if (behaviour.mute) {
    *why = "mute";
    return nullptr;
  }
  const std::string name = key + " " + std::to_string(rank);
  note("announce " + name);
  return std::make_unique<NotedMeeting>(name);
}

std::string derived_key(const std::string& parent, const std::string& what) { return parent + "/" + what; }

// The first byte and how many: enough to see that all of them arrive.
std::string key_of(const void* bytes, std::size_t size) {
  return "k" + std::to_string(*static_cast<const unsigned char*>(bytes)) + "." + std::to_string(size);
}

Level log_level() { return Level::kInfo; }
void log(Level level, const std::string& text) { note((level == Level::kWarn ? "warn: " : "info: ") + text); }
void report(const std::string&) {}
std::string quoted(const std::string& text) { return text; }

}  // namespace blink::shim
