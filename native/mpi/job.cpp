#include "job.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <set>
#include <string>
#include <thread>

#include "deadline.h"
#include "environment.h"
#include "report.h"

namespace blink::mpi {
namespace {

constexpr std::chrono::seconds kPatience(2);  // for a rank that MPI_Init did not wait for
constexpr double kPatienceAmongHostsS = 70;  // longer than any network file system caches a listing
constexpr std::chrono::milliseconds kLook(1);

bool announced = false;

const char* first_of(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (const char* const value = variable(name); value != nullptr) return value;
  }
  return nullptr;
}

// Reads a number from the variables of Open MPI, of MPICH's and Intel MPI's Hydra, of PMIx or of Slurm. −1: unknown.
int number_of(std::initializer_list<const char*> names) {
  const char* const text = first_of(names);
  return text == nullptr ? -1 : std::atoi(text);
}
int local_size() { return number_of({"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"}); }

// The prefix of a job's files: one blink run may start several jobs, and launchers that name them keep them apart.
std::string job() {
  const char* const name =
      first_of({"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID", "SLURM_STEP_ID", "SLURM_JOB_ID"});
  std::string text = name == nullptr ? "job" : name;
  for (char& c : text) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return text + "." + std::to_string(world_size()) + ".";
}

bool all_hosts_count() { return first_of({"BLINK_MPI_SHARED_DIR"}) != nullptr; }

// The PID namespace's number; 0: unknown.
std::uint64_t processes() {
  struct stat present {};
  return stat("/proc/self/ns/pid", &present) == 0 ? static_cast<std::uint64_t>(present.st_ino) : 0;
}

// The ranks with a file. Its name is the job, then the rank's host, number, process and PID namespace.
std::set<int> ranks_in(const char* path) {
  std::set<int> present;
  const std::string ours = job();
  DIR* const directory = opendir(path);
  if (directory == nullptr) return present;
  while (const dirent* entry = readdir(directory)) {
    const std::string name = entry->d_name;
    if (name.compare(0, ours.size(), ours) != 0) continue;
    char* end = nullptr;
    const std::uint64_t host = std::strtoull(name.c_str() + ours.size(), &end, 10);
    const long rank = *end == '.' ? std::strtol(end + 1, &end, 10) : -1;
    const long pid = *end == '.' ? std::strtol(end + 1, &end, 10) : 0;
    const std::uint64_t numbered = *end == '.' ? std::strtoull(end + 1, &end, 10) : 0;
    if (rank < 0 || pid <= 0 || *end != '\0') continue;
    const bool on_this_host = host == host_number();
    // A process id of another container cannot be checked.
    const bool lives = numbered != processes() || kill(static_cast<pid_t>(pid), 0) == 0 || errno == EPERM;
    if (on_this_host ? lives : all_hosts_count()) present.insert(static_cast<int>(rank));
  }
  closedir(directory);
  return present;
}

[[noreturn]] void end_for_lack_of(int rank) {
  say("blink: --shared-dir requires that all ranks run under this blink run, but rank " + std::to_string(rank) +
      " is not in " + std::getenv("BLINK_MPI_RANKS") + ": make the launcher pass LD_PRELOAD and BLINK_… to all hosts, "
      "and mount that directory on all of them\n");
  std::abort();
}

}  // namespace

int world_rank() { return number_of({"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"}); }
int world_size() { return number_of({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"}); }

std::uint64_t host_number() {
  std::string text;
  if (const char* given = variable("BLINK_HOSTID"); given != nullptr) {
    text = given;
  } else {
    std::ifstream("/proc/sys/kernel/random/boot_id") >> text;
    struct stat net {};
    if (stat("/proc/self/ns/net", &net) == 0) text += " " + std::to_string(net.st_ino);
  }
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

void announce() {
  const char* const path = std::getenv("BLINK_MPI_RANKS");
  if (path == nullptr || world_rank() < 0) return;
  const std::string name = std::string(path) + "/" + job() + std::to_string(host_number()) + "." +
                           std::to_string(world_rank()) + "." + std::to_string(getpid()) + "." +
                           std::to_string(processes());
  const int file = open(name.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) return;  // the others will miss this rank
  close(file);
  announced = true;
}

bool are_here(const int* world_ranks, int count) {
  const char* const path = std::getenv("BLINK_MPI_RANKS");
  if (path == nullptr || !announced) return false;  // without it, the others do not count either
  const bool others_count = all_hosts_count();
  const bool on_several_hosts = local_size() >= 0 && local_size() < world_size();
  const std::chrono::duration<double> patience(seconds_from("BLINK_MPI_PATIENCE", kPatienceAmongHostsS));
  static std::atomic<bool> in_vain{false};  // a rank that is still missing runs without Blink
  const auto begun = std::chrono::steady_clock::now();
  for (;;) {
    const std::set<int> present = ranks_in(path);
    const auto absent = [&](int r) { return present.count(r) == 0; };
    const int* const missing = std::find_if(world_ranks, world_ranks + count, absent);
    if (missing == world_ranks + count) return true;
    const auto waited = std::chrono::steady_clock::now() - begun;
    if (others_count && waited >= patience) end_for_lack_of(*missing);
    if (!others_count && (on_several_hosts || in_vain)) return false;
    if (!others_count && waited >= kPatience) in_vain = true;
    std::this_thread::sleep_for(kLook);
  }
}

}  // namespace blink::mpi
