// The resources on a GPU that communicators leave for later ones: memory that peers write into, and loaded modules.
//
// Freeing device memory, unloading a module or unregistering host memory waits for all work on the GPU. That work may
// be another communicator's kernel, which waits for a rank that waits for this one. So these stay until the process
// ends. Only page registrations are released, when a communicator ends without an abort: there NCCL also frees memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "blink/call.h"
#include "driver.h"
#include "shared_page.h"

namespace blink::shim {

// A rank's memory on its GPU, and a host page in which its kernels report errors.
struct Arena {
  CUdeviceptr segment = 0;
  std::size_t bytes = 0;
  Status* status = nullptr;
  CUdeviceptr status_device = 0;
};

namespace pool {

// A number for the context, which changes if the program resets the GPU: the context's id, or the device's ordinal if
// the driver has no ids.
std::uint64_t place_of(const Driver& driver, CUcontext context, int device);

// An arena of at least `bytes` with a zeroed status page; false and `why` if there is no memory. To be called in the
// place's context.
bool take(const Driver& driver, std::uint64_t place, std::size_t bytes, Arena* arena, std::string* why);
// To be called when this rank no longer uses the arena. Peers' last stores may still be on their way, so it is reused
// once all ranks of `page` are done. Page registrations last until unregister_pages(). `page` may be null.
void give(std::uint64_t place, const Arena& arena, std::shared_ptr<SharedPage> page);
void unregister_pages(const Driver& driver);

// The module of an image's file, which `read` reads; loaded once per place. To be called in the place's context.
typedef std::function<bool(std::string* code)> Reader;
bool module(const Driver& driver, std::uint64_t place, const std::string& file, const Reader& read, CUmodule* module,
            std::string* why);

}  // namespace pool
}  // namespace blink::shim
