// The simulator's kernel: for links in turn the steps of tests/support/reference_kernel.py, with the same bits. The
// decisions are explained there; the comments here cover the differences and fair sharing.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <new>
#include <queue>
#include <vector>

#include "blink/simulate.h"

namespace {

using Id = std::int32_t;

enum class Kind : std::uint8_t { start, fired, move, landed, arrived };
enum class Stage : std::uint8_t { outside, receiving, executing, sending, done };

struct Event {
  double at_s;
  std::int64_t number;
  Kind kind;
  Id what;
};

struct Later {
  bool operator()(const Event& a, const Event& b) const {
    return a.at_s > b.at_s || (a.at_s == b.at_s && a.number > b.number);
  }
};

// Rows of a table in compressed form.
struct Rows {
  const std::int32_t *starts, *values;
  const std::int32_t* begin(Id row) const { return values + starts[row]; }
  const std::int32_t* end(Id row) const { return values + starts[row + 1]; }
  Id size(Id row) const { return starts[row + 1] - starts[row]; }
  Id at(Id row, Id place) const { return values[starts[row] + place]; }
};

struct Task {
  Id hop, actor, chunk;
};

// A FIFO queue in one block of memory that is reused.
class Line {
 public:
  bool empty() const { return first_ == items_.size(); }
  void push(Id item) { items_.push_back(item); }
  Id pop() {
    const Id item = items_[first_++];
    if (first_ == items_.size()) {
      items_.clear();
      first_ = 0;
    }
    return item;
  }

 private:
  std::vector<Id> items_;
  std::size_t first_ = 0;
};

struct ActorState {
  Id chunk = 0, step = 0;
  Stage stage = Stage::outside;
  double done_s = 0.0;
};

struct HopState {
  Id arrived = 0, taken = 0, appended = 0, freed = 0;
  bool is_read = false; // another hop frees its slots
};

struct StreamState {
  Line waiting;
  bool busy = false;
};

struct PoolState {
  Line asking;
  Id free = 0;
};

template <class Links>
class Run {
 public:
  Run(const blink_workload& workload, const blink_trace* trace)
      : w(workload),
        trace_(trace),
        receives_{w.receives_of, w.receives},
        sends_{w.sends_of, w.sends},
        path{w.path_of, w.path},
        actors_(w.actors),
        hops_(w.hops),
        streams_(w.streams),
        pools_(w.pools),
        links_(*this) {
    for (Id pool = 0; pool < w.pools; ++pool) pools_[pool].free = w.engines[pool];
    for (Id hop = 0; hop < w.hops; ++hop) {
      if (w.frees[hop] >= 0) hops_[w.frees[hop]].is_read = true;
    }
    for (Id actor = 0; actor < w.actors; ++actor) {
      if (w.chunks[actor] == 0) {
        actors_[actor].stage = Stage::done;
      } else {
        schedule(w.start_s[actor], Kind::start, actor);
      }
    }
  }

  void loop() {
    for (;;) {
      if (links_.stale() && (events_.empty() || events_.top().at_s > now)) links_.share();
      if (events_.empty()) break;
      const Event event = events_.top();
      events_.pop();
      if (event.kind == Kind::landed && links_.overtaken(event.what, event.number)) continue;
      now = event.at_s;
      ++taken_up_;
      switch (event.kind) {
        case Kind::start:
          current_ = -1;
          actors_[event.what].stage = Stage::receiving;
          advance(event.what);
          break;
        case Kind::move: links_.begin(event.what); break;
        case Kind::arrived: {
          current_ = event.what;
          const Id hop = tasks_[event.what].hop;
          ++hops_[hop].arrived;
          advance(w.head[hop]);
          break;
        }
        case Kind::fired: fired(event.what); break;
        case Kind::landed: land(event.what); break;
      }
      while (!ready_.empty()) advance(ready_.pop());
    }
  }

  int outcome(blink_outcome& out) const {
    out.stuck = -1;
    out.seconds = last_end_s_;
    for (Id actor = 0; actor < w.actors; ++actor) {
      out.actor_s[actor] = actors_[actor].done_s;
      out.seconds = std::max(out.seconds, actors_[actor].done_s);
      if (actors_[actor].stage != Stage::done && out.stuck < 0) {
        out.stuck = actor;
        out.stuck_chunk = actors_[actor].chunk;
      }
    }
    if (out.stuck >= 0) out.seconds = now;
    out.transfers = landed_;
    out.executions = fired_;
    out.events = taken_up_;
    return out.stuck < 0 ? 0 : 1;
  }

  // The interface for the links.
  void schedule(double at_s, Kind kind, Id what) { events_.push({at_s, scheduled++, kind, what}); }
  double bytes_of(Id task) const {
    const Task& t = tasks_[task];
    return t.chunk == w.chunks[t.actor] - 1 ? w.last_bytes[t.actor] : w.bytes[t.actor];
  }
  Id hop_of(Id task) const { return tasks_[task].hop; }
  void moves_at(Id task, double at_s) {
    if (trace_) trace_->move_s[task] = at_s;
  }
  void held_by(Id task, Id holder, double held_s) {
    if (!trace_) return;
    trace_->holder[task] = holder;
    trace_->held_s[task] = held_s;
  }

  const blink_workload& w;

 private:
  const blink_trace* trace_;
  const Rows receives_, sends_;

 public:
  const Rows path;
  double now = 0.0;
  std::int64_t scheduled = 0;

 private:
  void fired(Id task) {
    current_ = task;
    ++fired_;
    ends(task);
    const Id actor = tasks_[task].actor;
    actors_[actor].stage = Stage::sending;
    release(w.actor_stream[actor]);
    advance(actor);
  }

  void land(Id task) {
    current_ = task;
    ++landed_;
    ends(task);
    const Id hop = tasks_[task].hop;
    links_.end(task);
    const Id pool = w.pool[hop];
    if (pool >= 0) {
      if (pools_[pool].asking.empty()) {
        ++pools_[pool].free;
      } else {
        transfer(pools_[pool].asking.pop());
      }
    }
    release(w.hop_stream[hop]);
    if (w.frees[hop] >= 0) free_slot(w.frees[hop]);
    if (w.signal_s[hop] > 0.0) {
      schedule(now + w.signal_s[hop], Kind::arrived, task);
    } else {
      ++hops_[hop].arrived;
      advance(w.head[hop]);
    }
  }

  void ends(Id task) {
    last_end_s_ = std::max(last_end_s_, now);
    if (trace_) trace_->end_s[task] = now;
  }

  void advance(Id actor) {
    ActorState& state = actors_[actor];
    for (;;) {
      if (state.stage == Stage::receiving) {
        const Id count = receives_.size(actor);
        while (state.step < count) {
          const Id hop = receives_.at(actor, state.step);
          if (hops_[hop].taken == hops_[hop].arrived) return;
          ++hops_[hop].taken;
          ++state.step;
          if (!hops_[hop].is_read) free_slot(hop);
        }
        state.step = 0;
        const Id stream = w.actor_stream[actor];
        if (stream >= 0) {
          state.stage = Stage::executing;
          append(stream, -1, actor);
          return;
        }
        state.stage = Stage::sending;
      } else if (state.stage == Stage::sending) {
        const Id count = sends_.size(actor);
        while (state.step < count) {
          const Id hop = sends_.at(actor, state.step);
          if (hops_[hop].appended - hops_[hop].freed >= w.slots[hop]) return;
          ++hops_[hop].appended;
          ++state.step;
          append(w.hop_stream[hop], hop, actor);
        }
        state.step = 0;
        if (++state.chunk == w.chunks[actor]) {
          state.stage = Stage::done;
          state.done_s = now;
          return;
        }
        state.stage = Stage::receiving;
      } else {
        return;
      }
    }
  }

  void free_slot(Id hop) {
    ++hops_[hop].freed;
    const Id tail = w.tail[hop];
    const ActorState& state = actors_[tail];
    if (state.stage == Stage::sending && sends_.at(tail, state.step) == hop) ready_.push(tail);
  }

  void append(Id stream, Id hop, Id actor) {
    if (tasks_.size() == static_cast<std::size_t>(std::numeric_limits<Id>::max())) throw std::bad_alloc();
    const auto task = static_cast<Id>(tasks_.size());
    tasks_.push_back({hop, actor, actors_[actor].chunk});
    if (trace_) {
      trace_->hop[task] = hop;
      trace_->actor[task] = actor;
      trace_->chunk[task] = actors_[actor].chunk;
      trace_->begin_s[task] = trace_->move_s[task] = trace_->end_s[task] = trace_->held_s[task] = 0.0;
      trace_->cause[task] = trace_->holder[task] = -1;
    }
    if (streams_[stream].busy) {
      streams_[stream].waiting.push(task);
    } else {
      streams_[stream].busy = true;
      take_up(task);
    }
  }

  void release(Id stream) {
    if (streams_[stream].waiting.empty()) {
      streams_[stream].busy = false;
    } else {
      take_up(streams_[stream].waiting.pop());
    }
  }

  void begins(Id task) {
    if (!trace_) return;
    trace_->begin_s[task] = now;
    trace_->cause[task] = current_;
  }

  void take_up(Id task) {
    const Task& t = tasks_[task];
    if (t.hop < 0) {
      begins(task);
      moves_at(task, now);
      const double cost_s = w.launch_s[t.actor] + bytes_of(task) * w.pace_s_per_byte[t.actor];
      schedule(now + cost_s, Kind::fired, task);
      return;
    }
    const Id pool = w.pool[t.hop];
    if (pool >= 0) {
      if (pools_[pool].free == 0) {
        pools_[pool].asking.push(task);
        return;
      }
      --pools_[pool].free;
    }
    transfer(task);
  }

  void transfer(Id task) {
    begins(task);
    links_.ask(task, now + w.latency_s[tasks_[task].hop]);
  }

  std::vector<ActorState> actors_;
  std::vector<HopState> hops_;
  std::vector<StreamState> streams_;
  std::vector<PoolState> pools_;
  std::vector<Task> tasks_;
  std::priority_queue<Event, std::vector<Event>, Later> events_;
  Line ready_;
  Id current_ = -1;
  std::int64_t landed_ = 0, fired_ = 0, taken_up_ = 0;
  double last_end_s_ = 0.0;
  Links links_;
};

class Fifo {
 public:
  explicit Fifo(Run<Fifo>& run)
      : run_(run), free_s_(run.w.links, 0.0), last_(run.w.links, -1), ways_(run.w.hops) {}

  bool stale() const { return false; }
  void share() {}
  void end(Id) {}
  bool overtaken(Id, std::int64_t) const { return false; }

  void ask(Id task, double ready_s) {
    const Id hop = run_.hop_of(task);
    ways_[hop] = Way{0, ready_s, 0.0, -1};
    if (run_.path.size(hop) > 0) {
      take(task, ready_s);
    } else {
      run_.moves_at(task, ready_s);
      run_.schedule(ready_s, Kind::landed, task);
    }
  }

  void begin(Id task) { take(task, run_.now); }

 private:
  struct Way {
    Id place = 0;
    double end_s = 0.0, wait_s = 0.0;
    Id waited_for = -1;
  };

  void take(Id task, double at_s) {
    const Id hop = run_.hop_of(task);
    Way& way = ways_[hop];
    const Id link = run_.path.at(hop, way.place);
    double start = at_s;
    if (free_s_[link] > start) {
      start = free_s_[link];
      way.wait_s = start;
      way.waited_for = last_[link];
    }
    if (way.place == 0) run_.moves_at(task, start);
    const double until = start + run_.bytes_of(task) / run_.w.rates[link];
    free_s_[link] = until;
    last_[link] = task;
    if (until > way.end_s) {
      way.end_s = until;
      run_.held_by(task, way.waited_for, way.wait_s);
    }
    if (++way.place == run_.path.size(hop)) {
      run_.schedule(way.end_s, Kind::landed, task);
    } else {
      run_.schedule(start, Kind::move, task);
    }
  }

  Run<Fifo>& run_;
  std::vector<double> free_s_;
  std::vector<Id> last_;
  std::vector<Way> ways_;  // by hop, because a stream has one transfer at a time
};

class Fair {
 public:
  explicit Fair(Run<Fair>& run)
      : run_(run),
        moving_(run.w.links),
        marked_(run.w.links, false),
        left_(run.w.links),
        load_(run.w.links),
        open_(run.w.links) {}

  // True if transfers began or ended since the last sharing; share() is called before time advances.
  bool stale() const { return !dirty_.empty(); }
  bool overtaken(Id task, std::int64_t number) const { return flow_of_[task] < 0 || flow(task).number != number; }
  void ask(Id task, double ready_s) { run_.schedule(ready_s, Kind::move, task); }

  void begin(Id task) {
    run_.moves_at(task, run_.now);
    const double size = run_.bytes_of(task);
    const Id hop = run_.hop_of(task);
    if (static_cast<std::size_t>(task) >= flow_of_.size()) flow_of_.resize(task + 1, -1);
    flow_of_[task] = open_flow();
    Flow& f = flow(task);
    f = Flow{};
    if (run_.path.size(hop) == 0 || size == 0.0) {
      f.number = run_.scheduled;
      run_.schedule(run_.now, Kind::landed, task);
      return;
    }
    f.left = size;
    f.since = run_.now;
    f.moves = true;
    for (const auto *link = run_.path.begin(hop), *stop = run_.path.end(hop); link != stop; ++link) {
      moving_[*link].push_back(task);
      touch(*link);
    }
  }

  void end(Id task) {
    const bool moved = flow(task).moves;
    free_.push_back(flow_of_[task]);
    flow_of_[task] = -1;
    if (!moved) return;
    const Id hop = run_.hop_of(task);
    for (const auto *link = run_.path.begin(hop), *stop = run_.path.end(hop); link != stop; ++link) {
      auto& here = moving_[*link];
      here.erase(std::find(here.begin(), here.end(), task));
      touch(*link);
    }
  }

  // New speeds for all transfers on links that transfers connect to the changed links.
  void share() {
    joined();
    fill();
    for (const Id task : tasks_) {
      Flow& f = flow(task);
      if (f.next == f.speed) continue;
      const double left = f.left - f.speed * (run_.now - f.since);
      f.left = left > 0.0 ? left : 0.0;
      f.speed = f.next;
      f.since = run_.now;
      f.number = run_.scheduled;
      run_.schedule(run_.now + f.left / f.speed, Kind::landed, task);
    }
  }

 private:
  struct Flow {
    double left = 0.0, speed = 0.0, since = 0.0, next = 0.0;
    std::int64_t number = -1;  // of the event for its end;
    std::int64_t round = -1;   // of its last visit
    bool moves = false, set = false;
  };

  Flow& flow(Id task) { return flows_[flow_of_[task]]; }
  const Flow& flow(Id task) const { return flows_[flow_of_[task]]; }

  Id open_flow() {
    if (free_.empty()) {
      flows_.emplace_back();
      return static_cast<Id>(flows_.size() - 1);
    }
    const Id place = free_.back();
    free_.pop_back();
    return place;
  }

  void touch(Id link) {
    if (marked_[link]) return;
    marked_[link] = true;
    dirty_.push_back(link);
  }

  // The dirty links with all links connected to them by transfers (links_), and these transfers (tasks_).
  void joined() {
    ++round_;
    links_.swap(dirty_);
    dirty_.clear();
    tasks_.clear();
    for (std::size_t i = 0; i < links_.size(); ++i) {
      for (const Id task : moving_[links_[i]]) {
        Flow& f = flow(task);
        if (f.round == round_) continue;
        f.round = round_;
        f.set = false;
        tasks_.push_back(task);
        const Id hop = run_.hop_of(task);
        for (const auto *link = run_.path.begin(hop), *stop = run_.path.end(hop); link != stop; ++link) {
          if (marked_[*link]) continue;
          marked_[*link] = true;
          links_.push_back(*link);
        }
      }
    }
    for (const Id link : links_) marked_[link] = false;
  }

  // Progressive filling: the link with the least rate per weight sets the speed of its transfers, and so on.
  void fill() {
    for (const Id link : links_) {
      left_[link] = run_.w.rates[link];
      load_[link] = 0.0;
      open_[link] = static_cast<Id>(moving_[link].size());
    }
    for (const Id task : tasks_) {
      const Id hop = run_.hop_of(task);
      for (const auto *link = run_.path.begin(hop), *stop = run_.path.end(hop); link != stop; ++link) {
        load_[*link] += run_.w.weight[hop];
      }
    }
    double level = 0.0;  // never decreases from round to round, except by rounding
    for (std::size_t done = 0; done < tasks_.size();) {
      Id tightest = -1;
      double least = 0.0;
      for (const Id link : links_) {
        if (open_[link] == 0) continue;
        const double per_weight = left_[link] / load_[link];
        if (tightest < 0 || per_weight < least) {
          tightest = link;
          least = per_weight;
        }
      }
      level = std::max(level, least);
      for (const Id task : moving_[tightest]) {
        Flow& f = flow(task);
        if (f.set) continue;
        f.set = true;
        ++done;
        const Id hop = run_.hop_of(task);
        f.next = level * run_.w.weight[hop];
        for (const auto *link = run_.path.begin(hop), *stop = run_.path.end(hop); link != stop; ++link) {
          --open_[*link];
          left_[*link] = left_[*link] > f.next ? left_[*link] - f.next : 0.0;
          load_[*link] -= run_.w.weight[hop];
        }
      }
    }
  }

  Run<Fair>& run_;
  std::vector<std::vector<Id>> moving_;
  std::vector<bool> marked_;
  std::vector<double> left_, load_;
  std::vector<Id> open_;
  std::vector<Flow> flows_;
  std::vector<Id> flow_of_;  // by task, -1 if it is not moving
  std::vector<Id> free_;
  std::vector<Id> dirty_, links_, tasks_;
  std::int64_t round_ = 0;
};

template <class Links>
int simulate(const blink_workload& workload, blink_outcome& outcome, const blink_trace* trace) {
  Run<Links> run(workload, trace);
  run.loop();
  return run.outcome(outcome);
}

}  // namespace

extern "C" uint32_t blink_simulate_abi(void) { return BLINK_ABI; }

extern "C" int blink_simulate(const blink_workload* workload, int fair, blink_outcome* outcome,
                              const blink_trace* trace) {
  try {
    return fair ? simulate<Fair>(*workload, *outcome, trace) : simulate<Fifo>(*workload, *outcome, trace);
  } catch (const std::bad_alloc&) {
    return 2;
  }
}
