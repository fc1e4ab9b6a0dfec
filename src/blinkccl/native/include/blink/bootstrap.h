// The bootstrap's C interface: the ranks of one group find each other, and exchange bytes and descriptors.
//
// Rank 0 is the coordinator; every other rank is a client with one connection to it. Ranks of one host use a UNIX
// socket with an abstract name, ranks of several hosts use TCP; the messages are the same. Ranks need only an address
// and a token. Rank 0 listens where all ranks look for it, or publishes both (torch's store, a file, …), or all ranks
// derive them from something that they share (announce).
//
//   all_gather   Every rank contributes bytes and, on one host, descriptors, and receives those of all ranks. It has
//                two phases: all ranks receive and confirm the data, then the coordinator commits. So either all ranks
//                succeed or all get the error.
//   failures     A rank that dies closes its connection. The coordinator notices and reports the rank, its process and
//                the reason to all ranks. All ranks notice when the coordinator dies. Only the first cause is reported,
//                not the failures that follow from it.
//   strangers    Processes of another user, without the token, or silent ones are disconnected. They delay no rank.
//
// No call blocks longer than its timeout. Only one thread at a time may make calls. After an error,
// blink_bootstrap_cause() returns the reason. Ranks may still disagree after a commit if rank 0 dies while committing,
// or if a rank dies between confirming and the commit. The surviving ranks then get the error in their next round.
#ifndef BLINK_BOOTSTRAP_H
#define BLINK_BOOTSTRAP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct blink_bootstrap blink_bootstrap;

enum {
  BLINK_BOOTSTRAP_TOKEN = 64,          // characters of a token;
  BLINK_BOOTSTRAP_BYTES = 65536,       // the most bytes that one rank contributes to a round;
  BLINK_BOOTSTRAP_RANKS = 4096,        // most ranks;
  BLINK_BOOTSTRAP_DESCRIPTORS = 253,   // the most descriptors of all ranks in a round (SCM_MAX_FD of the Linux kernel);
  BLINK_BOOTSTRAP_TEXT = 2048          // bytes of a cause's text with its terminator
};

enum blink_bootstrap_status {
  BLINK_BOOTSTRAP_OK = 0,
  BLINK_BOOTSTRAP_AGAIN = 1,     // not complete; call blink_bootstrap_step()
  BLINK_BOOTSTRAP_TIMEOUT = 2,   // ranks did not connect or did not answer within the timeout;
  BLINK_BOOTSTRAP_LOST = 3,      // a connected rank has died;
  BLINK_BOOTSTRAP_MISMATCH = 4,  // ranks differ in their arguments, or two have the same number;
  BLINK_BOOTSTRAP_FAILED = 5     // a rank reported a failure of its own
};

typedef struct blink_bootstrap_reason {
  int32_t status;  // enum blink_bootstrap_status
  int32_t rank;    // the rank that caused it; -1: no particular rank
  int32_t pid;     // that rank's process; 0: unknown
  char text[BLINK_BOOTSTRAP_TEXT];
} blink_bootstrap_reason;

// Rank 0 of `size` ranks listens at `tcp` ("HOST:PORT"; port 0: a free one), or, if that is NULL, at a new abstract name
// of this host. A rank that dies before all ranks have connected may be restarted within a second. This
// function and the next two constructors return NULL and set `reason` on failure.
blink_bootstrap* blink_bootstrap_listen(const char* tcp, const char* token, int size, blink_bootstrap_reason* reason);
// The coordinator's address: "unix:NAME" or "tcp:HOST:PORT".
const char* blink_bootstrap_address(const blink_bootstrap* bootstrap);
// Connects rank `rank` to the coordinator at such an address.
blink_bootstrap* blink_bootstrap_connect(const char* address, const char* token, int rank, int size,
                                         blink_bootstrap_reason* reason);
// All ranks know `token` and are on one host. Every rank listens at a name derived from the token. So the coordinator
// reports a rank as missing as soon as nobody listens at its name `grace_s` after the first round began.
blink_bootstrap* blink_bootstrap_announce(const char* token, int rank, int size, blink_bootstrap_reason* reason);

// Begins a round; all ranks begin the same rounds. Descriptors are duplicated. Returns AGAIN, or an error known
// already.
int blink_bootstrap_all_gather(blink_bootstrap* bootstrap, const void* bytes, size_t size, const int* descriptors,
                               int count, double grace_s, double deadline_s);
// Makes progress for at most `timeout_ms`. OK: the data of all ranks has arrived. Any error is permanent.
int blink_bootstrap_step(blink_bootstrap* bootstrap, int timeout_ms);
// After OK, until the next round: the bytes of `rank`, in memory of the bootstrap.
size_t blink_bootstrap_bytes(const blink_bootstrap* bootstrap, int rank, const void** bytes);
// The same for the descriptors of `rank`. Returns their number. The caller owns them; they are close-on-exec, and this
// rank's own are duplicates.
int blink_bootstrap_descriptors(blink_bootstrap* bootstrap, int rank, int* descriptors, int capacity);

// Reports to the other ranks that this rank fails, for `reason`. Afterwards `reason` is the first known cause, which
// may be another rank's. Takes at most half a second, and at a port to which ranks have yet to come a second more.
void blink_bootstrap_fail(blink_bootstrap* bootstrap, blink_bootstrap_reason* reason);
// The reason of the last error.
void blink_bootstrap_cause(const blink_bootstrap* bootstrap, blink_bootstrap_reason* reason);
// After TIMEOUT: the missing ranks in ascending order. Returns their number, of which at most `capacity` are written.
int blink_bootstrap_missing(const blink_bootstrap* bootstrap, int32_t* ranks, int capacity);
// Leaves the group in order. In a forked child it only closes the child's copies, without effect on any rank.
void blink_bootstrap_leave(blink_bootstrap* bootstrap);

#ifdef __cplusplus
}
#endif

#endif
