// One worker of UCX: connections to peers, messages, sleep and the end.
//
// One thread at a time uses it. Callbacks run in progress() only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "blink/host.h"
#include "ucx.h"

namespace blink {

// Networks of this host, for workers of a group: the interfaces in `devices` (as UCX_NET_DEVICES), or all (nullptr).
class UcxContext {
 public:
  // nullptr with `why` if the library or a device cannot be used.
  static std::shared_ptr<UcxContext> open(const char* library, const char* devices, blink_error& why);
  static std::shared_ptr<UcxContext> open(const ucx::Library& library, const char* devices, blink_error& why);
  ~UcxContext();
  UcxContext(const UcxContext&) = delete;
  UcxContext& operator=(const UcxContext&) = delete;

  const ucx::Library& ucp() const { return library_; }
  void* handle() const { return handle_; }
  // True if the kernel has all bytes of a message that is done.
  bool reports_exactly() const { return reports_exactly_; }

 private:
  explicit UcxContext(const ucx::Library& library) : library_(library) {}

  const ucx::Library& library_;
  void* handle_ = nullptr;
  bool reports_exactly_ = false;
};

class Worker {
 public:
  // UCX calls `on_message` with `receiver` for every message. nullptr with `why` if UCX has no device.
  static std::unique_ptr<Worker> open(std::shared_ptr<UcxContext> context, ucx::OnMessage on_message, void* receiver,
                                      blink_error& why);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  const ucx::Library& ucp() const { return context_->ucp(); }
  // The address for peers.
  const std::vector<unsigned char>& address() const { return address_; }
  // A peer that no network reaches is broken from the start.
  void connect(int peer, const void* address);
  bool reaches(int peer) const { return endpoints_.count(peer) != 0; }
  bool is_broken(int peer) const;
  void set_broken(int peer) { endpoints_.find(peer)->second.broken = true; }

  // Starts a send; `parameters` have the callback for its end. true: it is done already, or lost.
  bool send(int peer, const void* header, std::size_t header_bytes, const void* data, std::size_t bytes,
            const ucx::RequestParameters& parameters);
  // Starts to take up an offered message; otherwise like send().
  bool receive(int peer, void* offer, void* into, std::size_t bytes, const ucx::RequestParameters& parameters);
  void release(void* data) {
    if (handle_ != nullptr) ucp().am_data_release(handle_, data);
  }
  bool progress() { return handle_ != nullptr && ucp().worker_progress(handle_) != 0; }
  // False if messages have arrived. Otherwise the file events() becomes readable with the next one.
  bool arm() { return handle_ == nullptr || ucp().worker_arm(handle_) == ucx::kOk; }
  int events() const { return events_; }
  // Ends all connections. Orderly: messages leave first. Otherwise no callback comes any more if this returns true.
  bool close(bool orderly);

 private:
  struct Endpoint {
    void* handle;
    bool broken;
  };

  explicit Worker(std::shared_ptr<UcxContext> context) : context_(std::move(context)) {}
  void abandon();
  static void on_error(void* context, void*, ucx::Status) { static_cast<Endpoint*>(context)->broken = true; }

  std::shared_ptr<UcxContext> context_;
  void* handle_ = nullptr;
  int events_ = -1;
  std::vector<unsigned char> address_;
  std::unordered_map<int, Endpoint> endpoints_;  // nodes stay where they are
};

// Sleeps until one of `files` or `bell` (-1: none) is readable, or until the timeout, and takes the rings of the bell.
void sleep_on(const std::vector<int>& files, int bell, std::int64_t us);

}  // namespace blink
