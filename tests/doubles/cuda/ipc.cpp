// Access of other processes to device memory. A handle names the whole allocation for any address inside it; the
// program must send the offset itself, as with CUDA's legacy handles.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "devices.h"
#include "entry.h"
#include "memory.h"
#include "streams.h"

using namespace cuda_double;

namespace {

struct Ticket {
  char magic[8];
  std::int32_t process, file;
  std::uint64_t inode, bytes;
  CUuuid uuid;
};
static_assert(sizeof(Ticket) <= sizeof(CUipcMemHandle), "fits");
constexpr char kMagic[8] = "DBLIPC1";
constexpr unsigned kLazyEnablePeerAccess = 1;

}  // namespace

CU_API cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr pointer) {
  CU_ENTER(kDriver | kContext | kNoCapture);
  Range range;
  if (!handle || !find_range(pointer, &range) || range.kind != Kind::device) return kInvalidValue;
  Ticket ticket{};
  std::memcpy(ticket.magic, kMagic, sizeof kMagic);
  ticket.process = getpid();
  ticket.file = range.file;
  ticket.inode = range.inode;
  ticket.bytes = range.bytes;
  ticket.uuid = machine().devices[static_cast<std::size_t>(range.device)].uuid;
  std::memset(handle, 0, sizeof *handle);
  std::memcpy(handle, &ticket, sizeof ticket);
  return kSuccess;
}

CU_API cuIpcOpenMemHandle_v2(CUdeviceptr* pointer, CUipcMemHandle handle, unsigned flags) {
  CU_ENTER(kDriver | kContext | kNoCapture);
  Ticket ticket;
  std::memcpy(&ticket, &handle, sizeof ticket);
  if (!pointer || flags != kLazyEnablePeerAccess || std::memcmp(ticket.magic, kMagic, sizeof kMagic)) {
    return kInvalidValue;
  }
  if (ticket.process == getpid()) return kInvalidContext;  // never in the process that exported it
  const int device = machine().ordinal_of(ticket.uuid);
  if (device >= 0 && device != current_device() && !machine().can_reach(current_device(), device)) {
    return kPeerAccessUnsupported;
  }
  Range range;
  if (find_opened(ticket.inode, &range)) {
    change_opened(range.base, 1);
    *pointer = range.base;
    return kSuccess;
  }
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/fd/%d", ticket.process, ticket.file);
  const int file = open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) return kInvalidValue;
  struct stat about;
  const bool same = !fstat(file, &about) && about.st_ino == ticket.inode;
  const bool mapped = same && map_guarded(file, ticket.bytes, &range);
  if (!mapped) {
    close(file);
    return same ? kOutOfMemory : kInvalidValue;
  }
  hold_open(file);
  range.kind = Kind::ipc;
  range.file = file;
  range.device = device;
  range.inode = ticket.inode;
  range.opened = 1;
  add_range(range);
  *pointer = range.base;
  return kSuccess;
}

CU_API cuIpcCloseMemHandle(CUdeviceptr pointer) {
  CU_ENTER(kDriver | kContext | kNoCapture);
  Range range;
  if (!find_range(pointer, &range) || range.base != pointer || range.kind != Kind::ipc) return kInvalidValue;
  if (change_opened(pointer, -1) > 0) return kSuccess;
  wait_for_device(current_device());
  if (!remove_range(pointer, Kind::ipc, &range)) return kInvalidValue;
  unmap_guarded(range);
  close(range.file);
  return kSuccess;
}
