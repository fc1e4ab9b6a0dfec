#include "group.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "journal.h"

namespace nccl_double {
namespace {

struct Group {
  int depth = 0;
  ncclResult_t error = ncclSuccess;
  std::vector<std::pair<std::shared_ptr<ncclComm>, Job>> jobs;
  std::vector<std::pair<std::shared_ptr<ncclComm>, std::vector<Task>>> tasks;
};

thread_local Group group;

ncclResult_t run_jobs(const std::vector<std::pair<std::shared_ptr<ncclComm>, Job>>& jobs) {
  std::vector<ncclResult_t> results(jobs.size(), ncclSuccess);
  std::vector<std::thread> threads;
  bool in_progress = false;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const std::shared_ptr<ncclComm> comm = jobs[i].first;
    const Job job = jobs[i].second;
    if (comm->blocking) {
      threads.emplace_back([&results, i, job] { results[i] = job(); });
      continue;
    }
    in_progress = true;
    comm->state = ncclInProgress;
    std::thread([comm, job] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      comm->state = job();
    }).detach();
  }
  for (std::thread& thread : threads) thread.join();
  for (const ncclResult_t result : results) {
    if (result != ncclSuccess) return result;
  }
  return in_progress ? ncclInProgress : ncclSuccess;
}

// Work of nonblocking communicators runs in a separate thread, after the return of the call.
ncclResult_t launch_or_defer(const std::shared_ptr<ncclComm>& comm, const std::vector<Task>& tasks) {
  return comm->blocking ? launch(comm, tasks) : run_jobs({{comm, [comm, tasks] { return launch(comm, tasks); }}});
}

}  // namespace

bool in_group() { return group.depth > 0; }

void fail_group(ncclResult_t error) {
  if (in_group() && group.error == ncclSuccess) group.error = error;
}

ncclResult_t add_job(const std::shared_ptr<ncclComm>& comm, Job job) {
  if (!in_group()) return run_jobs({{comm, std::move(job)}});
  group.jobs.emplace_back(comm, std::move(job));
  return ncclSuccess;
}

ncclResult_t add_task(const std::shared_ptr<ncclComm>& comm, const Task& task) {
  if (!in_group()) return launch_or_defer(comm, {task});
  const auto is_its = [&](const auto& one) { return one.first == comm; };
  const auto at = std::find_if(group.tasks.begin(), group.tasks.end(), is_its);
  if (at != group.tasks.end()) at->second.push_back(task);
  else group.tasks.push_back({comm, {task}});
  return ncclSuccess;
}

void start_group() { ++group.depth; }

ncclResult_t end_group() {
  if (group.depth == 0) return fail(ncclInvalidUsage, "ncclGroupEnd: not in a group call");
  if (--group.depth > 0) return ncclSuccess;
  const auto jobs = std::move(group.jobs);
  const auto tasks = std::move(group.tasks);
  const ncclResult_t refused = group.error;
  group = Group();
  if (refused != ncclSuccess) return refused;
  ncclResult_t result = run_jobs(jobs);
  if (result != ncclSuccess && result != ncclInProgress) return result;
  for (const auto& [comm, its] : tasks) {
    const ncclResult_t launched = launch_or_defer(comm, its);
    if (launched != ncclSuccess && launched != ncclInProgress) return launched;
    if (launched == ncclInProgress) result = launched;
  }
  return result;
}

}  // namespace nccl_double

using namespace nccl_double;

NCCL_API(ncclResult_t, ncclGroupStart, ()) {
  note(__func__);
  start_group();
  return ncclSuccess;
}

NCCL_API(ncclResult_t, ncclGroupEnd, ()) {
  note(__func__);
  return end_group();
}

NCCL_API(ncclResult_t, ncclGroupSimulateEnd, (void*)) {
  note(__func__);
  if (group.depth == 0) return fail(ncclInvalidUsage, "ncclGroupSimulateEnd: not in a group call");
  if (--group.depth > 0) return ncclSuccess;
  group = Group();  // drops all calls
  return ncclSuccess;
}
