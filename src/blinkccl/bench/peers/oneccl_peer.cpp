// A rank of oneCCL on CPUs, measured: `mpirun -n N oneccl_peer SOCKET`. See peer.h and protocol.py.
//
// Linked to the static CPU library of the package `oneccl`; the shared one wants a GPU's runtime.
#include "peer.h"

#include <exception>
#include <fstream>
#include <oneapi/ccl.hpp>
#include <string>

// Hooks of a profiler that is never there; the static library refers to them, but does not bring them.
extern "C" {
void *__itt_string_handle_create_ptr__3_0, *__itt_task_begin_ptr__3_0, *__itt_task_end_ptr__3_0,
    *__itt_metadata_add_ptr__3_0, *__itt_thread_set_name_ptr__3_0, *__itt_event_start_ptr__3_0,
    *__itt_event_end_ptr__3_0, *__itt_event_create_ptr__3_0, *__itt_domain_create_ptr__3_0;
}

namespace {

using Address = ccl::kvs::address_type;

int number(const char* name) {
  const char* text = getenv(name);
  if (text == nullptr) peer_end("not started by mpirun");
  return atoi(text);
}

// Rank 0's address, through a file beside the socket: renamed, so that it is there whole or not at all.
Address exchange(const std::string& path, ccl::shared_ptr_class<ccl::kvs>& store, int rank) {
  Address address;
  if (rank == 0) {
    store = ccl::create_main_kvs();
    address = store->get_address();
    std::ofstream(path + ".new", std::ios::binary).write(address.data(), (std::streamsize)address.size());
    if (rename((path + ".new").c_str(), path.c_str()) != 0) peer_end("cannot write the address of the store");
    return address;
  }
  for (int tries = 0; tries < 3000; ++tries) {
    std::ifstream file(path, std::ios::binary);
    if (file.read(address.data(), (std::streamsize)address.size())) {
      store = ccl::create_kvs(address);
      return address;
    }
    usleep(10000);
  }
  peer_end("rank 0 did not come");
  return address;
}

bool type_of(uint32_t dtype, ccl::datatype& type) {
  switch (dtype) {
    case BLINK_INT8: type = ccl::datatype::int8; return true;
    case BLINK_UINT8: type = ccl::datatype::uint8; return true;
    case BLINK_INT16: type = ccl::datatype::int16; return true;
    case BLINK_UINT16: type = ccl::datatype::uint16; return true;
    case BLINK_INT32: type = ccl::datatype::int32; return true;
    case BLINK_UINT32: type = ccl::datatype::uint32; return true;
    case BLINK_INT64: type = ccl::datatype::int64; return true;
    case BLINK_UINT64: type = ccl::datatype::uint64; return true;
    case BLINK_FLOAT16: type = ccl::datatype::float16; return true;
    case BLINK_BFLOAT16: type = ccl::datatype::bfloat16; return true;
    case BLINK_FLOAT32: type = ccl::datatype::float32; return true;
    case BLINK_FLOAT64: type = ccl::datatype::float64; return true;
    default: return false;
  }
}

bool op_of(uint32_t op, ccl::reduction& found) {
  switch (op) {
    case BLINK_SUM: found = ccl::reduction::sum; return true;
    case BLINK_PROD: found = ccl::reduction::prod; return true;
    case BLINK_MIN: found = ccl::reduction::min; return true;
    case BLINK_MAX: found = ccl::reduction::max; return true;
    default: return false;
  }
}

const char* refuse(void*, const struct peer_command* c) {
  ccl::datatype type;
  ccl::reduction op;
  if (c->collective > BLINK_ALLTOALL || c->collective == BLINK_GATHER || c->collective == BLINK_SCATTER)
    return "oneCCL has no such collective";
  if (!type_of(c->dtype, type)) return "oneCCL has no such type";
  if (peer_reduces(c) && !op_of(c->op, op)) return "oneCCL has no such operation";
  if (c->flags & PEER_SHARED) return "a oneCCL peer has private buffers only";
  return nullptr;
}

void barrier(void* self) { ccl::barrier(*static_cast<ccl::communicator*>(self)); }

const char* run(void* self, const struct peer_work* w) {
  const peer_command& c = w->command;
  ccl::communicator& all = *static_cast<ccl::communicator*>(self);
  ccl::datatype type = ccl::datatype::float32;
  ccl::reduction op = ccl::reduction::sum;
  type_of(c.dtype, type);
  op_of(c.op, op);
  try {
    switch (c.collective) {
      case BLINK_BROADCAST:
        if (w->in && w->in != w->out) memcpy(w->out, w->in, c.count * c.itemsize);
        ccl::broadcast(w->out, c.count, type, c.root, all).wait();
        break;
      case BLINK_REDUCE: ccl::reduce(w->in, w->out ? w->out : w->in, c.count, type, op, c.root, all).wait(); break;
      case BLINK_ALLREDUCE: ccl::allreduce(w->in, w->out, c.count, type, op, all).wait(); break;
      case BLINK_ALLGATHER: ccl::allgather(w->in, w->out, c.count, type, all).wait(); break;
      case BLINK_REDUCE_SCATTER: ccl::reduce_scatter(w->in, w->out, c.count, type, op, all).wait(); break;
      default: ccl::alltoall(w->in, w->out, c.count, type, all).wait();
    }
  } catch (const std::exception& error) {
    static char text[512];
    snprintf(text, sizeof text, "%s", error.what());
    return text;
  }
  return nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: oneccl_peer SOCKET\n");
    return 2;
  }
  try {
    int rank = number("PMI_RANK"), size = number("PMI_SIZE");
    ccl::init();
    ccl::shared_ptr_class<ccl::kvs> store;
    exchange(std::string(argv[1]) + ".address", store, rank);
    ccl::communicator all = ccl::create_communicator(size, rank, store);
    ccl::library_version version = ccl::get_library_version();
    std::string library = "oneCCL " + std::to_string(version.major) + "." + std::to_string(version.minor) + "." +
                          std::to_string(version.update);
    int fd = peer_connect(argv[1], rank, size, library.c_str());
    peer_library ccl = {barrier, run, refuse, &all};
    peer_serve(fd, &ccl);
  } catch (const std::exception& error) {
    fprintf(stderr, "oneCCL: %s\n", error.what());
    return 1;
  }
  return 0;
}
