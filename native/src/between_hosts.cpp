// The C interface of a rank's networks: its rails, of which rail 0 also has a worker for streams.
#include <cstring>

#include "comm.h"
#include "plan.h"

namespace {

// Copies the addresses of workers to `into`, each after its length. Returns their bytes, or -1 with an error.
std::int64_t write_addresses(const std::vector<const blink::Worker*>& workers, void* into, std::int64_t room,
                             blink_error& why) {
  std::vector<unsigned char> all;
  for (const blink::Worker* worker : workers) {
    const auto& address = worker->address();
    const std::uint64_t bytes = address.size();
    const auto* first = reinterpret_cast<const unsigned char*>(&bytes);
    all.insert(all.end(), first, first + sizeof bytes);
    all.insert(all.end(), address.begin(), address.end());
  }
  const auto size = static_cast<std::int64_t>(all.size());
  if (size > room) {
    blink::refuse(why, BLINK_SYSTEM, "UCX's address has %zu bytes, and there is room for %zu", all.size(), static_cast<std::size_t>(room));
    return -1;
  }
  std::memcpy(into, all.data(), all.size());
  return size;
}

// Takes the next address from [at, at + bytes); nullptr if it is malformed.
const void* next_address(const unsigned char*& at, std::int64_t& bytes) {
  std::uint64_t length = 0;
  if (bytes < static_cast<std::int64_t>(sizeof length)) return nullptr;
  std::memcpy(&length, at, sizeof length);
  bytes -= static_cast<std::int64_t>(sizeof length);
  if (length > static_cast<std::uint64_t>(bytes)) return nullptr;
  const unsigned char* address = at + sizeof length;
  at = address + length;
  bytes -= static_cast<std::int64_t>(length);
  return address;
}

}  // namespace

extern "C" {

int64_t blink_open_network(blink_comm* comm, const char* library, const char* devices, int bell, void* into,
                           int64_t room, blink_error* error) {
  const auto context = blink::UcxContext::open(library, devices, *error);
  if (context == nullptr) return -1;
  auto calls = blink::Network::open(context, *error);
  if (calls == nullptr) return -1;
  auto streams = blink::RemoteStreams::open(context, *error);
  if (streams == nullptr) return -1;
  const int64_t bytes = write_addresses({&calls->worker(), &streams->worker()}, into, room, *error);
  if (bytes >= 0) comm->set_network(std::move(calls), std::move(streams), bell);
  return bytes;
}

int64_t blink_open_rail(blink_comm* comm, int32_t rail, const char* devices, int streams, void* into, int64_t room,
                        blink_error* error) {
  blink::Network* network = comm->network();
  if (network == nullptr || rail < 1 || rail > BLINK_MOST_RAILS || network->has_rail(static_cast<std::size_t>(rail))) {
    blink::refuse(*error, BLINK_INVALID, "rail %d cannot be opened", static_cast<int>(rail));
    return -1;
  }
  const auto number = static_cast<std::size_t>(rail);
  const auto context = blink::UcxContext::open(network->worker().ucp(), devices, *error);
  if (context == nullptr || !network->add_rail(number, context, *error)) return -1;
  std::vector<const blink::Worker*> workers{&network->worker(number)};
  if (streams != 0) {
    if (!comm->streams().add_rail(number, context, *error)) return -1;
    workers.push_back(&comm->streams().worker(number));
  }
  return write_addresses(workers, into, room, *error);
}

int blink_connect(blink_comm* comm, int32_t rank, int32_t rail, const void* address, int64_t bytes) {
  const auto* at = static_cast<const unsigned char*>(address);
  const void* first = next_address(at, bytes);
  if (first == nullptr || rank < 0 || rank >= comm->size() || rank == comm->rank()) return BLINK_INVALID;
  if (rail == 0) {
    const void* stream = next_address(at, bytes);
    if (stream == nullptr) return BLINK_INVALID;
    comm->connect(rank, first, stream);
    return BLINK_OK;
  }
  if (rail < 0 || !comm->network()->has_rail(static_cast<std::size_t>(rail))) return BLINK_INVALID;
  comm->network()->worker(static_cast<std::size_t>(rail)).connect(rank, first);
  if (const void* stream = next_address(at, bytes)) comm->streams().connect(rank, static_cast<std::size_t>(rail), stream);
  return BLINK_OK;
}

void blink_send_at_once(blink_comm* comm, int64_t bytes) {
  comm->network()->send_at_once(static_cast<std::size_t>(bytes));
}

void blink_set_bell(blink_comm* comm, int32_t rank, int bell) { comm->set_bell(rank, bell); }

}  // extern "C"
