#include "groups.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "deadline.h"
#include "exports.h"
#include "real_nccl.h"

namespace blink::shim {
namespace {

// Trivial types: a thread that ends with an open group, or calls NCCL while it ends, must not meet a destroyed object.
thread_local int depth = 0;
thread_local Group* group = nullptr;

ncclResult_t start() {
  // Allocation may fail, so it comes first: the real group and Blink's open and close together.
  std::unique_ptr<Group> opened;
  if (depth == 0) opened = std::make_unique<Group>();
  const ncclResult_t result = real::ncclGroupStart();
  if (result != ncclSuccess) return result;
  if (depth++ == 0) group = opened.release();
  return result;
}

// `end` is the real ncclGroupEnd or ncclGroupSimulateEnd.
template <class End>
ncclResult_t finish(End end, bool runs) {
  const ncclResult_t begun = depth == 1 && runs ? guarded([] { return group->begin(); }) : ncclSuccess;
  const ncclResult_t result = end();
  if (depth == 0 || --depth > 0) return result;
  const std::unique_ptr<Group> ended(group);
  group = nullptr;
  return ended->end(failed(begun) && !failed(result) ? begun : result, runs);
}

}  // namespace

Group* Group::current() { return group; }

Group::Part& Group::part_of(const std::shared_ptr<Member>& member) {
  const auto is_it = [&](const Part& part) { return part.member == member; };
  const auto entry = std::find_if(parts_.begin(), parts_.end(), is_it);
  return entry != parts_.end() ? *entry : *parts_.insert(parts_.end(), Part{member, {}});
}

void Group::add(std::shared_ptr<Member> member, const Operation& operation) {
  Part& part = part_of(member);
  if (is_message(operation.collective)) part.messages.push_back(operation);
  else calls_.push_back({std::move(member), operation});
}

void Group::uses(const Member* member, CUstream stream) {
  std::vector<CUstream>& streams = streams_[member];
  if (std::find(streams.begin(), streams.end(), stream) == streams.end()) streams.push_back(stream);
}

void Group::leaves(std::shared_ptr<Member> member, CUstream stream) {
  const auto call = std::make_pair(std::move(member), stream);
  if (std::find(left_.begin(), left_.end(), call) == left_.end()) left_.push_back(call);
}

ncclResult_t Group::join_streams() {
  ncclResult_t result = ncclSuccess;
  for (const Part& part : parts_) {
    const ncclResult_t joined = part.member->join(streams_[part.member.get()]);
    if (failed(joined) && !failed(result)) result = joined;
  }
  return result;
}

ncclResult_t Group::begin() {
  ncclResult_t joined = join_streams();
  for (const auto& [member, stream] : left_) {
    const ncclResult_t ordered = member->before_nccl(stream);
    if (failed(ordered) && !failed(joined)) joined = ordered;
  }
  for (const Part& part : parts_) {
    if (!failed(joined) && !part.messages.empty()) {
      part.member->fork(streams_[part.member.get()].at(0));
    }
  }
  return joined;
}

ncclResult_t Group::end(ncclResult_t result, bool runs) {
  begin_all(std::move(pending_), result);
  // After an error neither NCCL's part nor Blink's runs.
  if (!runs || failed(result)) return result;
  if (result == ncclInProgress) settle_real();
  const ncclResult_t noted = guarded([this, result] { return note_left(result); });
  const ncclResult_t ours = enqueue();
  const ncclResult_t joined = guarded([this] { return join_streams(); });
  return failed(noted) ? noted : failed(ours) ? ours : failed(joined) ? joined : result;
}

// All streams of NCCL's calls continue after the group's last call, so waiting for one stream waits for all.
ncclResult_t Group::note_left(ncclResult_t result) {
  ncclResult_t first = ncclSuccess;
  for (const auto& [member, stream] : left_) {
    ncclResult_t state = result;
    if (state == ncclInProgress) real::ncclCommGetAsyncError(member->real, &state);
    const ncclResult_t noted = member->after_nccl(stream, state);
    if (failed(noted) && !failed(first)) first = noted;
  }
  return first;
}

ncclResult_t Group::enqueue() {
  ncclResult_t result = ncclSuccess;
  const auto keep_first = [&result](ncclResult_t next) {
    if (failed(next) && !failed(result)) result = next;
  };
  for (const Call& call : calls_) {
    keep_first(guarded([&] { return call.member->enqueue(call.operation); }));
  }
  for (const Part& part : parts_) {
    if (part.messages.empty()) continue;
    keep_first(guarded(
        [&] { return part.member->enqueue(part.messages, streams_[part.member.get()].at(0)); }));
  }
  return result;
}

// For a non-blocking communicator NCCL launches its part from its own thread. Blink's part must follow it on every
// rank, or two ranks would run the parts in different orders.
void Group::settle_real() {
  const Deadline deadline(seconds_from("BLINK_PLAN_TIMEOUT", 120));
  for (const Part& part : parts_) {
    ncclResult_t state = ncclInProgress;
    while (!deadline.passed() && real::ncclCommGetAsyncError(part.member->real, &state) == ncclSuccess &&
           state == ncclInProgress) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
}

void begin_or_defer(std::vector<Pending> all, ncclResult_t result) {
  if (group == nullptr) return begin_all(std::move(all), result);
  if (failed(result)) return;
  beside([&] {
    for (Pending& pending : all) {
      bool& blocking = pending.member->place.wishes.blocking;
      blocking = blocking && result == ncclSuccess;
      group->add(std::move(pending));
    }
  });
}

ncclResult_t ours::ncclGroupStart() { return start(); }
ncclResult_t ours::ncclGroupEnd() { return finish(real::ncclGroupEnd, true); }
ncclResult_t ours::ncclGroupSimulateEnd(ncclSimInfo_t* simInfo) {
  return finish([simInfo] { return real::ncclGroupSimulateEnd(simInfo); }, false);
}

}  // namespace blink::shim
