#include "setup.h"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <sstream>
#include <vector>

#include "deadline.h"
#include "log.h"
#include "planner.h"

extern "C" const char* blink_shim_version();

namespace blink::shim {
namespace {

// Messages begin with one of these words.
const char kInfo[] = "info ";
const char kReady[] = "ready ";
const char kRefused[] = "refused ";

bool starts_with(const std::string& text, const char* word) { return text.compare(0, std::strlen(word), word) == 0; }

std::string setting(const char* variable) {
  const char* value = std::getenv(variable);
  return quoted(value == nullptr ? "" : value);
}

std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

// What this rank tells of itself: "info UUID JSON", as blinkccl.nccl.peer_info reads it, or "refused WHY".
std::string describe_rank(const Driver* cuda, const Place& place, const std::string& trouble) {
  if (cuda == nullptr) return kRefused + trouble;
  CUdevice device = 0;
  CUuuid uuid{};
  char name[256] = "";
  char bus_id[64] = "";
  int major = 0;
  int minor = 0;
  int multiprocessors = 0;
  int version = 0;
  const bool told = cuda->device_get(&device, place.device) == kCudaSuccess &&
                    cuda->device_uuid(&uuid, device) == kCudaSuccess &&
                    cuda->device_name(name, sizeof name, device) == kCudaSuccess &&
                    cuda->device_bus_id(bus_id, sizeof bus_id, device) == kCudaSuccess &&
                    cuda->device_attribute(&major, kAttributeMajor, device) == kCudaSuccess &&
                    cuda->device_attribute(&minor, kAttributeMinor, device) == kCudaSuccess &&
                    cuda->device_attribute(&multiprocessors, kAttributeMultiprocessors, device) == kCudaSuccess &&
                    cuda->driver_version(&version) == kCudaSuccess;
  if (!told) return kRefused + std::string("CUDA does not describe GPU ") + std::to_string(place.device);
  std::ostringstream info;
  const std::string gpu = hex(uuid.bytes, sizeof uuid.bytes);
  info << kInfo << gpu << " {\"rank\":" << place.rank << ",\"boot_id\":" << quoted(boot_id())
       << ",\"pid\":" << getpid() << ",\"device\":" << place.device << ",\"uuid\":" << quoted(gpu)
       << ",\"bus_id\":" << quoted(bus_id) << ",\"name\":" << quoted(name) << ",\"major\":" << major
       << ",\"minor\":" << minor << ",\"multiprocessors\":" << multiprocessors << ",\"driver_version\":" << version
       << ",\"nccl_version\":" << place.nccl_version << ",\"blink_version\":" << quoted(blink_shim_version())
       << ",\"arch\":" << quoted("sm_" + std::to_string(major) + std::to_string(minor))
       << ",\"settings\":{\"algo\":"
       << (place.algorithm.empty() ? setting("BLINK_ALGO") : quoted(place.algorithm))
       << ",\"protocol\":" << setting("BLINK_PROTOCOL") << ",\"topo\":" << setting("BLINK_TOPO")
       << ",\"nccl_topo_file\":" << setting("NCCL_TOPO_FILE")
       << ",\"only_nccl\":" << quoted(place.wishes.only_nccl)
       << ",\"most_blocks\":" << quoted(place.wishes.most_blocks == 0 ? "" : std::to_string(place.wishes.most_blocks)) << "}}";
  return info.str();
}

std::string uuid_of(const std::string& info) {
  const std::size_t begin = std::strlen(kInfo);
  return info.substr(begin, info.find(' ', begin) - begin);
}

std::string json_of(const std::string& info) { return info.substr(info.find(' ', std::strlen(kInfo)) + 1); }

// One round: everybody's words; false where there is a refusal.
typedef std::function<bool(const std::string& mine, std::vector<std::string>* all)> Round;

// Rank 0's word on where the plan is.
std::string planned(const std::vector<std::string>& infos, const Deadline& deadline) {
  std::vector<std::string> json;
  for (const std::string& info : infos) json.push_back(json_of(info));
  std::string directory;
  std::string why;
  return run_planner(json, deadline, &directory, &why) ? kReady + directory : kRefused + why;
}

// What the plan that rank 0 has found wants for messages that are staged; what is wrong with it load() says.
std::uint64_t staging_of(const std::string& planned) {
  Bundle bundle;
  std::string why;
  const bool ready = starts_with(planned, kReady) && read_bundle(planned.substr(std::strlen(kReady)), &bundle, &why);
  return ready ? bundle.memory_bytes() : 0;
}

int ranks_on_gpu_of(int rank, const std::vector<std::string>& infos) {
  const std::string here = uuid_of(infos[static_cast<std::size_t>(rank)]);
  return static_cast<int>(
      std::count_if(infos.begin(), infos.end(), [&here](const std::string& info) { return uuid_of(info) == here; }));
}

// Reads the plan, loads its code and allocates; what this rank then tells the others: the plan's hash, its parts and
// its address.
std::string load(const Driver& cuda, const Place& place, int sharing, const std::string& directory, Resources* resources) {
  std::string trouble;
  if (!read_bundle(directory, &resources->bundle, &trouble)) return kRefused + trouble;
  if (resources->bundle.nranks != place.nranks) {
    return kRefused + std::string("the plan is for ") + std::to_string(resources->bundle.nranks) +
           " ranks, the communicator has " + std::to_string(place.nranks);
  }
  resources->engine = Engine::open(cuda, resources->bundle, place.rank, place.device, sharing, resources->page, &trouble);
  if (resources->engine == nullptr) return kRefused + trouble;
  return kReady + resources->bundle.plan + " " + std::to_string(resources->engine->parts()) + " " + resources->engine->address();
}

// What each rank has told after load(): the addresses, and the least number of parts. False where a plan's hash is not
// this rank's.
bool addresses_of(const std::vector<std::string>& words, const std::string& plan, std::vector<std::string>* addresses,
                  std::uint32_t* parts, std::string* why) {
  for (std::size_t rank = 0; rank < words.size(); ++rank) {
    std::istringstream rest(words[rank].substr(std::strlen(kReady)));
    std::string other, address;
    std::uint32_t room = 0;
    rest >> other >> room >> std::ws;
    if (other != plan) {
      *why = "rank " + std::to_string(rank) + " has plan " + other + ", this rank " + plan;
      return false;
    }
    *parts = std::min(*parts, room);
    std::getline(rest, address);
    addresses->push_back(address);
  }
  return true;
}

// The rounds after the plan is known.
bool connect_all(const Driver& cuda, const Place& place, int sharing, const std::string& directory, const Round& round,
                 const Deadline& deadline, Resources* resources, std::string* why) {
  std::vector<std::string> words;
  std::vector<std::string> addresses;
  if (!round(load(cuda, place, sharing, directory, resources), &words)) return false;
  // For what a driver may never end.
  const auto trying = [&deadline] {
    return deadline.moved_to(std::min(seconds_from("BLINK_PEER_TIMEOUT", 30), deadline.left()));
  };
  std::uint32_t parts = resources->engine->parts();
  const bool agreed = addresses_of(words, resources->bundle.plan, &addresses, &parts, why);
  if (agreed) resources->engine->use_parts(parts);
  const bool written = agreed && resources->engine->connect(addresses, why) && resources->engine->write_probes(trying(), why);
  if (!round(written ? kReady : kRefused + *why, &words)) return false;
  const bool arrived = resources->engine->check_probes(trying(), why);
  return round(arrived ? kReady : kRefused + *why, &words);
}

}  // namespace

std::unique_ptr<Resources> set_up(Bootstrap* bootstrap, const Place& place,
                                  const std::atomic<bool>& cancelled, std::string* why) {
  const double planning_s = seconds_from("BLINK_PLAN_TIMEOUT", 120);
  const Deadline planning(planning_s, &cancelled);
  // The rounds outlive the planner, so that its failure is told to all.
  const Deadline deadline(planning_s + 20, &cancelled);
  const Round round = [&](const std::string& mine, std::vector<std::string>* all) {
    if (!bootstrap->all_gather(mine, all, place.grace_s, deadline, why)) return false;
    for (std::size_t rank = 0; rank < all->size(); ++rank) {
      if (!starts_with((*all)[rank], kRefused)) continue;
      *why = "rank " + std::to_string(rank) + ": " + (*all)[rank].substr(std::strlen(kRefused));
      return false;
    }
    return true;
  };

  std::string trouble;
  const Driver* cuda = driver(&trouble);
  std::vector<std::string> infos;
  if (!round(describe_rank(cuda, place, trouble), &infos)) return nullptr;

  const std::string plan = place.rank == 0 ? planned(infos, planning) : kReady;
  const int page_here = place.rank == 0 ? SharedPage::create(place.nranks, staging_of(plan), &trouble) : -1;
  const int descriptor = bootstrap->share_descriptor(page_here, deadline, why);
  if (page_here >= 0) close(page_here);
  if (descriptor < 0) return nullptr;
  auto resources = std::make_unique<Resources>();
  resources->page = SharedPage::map(descriptor, place.nranks, place.rank, &trouble);

  std::vector<std::string> words;
  if (round(resources->page ? plan : kRefused + trouble, &words) &&
      connect_all(*cuda, place, ranks_on_gpu_of(place.rank, infos), words[0].substr(std::strlen(kReady)), round,
                  deadline, resources.get(), why)) {
    return resources;
  }
  // Whatever this rank knows of the last round, a peer may have gone on and have its segment mapped: that is given back
  // as if the communicator had run.
  if (resources->page != nullptr) release_when_ended(std::move(resources));
  return nullptr;
}

}  // namespace blink::shim
