#include "job.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <thread>

namespace blink::mpi {
namespace {

constexpr std::chrono::seconds kPatience(2);  // for a rank that MPI_Init did not wait for
constexpr std::chrono::milliseconds kLook(1);

const char* first_of(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const char* const value = std::getenv(name);
    if (value != nullptr && *value != '\0') return value;
  }
  return nullptr;
}

// −1: unknown. As Open MPI, MPICH's and Intel MPI's Hydra, PMIx and Slurm say it.
int number_of(std::initializer_list<const char*> names) {
  const char* const text = first_of(names);
  return text == nullptr ? -1 : std::atoi(text);
}
int local_size() { return number_of({"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"}); }

// Tells jobs apart that one blink run starts, where the launcher gives them a name.
std::string job() {
  const char* const name =
      first_of({"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID", "SLURM_STEP_ID", "SLURM_JOB_ID"});
  std::string text = name == nullptr ? "job" : name;
  for (char& c : text) c = c <= ' ' ? '_' : c;
  return text + " " + std::to_string(world_size()) + " " + std::to_string(host_number());
}

std::set<int> ranks_in(const std::string& path) {
  std::set<int> found;
  const std::string ours = job() + " ";
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, ours.size(), ours) != 0) continue;
    std::istringstream rest(line.substr(ours.size()));
    int rank = -1;
    pid_t pid = 0;
    if (rest >> rank >> pid && pid > 0 && (kill(pid, 0) == 0 || errno == EPERM)) found.insert(rank);
  }
  return found;
}

}  // namespace

int world_rank() { return number_of({"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"}); }
int world_size() { return number_of({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"}); }

std::uint64_t host_number() {
  std::string text;
  if (const char* given = std::getenv("BLINK_HOSTID"); given != nullptr && *given != '\0') {
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
  const std::string line = job() + " " + std::to_string(world_rank()) + " " + std::to_string(getpid()) + "\n";
  const int file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) return;
  // One write to the end of a local file: lines do not mix. Where it fails this rank is not there for the others.
  const ssize_t written = write(file, line.data(), line.size());
  static_cast<void>(written);
  close(file);
}

bool are_here(const int* world_ranks, int count) {
  const char* const path = std::getenv("BLINK_MPI_RANKS");
  if (path == nullptr) return false;
  const bool on_several_hosts = local_size() >= 0 && local_size() < world_size();
  static std::atomic<bool> in_vain{false};  // whoever has not come until now is not like us
  const auto until = std::chrono::steady_clock::now() + kPatience;
  for (;;) {
    const std::set<int> found = ranks_in(path);
    bool all = true;
    for (int i = 0; i < count; ++i) all = all && found.count(world_ranks[i]) > 0;
    if (all || on_several_hosts || in_vain) return all;
    if (std::chrono::steady_clock::now() >= until) in_vain = true;
    std::this_thread::sleep_for(kLook);
  }
}

}  // namespace blink::mpi
