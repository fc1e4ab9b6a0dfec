// What communicators leave on a GPU for those that come later: memory that peers write into, and loaded modules.
//
// To free device memory, to unload a module and to unregister host memory waits for all that runs on the GPU, and that
// may be another communicator's kernel that waits for a rank that waits for us. So nothing of it is given back to CUDA
// while the process runs but a page's registration, by who destroys a communicator, where NCCL frees its own memory,
// too.
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

// A rank's memory on its GPU, and a page of the host where its kernels say why they ended early.
struct Arena {
  CUdeviceptr segment = 0;
  std::size_t bytes = 0;
  Status* status = nullptr;
  CUdeviceptr status_device = 0;
};

namespace pool {

// What is kept belongs to a context, which is another one when the program has reset the GPU: its number, or where the
// driver gives none the device's.
std::uint64_t place_of(const Driver& driver, CUcontext context, int device);

// An arena of at least `bytes`, with a status page that is zero; false and `why` where there is no memory. In the
// place's context.
bool take(const Driver& driver, std::uint64_t place, std::size_t bytes, Arena* arena, std::string* why);
// When nothing of this rank uses it any more. Peers' last stores may be on their way: it is handed out again when all
// ranks of `page` are done. What of the page was registered stays so until unregister_pages(). `page` may be null.
void give(std::uint64_t place, const Arena& arena, std::shared_ptr<SharedPage> page);
void unregister_pages(const Driver& driver);

// The module of an image's file, whose content `read` has; loaded once for each place. In its context.
typedef std::function<bool(std::string* code)> Reader;
bool module(const Driver& driver, std::uint64_t place, const std::string& file, const Reader& read, CUmodule* module,
            std::string* why);

}  // namespace pool
}  // namespace blink::shim
