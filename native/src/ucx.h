// The part of UCP, UCX's interface for messages, that queues between hosts use.
//
// The library is loaded at run time, so no build needs UCX's headers. Functions, numbers and structs are those of UCP
// 1.13 and newer under names of this project. A mask in each struct lists its valid fields, so newer versions with longer
// structs accept these.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>

namespace blink::ucx {

// The oldest version that has all of this.
constexpr unsigned kMajor = 1, kMinor = 13;

using Status = signed char;  // ucs_status_t, an enum of one byte
constexpr Status kOk = 0, kInProgress = 1, kBusy = -15;

// The result of a call that may continue: nullptr for done, one of the last hundred addresses for an error, or a request.
inline bool is_error(const void* request) { return reinterpret_cast<std::uintptr_t>(request) >= static_cast<std::uintptr_t>(-100); }
inline Status error_of(const void* request) { return static_cast<Status>(reinterpret_cast<std::intptr_t>(request)); }

struct ContextParameters {
  std::uint64_t mask, features;
  std::size_t request_size;
  void (*request_init)(void*);
  void (*request_cleanup)(void*);
  std::uint64_t tag_sender_mask;
  int workers_share;
  std::size_t endpoints, ranks_per_host;
  const char* name;
  std::size_t node_local_id;
};
constexpr std::uint64_t kFeatures = 1 << 0, kWorkersShare = 1 << 5;          // of ContextParameters
constexpr std::uint64_t kActiveMessages = 1 << 6, kWakeup = 1 << 4;          // features

struct WorkerParameters {
  std::uint64_t mask;
  int thread_mode;
  std::uint64_t cpus[16];
  unsigned events;
  void* user_data;
  int event_fd;
  std::uint64_t flags;
  const char* name;
  std::size_t alignment;
  std::uint64_t client_id;
};
constexpr std::uint64_t kThreadMode = 1 << 0;  // of WorkerParameters
constexpr int kSerialized = 1;                 // one thread at a time

struct EndpointParameters {
  std::uint64_t mask;
  const void* address;
  int error_mode;
  struct {
    void (*call)(void* context, void* endpoint, Status status);
    void* context;
  } on_error;
  void* user_data;
  unsigned flags;
  struct {
    const sockaddr* address;
    socklen_t length;
  } socket;
  void* connection_request;
  const char* name;
  struct {
    const sockaddr* address;
    socklen_t length;
  } local_socket;
};
constexpr std::uint64_t kAddress = 1 << 0, kErrorMode = 1 << 1, kErrorHandler = 1 << 2;  // of EndpointParameters
constexpr int kTellsLostPeers = 1;                                                      // error_mode

struct ReceiveAttributes {
  std::uint64_t attributes;
  void* reply_endpoint;
};
constexpr std::uint64_t kDataStays = 1 << 16, kIsOffer = 1 << 17;  // attributes

using OnMessage = Status (*)(void* context, const void* header, std::size_t header_bytes, void* data, std::size_t bytes,
                             const ReceiveAttributes* attributes);
struct HandlerParameters {
  std::uint64_t mask;
  unsigned id;
  std::uint32_t flags;
  OnMessage call;
  void* context;
};
constexpr std::uint64_t kHandlerId = 1 << 0, kHandlerCall = 1 << 2, kHandlerContext = 1 << 3;  // of HandlerParameters

struct RequestParameters {
  std::uint32_t mask, flags;
  void* request;
  union {
    void (*send)(void* request, Status status, void* user_data);
    void (*receive)(void* request, Status status, std::size_t bytes, void* user_data);
  } done;
  std::uint64_t datatype;
  void* user_data;
  void* reply_buffer;
  int memory_type;
  void* received;
  void* memory;
  std::uint64_t remote_datatype;
  const void* remote;
  std::size_t remote_count;
};
constexpr std::uint32_t kCallback = 1 << 1, kUserData = 1 << 2, kFlags = 1 << 4, kMemoryType = 1 << 6;  // of RequestParameters
constexpr std::uint32_t kCloseAtOnce = 1 << 0, kEager = 1 << 1;  // flags of closing, and of sending

// The functions, by their names without "ucp_"; loaded once per process and never unloaded.
struct Library {
  Status (*init_version)(unsigned major, unsigned minor, const ContextParameters*, const void* config, void** context);
  void (*cleanup)(void* context);
  Status (*config_read)(const char* prefix, const char* file, void** config);
  Status (*config_modify)(void* config, const char* name, const char* value);
  void (*config_release)(void* config);
  void (*get_version)(unsigned* major, unsigned* minor, unsigned* release);
  Status (*worker_create)(void* context, const WorkerParameters*, void** worker);
  void (*worker_destroy)(void* worker);
  Status (*worker_get_address)(void* worker, void** address, std::size_t* bytes);
  void (*worker_release_address)(void* worker, void* address);
  Status (*worker_get_efd)(void* worker, int* fd);
  Status (*worker_arm)(void* worker);
  unsigned (*worker_progress)(void* worker);
  Status (*worker_set_am_recv_handler)(void* worker, const HandlerParameters*);
  Status (*ep_create)(void* worker, const EndpointParameters*, void** endpoint);
  void* (*ep_close_nbx)(void* endpoint, const RequestParameters*);
  void* (*am_send_nbx)(void* endpoint, unsigned id, const void* header, std::size_t header_bytes, const void* data,
                       std::size_t bytes, const RequestParameters*);
  void* (*am_recv_data_nbx)(void* worker, void* offer, void* into, std::size_t bytes, const RequestParameters*);
  void (*am_data_release)(void* worker, void* data);
  Status (*request_check_status)(void* request);
  void (*request_free)(void* request);
  const char* (*status_string)(Status status);
};

// The library in `file`; nullptr, and a reason of at most `room` bytes in `why`.
const Library* load(const char* file, char* why, std::size_t room);

}  // namespace blink::ucx
