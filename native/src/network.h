// Messages to and from ranks on other hosts, over UCX: the other kind of queue, beside shared memory.
//
// A message is one active message of UCP. Its header names the call, the queue and its number there. UCX sends a small
// message with its header (eager) and offers a large one, which then moves straight from the sender's buffer to its place
// at the receiver (rendezvous). That saves a copy and costs a round trip, in which a slow network sends nothing. A message
// for a later call, or without a free slot, is held back: an eager one in UCX's memory, an offered one at its sender. So
// no message has to report a free slot, and only eager messages take memory of a receiver that is late.
//
// A network has rails: a worker on all interfaces of this host, among which UCX selects, and workers on single interfaces.
// It has no thread: messages move while progress() is called, by the waits of the rank's own calls. One thread at a
// time uses it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "blink/host.h"
#include "worker.h"

namespace blink {

// In front of every message.
struct MessageHeader {
  std::uint64_t sequence, signature, what;  // of the call
  std::int64_t count;
  std::uint32_t queue, number;  // the line by which its reader acknowledges, where both share memory; the message, from 0
  std::int32_t sender;
  std::uint32_t core;  // the sender's, of all machines: see Network::core_of()
};

// The end of a queue whose sender is on another host.
class Inbox {
 public:
  Inbox(std::int32_t sender, std::uint32_t queue, std::size_t messages, std::size_t slots, std::size_t stride)
      : sender_(sender), queue_(queue), slots_(slots), stride_(stride), arrived_(messages, 0) {}

  static std::uint64_t name_of(std::int32_t sender, std::uint32_t queue) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(sender)) << 32 | queue;
  }
  std::uint64_t name() const { return name_of(sender_, queue_); }
  int sender() const { return sender_; }

  // A call begins. Its messages lie in slots; or, `direct`, one after another there, each `step` bytes but the last.
  void begin(unsigned char* direct, std::size_t step, std::size_t total);
  // True if message `number` of this size belongs to the call and has not arrived yet.
  bool expects(std::size_t number, std::size_t bytes) const;
  // Its place, or nullptr while its slot holds another message.
  unsigned char* room(std::size_t number);
  void arrive(std::size_t number) { arrived_[number] = 1; }
  bool has(std::size_t number) const { return number < arrived_.size() && arrived_[number] != 0; }
  const unsigned char* message(std::size_t number) const { return place(number); }
  // The oldest message is done with.
  void take() { ++taken_; }

 private:
  unsigned char* place(std::size_t number) const {
    return direct_ != nullptr ? direct_ + number * step_ : memory_.get() + number % slots_ * stride_;
  }

  std::int32_t sender_;
  std::uint32_t queue_;
  std::size_t slots_, stride_;
  std::unique_ptr<unsigned char[]> memory_;  // of the slots; allocated for the first message that needs one
  unsigned char* direct_ = nullptr;
  std::size_t step_ = 0, total_ = 0, taken_ = 0;
  std::vector<unsigned char> arrived_;  // by message
};

// The inboxes of an operation, and the index of each by its name.
struct Inboxes {
  std::vector<Inbox> all;
  std::unordered_map<std::uint64_t, std::size_t> places;
};

class Network {
 public:
  // With rail 0, on all interfaces. nullptr with `why` if UCX cannot be used.
  static std::unique_ptr<Network> open(const std::shared_ptr<UcxContext>& context, blink_error& why);
  // Adds a rail on the interfaces of `context`. False with `why` if UCX cannot use them.
  bool add_rail(std::size_t rail, const std::shared_ptr<UcxContext>& context, blink_error& why);
  ~Network() { shut(true); }
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  bool has_rail(std::size_t rail) const { return rail < rails_.size() && rails_[rail] != nullptr; }
  Worker& worker(std::size_t rail = 0) { return *rails_[rail]->worker; }
  // True for a rank on another host, which is connected to rail 0 at least.
  bool reaches(int peer) const { return rails_[0]->worker->reaches(peer); }
  bool connects(int peer, std::size_t rail) const { return has_rail(rail) && rails_[rail]->worker->reaches(peer); }
  // True if a connection to `peer` is broken. Rail 0 counts only for peers without other rails.
  bool is_broken(int peer) const;

  // Begins a call; its inboxes live until end().
  void begin(const MessageHeader& call, Inboxes& inboxes);
  void end() { inboxes_ = nullptr; }

  // A message of the current call. Its bytes stay in place until it is done.
  struct Sent {
    MessageHeader header;
    Network* network;
    bool done;
  };
  // Messages up to `bytes` leave at once, and their receiver copies them; larger ones wait for it and are not copied.
  void send_at_once(std::size_t bytes) { at_once_ = bytes; }
  const Sent& send(int peer, std::size_t rail, std::uint32_t queue, std::uint32_t number, const void* data,
                   std::size_t bytes);
  // Takes up held messages after a slot has become free.
  void go_on() {
    if (!held_.empty()) release_held();
  }
  // Moves messages; true if any moved.
  bool progress();
  // True if all messages of this call have left this process.
  bool settled() const { return sending_ == 0; }
  // Sleeps until messages can move, `bell` can be read, or the timeout.
  void sleep(int bell, std::int64_t us);
  // Ends all messages and connections. Afterwards nothing reads or writes this rank's buffers.
  void shut(bool orderly);

  // The core from which a peer of this machine sent its last message; -1 for peers on other machines. Two containers of
  // a job are hosts for it, and yet may share a core.
  int core_of(int peer) const {
    const auto place = cores_.find(peer);
    return place == cores_.end() ? -1 : place->second;
  }

  // The header of a message without a queue in its call, because its sender makes another call; nullptr: none arrived.
  const MessageHeader* stranger() const { return stranger_.sender < 0 ? nullptr : &stranger_; }

 private:
  enum class Kind { kCopied, kKept, kOffered };
  struct Rail {
    Network* network;
    std::unique_ptr<Worker> worker;
  };
  struct Held {
    Worker* worker;
    MessageHeader header;
    Kind kind;
    void* data;
    std::size_t bytes;
  };
  struct Arriving {
    Network* network;
    Worker* worker;
    Inbox* inbox;
    std::size_t number;
  };

  Network() = default;
  static ucx::Status on_message(void* context, const void* header, std::size_t header_bytes, void* data,
                                std::size_t bytes, const ucx::ReceiveAttributes* attributes);
  static void on_sent(void* request, ucx::Status status, void* user_data);
  static void on_received(void* request, ucx::Status status, std::size_t bytes, void* user_data);
  ucx::Status take(Worker& worker, const MessageHeader& header, void* data, std::size_t bytes, std::uint64_t attributes);
  bool is_now(const MessageHeader& header) const { return inboxes_ != nullptr && header.sequence == call_.sequence; }
  // The inbox of a message of this call; nullptr makes it the stranger.
  Inbox* inbox_of(const MessageHeader& header, std::size_t bytes);
  void meet_stranger(const MessageHeader& header) {
    if (stranger_.sender < 0) stranger_ = header;
  }
  void release_held();
  void receive(const Held& offer, Inbox& inbox, unsigned char* into);
  static void drop(const Held& message);

  std::vector<std::unique_ptr<Rail>> rails_;  // by number; null for a rail of other hosts
  std::vector<int> events_;                   // of all workers
  MessageHeader call_{};
  Inboxes* inboxes_ = nullptr;
  std::vector<Held> held_;
  bool offered_ = false;           // held_ has new offers
  std::deque<Sent> sent_;          // messages of this call;
  std::deque<Arriving> arriving_;  // offers of this call
  std::size_t sending_ = 0, receiving_ = 0, at_once_ = 0;
  MessageHeader stranger_{0, 0, 0, 0, 0, 0, -1, 0};
  std::uint32_t machine_ = 0;           // the number of this machine's first core
  std::unordered_map<int, int> cores_;  // see core_of()
};

}  // namespace blink
