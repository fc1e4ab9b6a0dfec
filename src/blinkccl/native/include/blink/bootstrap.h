// The bootstrap's C interface: the ranks of one group find each other, gather words and descriptors, and agree.
//
// Rank 0 is the coordinator, every other rank a client with one connection to it. Ranks of one host meet at a UNIX
// socket with an abstract name, ranks of several hosts over TCP, with the same messages. Only an address and a token
// have to be known before: rank 0 listens and publishes them, in torch's store, a file, or wherever the launcher has a
// place; or all ranks derive them from something that they share (announce).
//
//   all_gather   Every rank gives bytes and, on one host, descriptors; every rank gets everybody's. In two phases: all
//                get the data and confirm, then the coordinator commits. So all ranks succeed or all get the error.
//   failures     A rank that dies hangs up, which the coordinator sees and tells everybody: who, which process, why. All
//                see it when the coordinator dies. Only the first cause is told; what follows from it is not.
//   strangers    Processes of other users, without the token, or without a word: sent away, and cost no rank any time.
//
// Calls never block longer than the time-out that they are given, and may be made from one thread at a time. Where the
// interface says no, blink_bootstrap_cause() says why. What may still differ between ranks after a commit: rank 0 dies in
// the middle of committing, or a rank dies between confirming and the commit; whoever goes on learns that in its next
// round.
#ifndef BLINK_BOOTSTRAP_H
#define BLINK_BOOTSTRAP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct blink_bootstrap blink_bootstrap;

enum {
  BLINK_BOOTSTRAP_TOKEN = 64,          // characters of a token
  BLINK_BOOTSTRAP_BYTES = 65536,       // most that one rank gives in a round
  BLINK_BOOTSTRAP_RANKS = 4096,        // most ranks
  BLINK_BOOTSTRAP_DESCRIPTORS = 253,   // most descriptors of all ranks in a round (SCM_MAX_FD of the Linux kernel)
  BLINK_BOOTSTRAP_TEXT = 2048          // bytes of a cause's text with its terminator
};

enum blink_bootstrap_status {
  BLINK_BOOTSTRAP_OK = 0,
  BLINK_BOOTSTRAP_AGAIN = 1,     // not yet: call blink_bootstrap_step()
  BLINK_BOOTSTRAP_TIMEOUT = 2,   // ranks did not come, or not answer, by the deadline
  BLINK_BOOTSTRAP_LOST = 3,      // a rank was there and is gone
  BLINK_BOOTSTRAP_MISMATCH = 4,  // ranks do not want the same, or two are the same
  BLINK_BOOTSTRAP_FAILED = 5     // a rank cannot take part, for a reason of its own
};

typedef struct blink_bootstrap_reason {
  int32_t status;  // enum blink_bootstrap_status
  int32_t rank;    // whose fault it is; -1: nobody's in particular
  int32_t pid;     // that rank's process; 0: unknown
  char text[BLINK_BOOTSTRAP_TEXT];
} blink_bootstrap_reason;

// Rank 0 of `size` ranks listens at a fresh name of this host, and, if `tcp` is "HOST:PORT" and not NULL, there too
// (port 0: a free one). A rank that ends before all have come may be started again within a second.
// These three: NULL and `reason` if that cannot be.
blink_bootstrap* blink_bootstrap_listen(const char* tcp, const char* token, int size, blink_bootstrap_reason* reason);
// Where it listens, to be published: "unix:NAME" or "unix:NAME tcp:HOST:PORT".
const char* blink_bootstrap_address(const blink_bootstrap* bootstrap);
// Rank `rank` goes to the coordinator at one of those addresses: "unix:NAME" or "tcp:HOST:PORT".
blink_bootstrap* blink_bootstrap_connect(const char* address, const char* token, int rank, int size,
                                         blink_bootstrap_reason* reason);
// All ranks know `token` and are on one host. Every rank listens at a name that follows from it, so that the coordinator
// can tell at once who is not there: whoever nobody listens for `grace_s` after the first round began.
blink_bootstrap* blink_bootstrap_announce(const char* token, int rank, int size, blink_bootstrap_reason* reason);

// Begins a round; all ranks begin the same ones. Descriptors are duplicated. Then AGAIN, or what is wrong already.
int blink_bootstrap_all_gather(blink_bootstrap* bootstrap, const void* bytes, size_t size, const int* descriptors,
                               int count, double grace_s, double deadline_s);
// Goes on for at most `timeout_ms`. OK: everybody's words are here. Once it is neither OK nor AGAIN it stays so.
int blink_bootstrap_step(blink_bootstrap* bootstrap, int timeout_ms);
// After OK, until the next round: what `rank` gave, in memory of the bootstrap.
size_t blink_bootstrap_bytes(const blink_bootstrap* bootstrap, int rank, const void** bytes);
// The same for its descriptors, which are then the caller's and closed on exec; how many. One's own are duplicates.
int blink_bootstrap_descriptors(blink_bootstrap* bootstrap, int rank, int* descriptors, int capacity);

// This rank cannot go on, for `reason`; the others are told. Afterwards `reason` is the first cause that is known, which
// may be another rank's. Takes at most half a second.
void blink_bootstrap_fail(blink_bootstrap* bootstrap, blink_bootstrap_reason* reason);
// Why it said no.
void blink_bootstrap_cause(const blink_bootstrap* bootstrap, blink_bootstrap_reason* reason);
// Of a TIMEOUT, the ranks that have not come, rising; how many there are, of which `capacity` are written.
int blink_bootstrap_missing(const blink_bootstrap* bootstrap, int32_t* ranks, int capacity);
// This rank leaves in order. In a forked child: lets go of its copies, which disturbs nobody.
void blink_bootstrap_leave(blink_bootstrap* bootstrap);

#ifdef __cplusplus
}
#endif

#endif
