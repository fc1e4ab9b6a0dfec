#include "setup.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <vector>

#include "deadline.h"
#include "log.h"
#include "planner.h"

extern "C" const char* blink_shim_version();

namespace blink::shim {
namespace {

constexpr double kAfterPlanning = 20;  // the rounds outlive the planner, so that all ranks hear of its failure

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

// The setup from "all ranks are present" to "all can launch". A step that fails returns false and sets why_.
class Setup {
 public:
  Setup(Bootstrap* bootstrap, const Place& place, const std::atomic<bool>& cancelled, std::string* why)
      : bootstrap_(bootstrap), place_(place), planning_(seconds_from("BLINK_PLAN_TIMEOUT", 120), &cancelled),
        deadline_(planning_.moved_to(planning_.left() + kAfterPlanning)), why_(why), cuda_(driver(why)) {}

  std::unique_ptr<Resources> run();

 private:
  // Ends a step on all ranks: collects each rank's words, or its error, in words_.
  bool round(bool good, const std::string& mine, int* descriptor = nullptr) {
    return bootstrap_->all_gather(good, good ? mine : *why_, &words_, descriptor, place_.grace_s, deadline_, why_);
  }
  // The limit for work that a driver may never complete.
  Deadline trying() const {
    return deadline_.moved_to(std::min(seconds_from("BLINK_PEER_TIMEOUT", 30), deadline_.left()));
  }
  bool describe(std::string* info);
  bool plan(std::string* directory, int* page);
  bool load(const std::string& directory, int page, int sharing);
  bool connect();

  Bootstrap* const bootstrap_;
  const Place& place_;
  const Deadline planning_, deadline_;
  std::string* const why_;
  const Driver* const cuda_;
  std::vector<std::string> words_;
  std::unique_ptr<Resources> resources_;
};

// This rank's description: "UUID JSON", as blinkccl.nccl.peer_info reads it.
bool Setup::describe(std::string* text) {
  if (cuda_ == nullptr) return false;
  CUdevice device = 0;
  CUuuid uuid{};
  char name[256] = "";
  char bus_id[64] = "";
  int major = 0;
  int minor = 0;
  unsigned multiprocessors = 0;
  int version = 0;
  const bool described = cuda_->device_get(&device, place_.device) == kCudaSuccess &&
                    cuda_->device_uuid(&uuid, device) == kCudaSuccess &&
                    cuda_->device_name(name, sizeof name, device) == kCudaSuccess &&
                    cuda_->device_bus_id(bus_id, sizeof bus_id, device) == kCudaSuccess &&
                    cuda_->device_attribute(&major, kAttributeMajor, device) == kCudaSuccess &&
                    cuda_->device_attribute(&minor, kAttributeMinor, device) == kCudaSuccess &&
                    multiprocessors_here(*cuda_, device, &multiprocessors) == kCudaSuccess &&
                    cuda_->driver_version(&version) == kCudaSuccess;
  if (!described) {
    *why_ = "CUDA does not describe GPU " + std::to_string(place_.device);
    return false;
  }
  std::ostringstream info;
  const std::string gpu = hex(uuid.bytes, sizeof uuid.bytes);
  const int most_blocks = place_.wishes.most_blocks;
  info << gpu << " {\"rank\":" << place_.rank << ",\"boot_id\":" << quoted(boot_id())
       << ",\"pid\":" << getpid() << ",\"device\":" << place_.device << ",\"uuid\":" << quoted(gpu)
       << ",\"bus_id\":" << quoted(bus_id) << ",\"name\":" << quoted(name) << ",\"major\":" << major
       << ",\"minor\":" << minor << ",\"multiprocessors\":" << std::min(multiprocessors, place_.multiprocessors) << ",\"driver_version\":" << version
       << ",\"nccl_version\":" << place_.nccl_version << ",\"blink_version\":" << quoted(blink_shim_version())
       << ",\"arch\":" << quoted("sm_" + std::to_string(major) + std::to_string(minor))
       << ",\"settings\":{\"algo\":" << (place_.without_nccl ? quoted("best") : setting("BLINK_ALGO"))
       << ",\"protocol\":" << setting("BLINK_PROTOCOL") << ",\"deterministic\":" << setting("BLINK_DETERMINISTIC")
       << ",\"topo\":" << setting("BLINK_TOPO")
       << ",\"nccl_topo_file\":" << setting("NCCL_TOPO_FILE")
       << ",\"only_nccl\":" << quoted(place_.wishes.only_nccl)
       << ",\"most_blocks\":" << quoted(most_blocks == 0 ? "" : std::to_string(most_blocks)) << "}}";
  *text = info.str();
  return true;
}

// Rank 0: the plan's directory, and the shared page, followed by the host memory in which the plan stages messages.
bool Setup::plan(std::string* directory, int* page) {
  std::vector<std::string> json;
  for (const std::string& info : words_) json.push_back(info.substr(info.find(' ') + 1));
  Bundle bundle;
  if (!run_planner(json, planning_, directory, why_) || !read_bundle(*directory, &bundle, why_)) return false;
  *page = SharedPage::create(place_.nranks, bundle.memory_bytes(), why_);
  return *page >= 0;
}

// Reads the plan, loads its code and allocates. `sharing`: ranks on this GPU.
bool Setup::load(const std::string& directory, int page, int sharing) {
  resources_ = std::make_unique<Resources>();
  resources_->page = SharedPage::map(page, place_.nranks, place_.rank, why_);
  Bundle& bundle = resources_->bundle;
  if (resources_->page == nullptr || !read_bundle(directory, &bundle, why_)) return false;
  if (bundle.nranks != place_.nranks) {
    *why_ = "the plan is for " + std::to_string(bundle.nranks) + " ranks, but the communicator has " +
            std::to_string(place_.nranks);
    return false;
  }
  resources_->engine = Engine::open(*cuda_, bundle, place_.rank, place_.device, sharing, place_.multiprocessors,
                                    resources_->page, why_);
  return resources_->engine != nullptr;
}

// Each rank has sent its plan's hash, the blocks that fit, and its address.
bool Setup::connect() {
  Engine& engine = *resources_->engine;
  std::vector<std::string> addresses(words_.size());
  std::uint32_t blocks = engine.blocks();
  for (std::size_t rank = 0; rank < words_.size(); ++rank) {
    std::istringstream rest(words_[rank]);
    std::string other;
    std::uint32_t room = 0;
    rest >> other >> room >> std::ws;
    std::getline(rest, addresses[rank]);
    blocks = std::min(blocks, room);
    if (other == resources_->bundle.plan) continue;
    *why_ = "rank " + std::to_string(rank) + " has plan " + other + ", this rank " + resources_->bundle.plan;
    return false;
  }
  engine.use_blocks(blocks);
  return engine.connect(addresses, why_) && engine.write_probes(trying(), why_);
}

std::unique_ptr<Resources> Setup::run() {
  std::string mine;
  if (!round(describe(&mine), mine)) return nullptr;
  const auto gpu_of = [](const std::string& info) { return info.substr(0, info.find(' ')); };
  const std::string own_gpu = gpu_of(mine);
  const auto sharing = std::count_if(words_.begin(), words_.end(),
                                     [&](const std::string& info) { return gpu_of(info) == own_gpu; });
  int page = -1;
  const bool planned = place_.rank != 0 || plan(&mine, &page);
  if (!round(planned, mine, &page)) return nullptr;

  const bool loaded = load(words_[0], page, static_cast<int>(sharing));
  if (loaded) {
    const Engine& engine = *resources_->engine;
    mine = resources_->bundle.plan + " " + std::to_string(engine.blocks()) + " " + engine.address();
  }
  if (round(loaded, mine) && round(connect(), "") && round(resources_->engine->check_probes(trying(), why_), "")) {
    return std::move(resources_);
  }
  // Even if the last round failed here, a peer may have succeeded and mapped this rank's segment. So the resources are
  // released as after a run.
  if (resources_->page != nullptr) release_when_ended(std::move(resources_));
  return nullptr;
}

}  // namespace

std::unique_ptr<Resources> set_up(Bootstrap* bootstrap, const Place& place, const std::atomic<bool>& cancelled,
                                  std::string* why) {
  return Setup(bootstrap, place, cancelled, why).run();
}

}  // namespace blink::shim
