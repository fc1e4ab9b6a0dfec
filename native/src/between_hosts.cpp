// The C interface of a rank's network: one context of UCX with a worker for collectives and one for streams.
#include <algorithm>
#include <cstring>

#include "comm.h"

struct blink_network {
  std::unique_ptr<blink::Network> calls;
  std::unique_ptr<blink::RemoteStreams> streams;
};

extern "C" {

blink_network* blink_network_open(const char* library, blink_error* error) {
  const auto context = blink::UcxContext::open(library, *error);
  if (context == nullptr) return nullptr;
  auto calls = blink::Network::open(context, *error);
  if (calls == nullptr) return nullptr;
  auto streams = blink::RemoteStreams::open(context, *error);
  if (streams == nullptr) return nullptr;
  return new blink_network{std::move(calls), std::move(streams)};
}

int64_t blink_network_address(const blink_network* network, void* into, int64_t room) {
  std::vector<unsigned char> both;
  for (const blink::Worker* worker : {&network->calls->worker(), &network->streams->worker()}) {
    const auto& address = worker->address();
    const std::uint64_t bytes = address.size();
    const auto* first = reinterpret_cast<const unsigned char*>(&bytes);
    both.insert(both.end(), first, first + sizeof bytes);
    both.insert(both.end(), address.begin(), address.end());
  }
  const auto size = static_cast<int64_t>(both.size());
  if (size <= room) std::memcpy(into, both.data(), both.size());
  return size;
}

void blink_network_close(blink_network* network) { delete network; }

void blink_set_network(blink_comm* comm, blink_network* network, int bell) {
  comm->set_network(std::move(network->calls), std::move(network->streams), bell);
  delete network;
}

int blink_connect(blink_comm* comm, int32_t rank, const void* address, int64_t bytes) {
  const auto* at = static_cast<const unsigned char*>(address);
  const unsigned char* addresses[2];
  for (const unsigned char*& one : addresses) {
    std::uint64_t length = 0;
    if (bytes < static_cast<int64_t>(sizeof length)) return BLINK_INVALID;
    std::memcpy(&length, at, sizeof length);
    bytes -= static_cast<int64_t>(sizeof length);
    if (length > static_cast<std::uint64_t>(bytes)) return BLINK_INVALID;
    one = at + sizeof length;
    at = one + length;
    bytes -= static_cast<int64_t>(length);
  }
  if (rank < 0 || rank >= comm->size() || rank == comm->rank()) return BLINK_INVALID;
  comm->connect(rank, addresses[0], addresses[1]);
  return BLINK_OK;
}

void blink_set_bell(blink_comm* comm, int32_t rank, int bell) { comm->set_bell(rank, bell); }

}  // extern "C"
