// How do tests run copy engines? All ranks of a job in this process, or one of them, rank r on device r of the CUDA
// double, each in a thread of its own, with the engine of libblink.so below NCCL's calls.
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "bundle.h"
#include "engine.h"
#include "shared_page.h"

using namespace blink;
using namespace blink::shim;

namespace {

// A planted fault: one call of a kind, or all, is forgotten.
enum Kind { kNothing = 0, kWaitValue = 1, kWaitEvent = 2, kWriteValue = 3 };
std::atomic<int> planted_kind{kNothing}, planted_index{-1};
thread_local int calls_seen[4];
const Driver* real = nullptr;

bool forgotten(int kind) {
  const int index = calls_seen[kind]++;
  return planted_kind == kind && (planted_index < 0 || planted_index == index);
}

CUresult wait_value(CUstream stream, CUdeviceptr at, unsigned long long value, unsigned flags) {
  return forgotten(kWaitValue) ? kCudaSuccess : real->wait_value(stream, at, value, flags);
}
CUresult wait_event(CUstream stream, CUevent event, unsigned flags) {
  return forgotten(kWaitEvent) ? kCudaSuccess : real->stream_wait_event(stream, event, flags);
}
CUresult write_value(CUstream stream, CUdeviceptr at, unsigned long long value, unsigned flags) {
  return forgotten(kWriteValue) ? kCudaSuccess : real->write_value(stream, at, value, flags);
}

class Barrier {
 public:
  explicit Barrier(std::size_t all) : all_(all) {}
  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    const std::size_t round = round_;
    if (++here_ == all_) {
      here_ = 0;
      ++round_;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return round != round_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t all_, here_ = 0, round_ = 0;
};

struct Job {
  Driver driver;
  Bundle bundle;
  std::vector<std::unique_ptr<SharedPage>> pages;
  std::vector<std::unique_ptr<Engine>> engines;
  int first = 0;  // rank of the first engine
};

void say(const std::string& text, char* why, int bytes) {
  std::snprintf(why, static_cast<std::size_t>(bytes), "%s", text.c_str());
}

long journal_bytes() {
  const char* path = std::getenv("BLINK_DOUBLE_JOURNAL");
  struct stat about {};
  return path != nullptr && stat(path, &about) == 0 ? static_cast<long>(about.st_size) : 0;
}

void demand(CUresult result, const char* what) {
  if (result == kCudaSuccess) return;
  std::fprintf(stderr, "harness: %s gives %d\n", what, result);
  std::abort();
}

}  // namespace

extern "C" {

struct RankBuffers {
  char* input;
  std::uint64_t input_bytes;
  char* output;
  std::uint64_t output_bytes;
  std::uint64_t scale;
};

struct Launch {
  std::uint64_t count, chunk_bytes, timeout_ns;
  std::uint32_t dtype, op, average, scale_kind;
  std::int32_t absent;           // this rank does not come; −1: all do
  std::uint32_t abort_after_ms;  // 0: nobody gives up
  std::int64_t journal_from, journal_to;  // of the launches
  std::uint32_t code;            // out: why it ended early
  std::uint32_t connection;
};

// Opens ranks first … last; −1: all. `page`: its descriptor; −1: a new one. `addresses` gets theirs, a line each.
// `trouble`: 1: a driver without stream memory operations; 2: all ranks on one GPU.
void* job_open(const char* directory, int first, int page, int trouble, char* addresses, int addresses_bytes,
               char* why, int why_bytes) {
  std::string text;
  auto job = std::make_unique<Job>();
  real = driver(&text);
  if (real == nullptr || !read_bundle(directory, &job->bundle, &text)) return say(text, why, why_bytes), nullptr;
  job->driver = *real;
  job->driver.wait_value = trouble == 1 ? nullptr : wait_value;
  job->driver.stream_wait_event = wait_event;
  job->driver.write_value = write_value;
  const int n = job->bundle.nranks;
  job->first = std::max(first, 0);
  const int last = first < 0 ? n - 1 : first;
  const int created = page < 0 ? SharedPage::create(n, &text) : -1;
  if (page < 0) page = created;
  std::string all;
  for (int rank = job->first; rank <= last; ++rank) {
    job->pages.push_back(SharedPage::map(dup(page), n, rank, &text));
    const int device = trouble == 2 ? 0 : rank;
    job->engines.push_back(Engine::open(job->driver, job->bundle, rank, device, 1, job->pages.back().get(), &text));
    if (job->engines.back() == nullptr) return say(text, why, why_bytes), nullptr;
    all += job->engines.back()->address() + "\n";
  }
  if (created >= 0) close(created);
  say(all, addresses, addresses_bytes);
  return job.release();
}

// A page for ranks in several processes: its descriptor.
int job_page(int ranks) {
  std::string text;
  return SharedPage::create(ranks, &text);
}

// `addresses`: those of all ranks of the job.
int job_connect(void* handle, const char* addresses, char* why, int why_bytes) {
  std::istringstream stream(addresses);
  std::vector<std::string> list;
  for (std::string line; std::getline(stream, line);) list.push_back(line);
  for (const auto& engine : static_cast<Job*>(handle)->engines) {
    std::string text;
    if (!engine->connect(list, &text)) return say(text, why, why_bytes), 0;
  }
  return 1;
}

void job_close_peers(void* job) {
  for (const auto& engine : static_cast<Job*>(job)->engines) engine->close_peers();
}

void job_close(void* job) { delete static_cast<Job*>(job); }

void job_plant(int kind, int index) {
  planted_kind = kind;
  planted_index = index;
}

// 0: all came to an end within `patience_s`.
int job_run(void* handle, const RankBuffers* buffers, Launch* launch, double patience_s) {
  Job& job = *static_cast<Job*>(handle);
  const std::size_t n = job.engines.size();
  Barrier barrier(n + 1);
  std::atomic<int> late{0};
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank] {
      Engine& engine = *job.engines[rank];
      const Driver& cuda = job.driver;
      const RankBuffers& own = buffers[rank];
      InContext context(cuda, engine.context());
      CUstream stream = nullptr;
      demand(cuda.stream_create(&stream, kStreamNonBlocking), "cuStreamCreate");
      // In place both buffers are parts of one.
      char* const first[] = {own.input, own.output};
      const std::uint64_t bytes[] = {own.input_bytes, own.output_bytes};
      const bool overlap =
          bytes[0] > 0 && bytes[1] > 0 && first[0] < first[1] + bytes[1] && first[1] < first[0] + bytes[0];
      CUdeviceptr at[2] = {0, 0};
      char* low = std::min(first[0], first[1]);
      if (overlap) {
        const char* const high = std::max(first[0] + bytes[0], first[1] + bytes[1]);
        CUdeviceptr both = 0;
        demand(cuda.mem_alloc(&both, static_cast<std::size_t>(high - low)), "cuMemAlloc");
        for (int i = 0; i < 2; ++i) at[i] = both + static_cast<CUdeviceptr>(first[i] - low);
      } else {
        for (int i = 0; i < 2; ++i) {
          if (bytes[i] > 0) demand(cuda.mem_alloc(&at[i], bytes[i]), "cuMemAlloc");
        }
      }
      void* staging = nullptr;
      if (bytes[1] > 0) {
        staging = mmap(nullptr, bytes[1], PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        demand(cuda.host_register(staging, bytes[1], kHostRegisterPortable), "cuMemHostRegister");
      }
      std::memset(calls_seen, 0, sizeof calls_seen);
      barrier.wait();
      barrier.wait();
      // Work of the caller's own, before and after, in the stream that it gives.
      for (int i = 0; i < 2; ++i) {
        if (bytes[i] > 0) demand(cuda.copy_to_device(at[i], first[i], bytes[i], stream), "cuMemcpyHtoDAsync");
      }
      Call call = {};
      call.input = reinterpret_cast<const char*>(at[0]);
      call.output = reinterpret_cast<char*>(at[1]);
      call.count = launch->count;
      call.chunk_bytes = launch->chunk_bytes;
      call.timeout_ns = launch->timeout_ns;
      call.dtype = launch->dtype;
      call.op = launch->op;
      call.average = launch->average;
      call.scale_kind = launch->scale_kind;
      call.scale = own.scale;
      if (job.first + static_cast<std::int32_t>(rank) != launch->absent) {
        demand(engine.launch(0, Bundle::kCopies, call, stream, {}, nullptr, nullptr), "launch");
      }
      if (bytes[1] > 0) demand(cuda.copy_to_host(staging, at[1], bytes[1], stream), "cuMemcpyDtoHAsync");
      barrier.wait();
      barrier.wait();
      // Asking does not hurry the double, waiting would.
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(patience_s);
      while (cuda.stream_query(stream) == kCudaNotReady) {
        if (std::chrono::steady_clock::now() > deadline) {
          ++late;
          return;
        }
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
      if (bytes[1] > 0) {
        std::memcpy(own.output, staging, bytes[1]);
        demand(cuda.host_unregister(staging), "cuMemHostUnregister");
        munmap(staging, bytes[1]);
      }
      if (overlap) at[0] = std::min(at[0], at[1]);
      for (int i = 0; i < (overlap ? 1 : 2); ++i) {
        if (at[i] != 0) demand(cuda.mem_free(at[i]), "cuMemFree");
      }
      demand(cuda.stream_destroy(stream), "cuStreamDestroy");
    });
  }
  barrier.wait();
  launch->journal_from = journal_bytes();
  barrier.wait();
  barrier.wait();
  launch->journal_to = journal_bytes();
  barrier.wait();
  if (launch->abort_after_ms > 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(launch->abort_after_ms));
    __atomic_store_n(job.pages[0]->abort_word(), 1u, __ATOMIC_RELAXED);
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& engine : job.engines) {
    const Status status = engine->status();
    if (status.code > launch->code) {  // who ran out of time says more than who was told
      launch->code = status.code;
      launch->connection = status.connection;
    }
  }
  return late;
}

}  // extern "C"
