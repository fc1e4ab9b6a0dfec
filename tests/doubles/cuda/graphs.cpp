// Captured graphs and their launches.
#include <algorithm>
#include <map>

#include "devices.h"
#include "entry.h"
#include "handles.h"
#include "streams.h"
#include "threads.h"

using namespace cuda_double;

struct CUgraph_st {
  std::vector<Node> nodes;
};

struct CUgraphExec_st {
  std::shared_ptr<const std::vector<Node>> nodes;
  OpPtr last;  // launches of one executable graph run one after another
};

namespace {

// All work captured in other streams must join the stream in which the capture began.
bool joined(const Capture& capture, const Stream& origin) {
  std::vector<bool> leads(capture.nodes.size(), false);
  std::vector<int> open = origin.heads;
  while (!open.empty()) {
    const auto node = static_cast<std::size_t>(open.back());
    open.pop_back();
    if (leads[node]) continue;
    leads[node] = true;
    open.insert(open.end(), capture.nodes[node].after.begin(), capture.nodes[node].after.end());
  }
  return std::all_of(leads.begin(), leads.end(), [](bool one) { return one; });
}

// One launch of a graph: by node, the work outside of the graph that it waits for or completes.
struct GraphLaunch {
  std::shared_ptr<const std::vector<Node>> nodes;
  std::vector<OpPtr> outside;
};
typedef std::map<std::shared_ptr<CUevent_st>, OpPtr> Records;

// The meaning of an event is fixed when the graph is launched: a wait is for the record before, never for one of the
// same launch. If a launch records an event several times, the last node counts. Called with the lock held.
GraphLaunch resolve(std::shared_ptr<const std::vector<Node>> nodes, Records* records, std::vector<OpPtr>* waits) {
  GraphLaunch launch{std::move(nodes), {}};
  launch.outside.resize(launch.nodes->size());
  for (std::size_t n = 0; n < launch.nodes->size(); ++n) {
    const Node& node = (*launch.nodes)[n];
    if (node.waits && node.waits->recorded && !node.waits->recorded->done) {
      launch.outside[n] = node.waits->recorded;
      waits->push_back(node.waits->recorded);
    }
    if (node.records) {
      launch.outside[n] = std::make_shared<Op>();
      (*records)[node.records] = launch.outside[n];
    }
  }
  return launch;
}

void run(const GraphLaunch& launch, std::size_t n) {
  const Node& node = (*launch.nodes)[n];
  if (node.work) node.work();
  if (node.waits && launch.outside[n]) await_lazily(launch.outside[n]);
  if (node.records) {
    std::lock_guard<std::mutex> lock(engine());
    complete(launch.outside[n]);
  }
}

// Runs each node after its predecessors; unordered nodes run in parallel, or in any order.
void run(const GraphLaunch& launch) {
  const std::vector<Node>& nodes = *launch.nodes;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<bool> begun(nodes.size(), false), done(nodes.size(), false);
  std::size_t begun_nodes = 0, finished = 0;
  std::mt19937_64 random(seed());
  std::unique_lock<std::mutex> lock(mutex);
  while (finished < nodes.size()) {
    std::vector<std::size_t> ready;
    for (std::size_t n = 0; n < nodes.size(); ++n) {
      const auto& after = nodes[n].after;
      const auto is_done = [&](int before) { return done[static_cast<std::size_t>(before)]; };
      if (!begun[n] && std::all_of(after.begin(), after.end(), is_done)) ready.push_back(n);
    }
    if (seed()) std::shuffle(ready.begin(), ready.end(), random);
    if (machine().serial_branches && finished < begun_nodes) ready.clear();
    if (machine().serial_branches && ready.size() > 1) ready.resize(1);
    for (const std::size_t n : ready) {
      begun[n] = true;
      ++begun_nodes;
      const std::uint64_t own_seed = random();
      run_in_thread([&, n, own_seed] {
        std::mt19937_64 own(own_seed);
        dawdle(own);
        run(launch, n);
        std::lock_guard<std::mutex> inner(mutex);
        done[n] = true;
        ++finished;
        changed.notify_all();
      });
    }
    changed.wait(lock);
  }
}

}  // namespace

CU_API cuStreamEndCapture(CUstream handle, CUgraph* out) {
  CU_ENTER(kDriver | kContext);
  const auto stream = stream_of(handle);
  if (!stream) return kInvalidHandle;
  if (!out) return kInvalidValue;
  *out = nullptr;
  auto graph = std::make_shared<CUgraph_st>();
  {
    std::lock_guard<std::mutex> lock(engine());
    const auto capture = stream->capture;
    if (!capture) return kIllegalState;
    if (capture->origin != stream.get()) return kCaptureUnmatched;
    if (capture->mode != kCaptureModeRelaxed && capture->thread != std::this_thread::get_id()) {
      return kCaptureWrongThread;
    }
    const bool invalid = capture->invalid, whole = joined(*capture, *stream);
    for (const auto& weak : capture->streams) {
      if (const auto one = weak.lock()) {
        one->capture = nullptr;
        one->heads.clear();
      }
    }
    capture->ended = true;
    if (invalid) return kCaptureInvalidated;
    if (!whole) return kCaptureUnjoined;
    graph->nodes = std::move(capture->nodes);
  }
  *out = handles<CUgraph_st>().add(graph);
  return kSuccess;
}

CU_API cuGraphInstantiateWithFlags(CUgraphExec* out, CUgraph handle, unsigned long long) {
  CU_ENTER(kDriver | kContext);
  const auto graph = handles<CUgraph_st>().find(handle);
  if (!out || !graph) return kInvalidValue;
  auto exec = std::make_shared<CUgraphExec_st>();
  exec->nodes = std::make_shared<const std::vector<Node>>(graph->nodes);
  *out = handles<CUgraphExec_st>().add(exec);
  return kSuccess;
}

CU_API cuGraphLaunch(CUgraphExec handle, CUstream stream) {
  CU_ENTER(kDriver | kContext);
  const auto exec = handles<CUgraphExec_st>().find(handle);
  if (!exec) return kInvalidValue;
  const auto into = stream_of(stream);
  if (!into) return kInvalidHandle;
  std::lock_guard<std::mutex> lock(engine());
  if (CUresult error = check_capture(*into)) return error;
  if (into->capture) return kNotSupported;  // graphs inside graphs are not implemented
  std::vector<OpPtr> after, waits;
  Records records;
  const auto launch = std::make_shared<const GraphLaunch>(resolve(exec->nodes, &records, &waits));
  if (exec->last) after.push_back(exec->last);
  exec->last = enqueue(*into, [launch] { run(*launch); }, std::move(after));
  exec->last->within = std::move(waits);
  for (const auto& record : records) {
    record.second->within = {exec->last};  // a wait for the record urges the graph
    record.first->recorded = record.second;
    record.first->capture = nullptr;
  }
  return kSuccess;
}

CU_API cuGraphExecDestroy(CUgraphExec handle) {
  CU_ENTER(kDriver);
  return handles<CUgraphExec_st>().remove(handle) ? kSuccess : kInvalidValue;
}

CU_API cuGraphDestroy(CUgraph handle) {
  CU_ENTER(kDriver);
  return handles<CUgraph_st>().remove(handle) ? kSuccess : kInvalidValue;
}
