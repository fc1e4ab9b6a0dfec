// Integral packing of arborescences, group by group and arc by arc; blinkccl/trees/packing/integral.py has the idea.
//
// Without `few`, the first group grows by the arc with the largest share of it among those nearest its root, so that
// trees stay shallow; an arc that takes the whole group is enough. With `few`, the largest group grows by the arc with
// the largest share, at any depth.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "blink/packing.h"
#include "kept_flows.h"

namespace {

using Vertex = std::int32_t;
using Arc = std::int32_t;
using Seconds = std::chrono::duration<double>;

template <class Units>
struct Group {
  Vertex root;
  Units multiplicity;
  std::int32_t number;          // in the flows;
  std::vector<Vertex> depth;    // by vertex, -1 if not reached;
  std::vector<Vertex> reached;  // by depth, then by number
  std::vector<Arc> arcs;
};

}  // namespace

struct blink_packer {
  virtual ~blink_packer() = default;
  virtual int run(double seconds) = 0;
  virtual std::int64_t trees() const = 0;
  virtual void read(std::int32_t* root, blink_units* multiplicity, std::int32_t* ends) const = 0;
};

namespace {

template <class Units>
class Packer final : public blink_packer {
 public:
  Packer(const blink_arcs& arcs, const blink_units* demand, bool few)
      : n_(static_cast<Vertex>(arcs.vertices)),
        few_(few),
        tail_(arcs.tail, arcs.tail + arcs.arcs),
        head_(arcs.head, arcs.head + arcs.arcs),
        residual_(blink::packing::read<Units>(arcs.capacity, arcs.arcs)),
        leaving_(static_cast<std::size_t>(arcs.vertices)),
        flows_(n_, tail_, head_, residual_) {
    std::vector<Arc> order(tail_.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](Arc a, Arc b) { return head_[a] < head_[b]; });
    for (const Arc arc : order) leaving_[tail_[arc]].push_back(arc);
    for (Vertex v = 0; v < n_; ++v) {
      const auto wanted = blink::packing::read<Units>(demand[v]);
      if (wanted == 0) continue;
      const std::int32_t number = flows_.open(wanted);
      flows_.join(number, v);
      open_.push_back(std::make_unique<Trees>(Trees{v, wanted, number, std::vector<Vertex>(n_, -1), {v}, {}}));
      open_.back()->depth[v] = 0;
    }
  }

  int run(double seconds) override {
    const auto begin = std::chrono::steady_clock::now();
    while (!open_.empty()) {
      if (!step()) return BLINK_PACKING_DOES_NOT_FIT;
      if (Seconds(std::chrono::steady_clock::now() - begin).count() > seconds) break;
    }
    return open_.empty() ? BLINK_PACKING_DONE : BLINK_PACKING_GOES_ON;
  }

  std::int64_t trees() const override { return static_cast<std::int64_t>(done_.size()); }

  void read(std::int32_t* root, blink_units* multiplicity, std::int32_t* ends) const override {
    for (const auto& tree : done_) {
      *root++ = tree->root;
      *multiplicity++ = blink::packing::written(tree->multiplicity);
      for (const Arc arc : tree->arcs) {
        *ends++ = tail_[arc];
        *ends++ = head_[arc];
      }
    }
  }

 private:
  using Trees = Group<Units>;
  struct Choice {
    Arc arc = -1;
    Units amount = 0;
  };

  bool complete(const Trees& group) const { return static_cast<Vertex>(group.reached.size()) == n_; }

  // Stores a complete group, or grows one by an arc; false if no arc can be added to it.
  bool step() {
    const auto chosen = open_.begin() + static_cast<std::ptrdiff_t>(few_ ? largest() : 0);
    std::unique_ptr<Trees> group = std::move(*chosen);
    open_.erase(chosen);
    if (complete(*group)) {
      flows_.close(group->number);
      done_.push_back(std::move(group));
      return true;
    }
    const Choice best = best_arc(*group);
    if (best.arc < 0) return false;
    residual_[best.arc] -= best.amount;
    flows_.give(best.arc, best.amount);
    if (best.amount < group->multiplicity) open_.push_back(split_off(*group, group->multiplicity - best.amount));
    grow(*group, best.arc);
    open_.push_back(std::move(group));
    return true;
  }

  // Splits `units` trees off the group as a new group.
  std::unique_ptr<Trees> split_off(Trees& group, Units units) {
    auto rest = std::make_unique<Trees>(group);
    group.multiplicity -= units;
    rest->multiplicity = units;
    flows_.set_multiplicity(group.number, group.multiplicity);
    rest->number = flows_.open(units);
    for (const Vertex v : rest->reached) flows_.join(rest->number, v);
    return rest;
  }

  std::size_t largest() const {
    std::size_t best = 0;
    for (std::size_t i = 1; i < open_.size(); ++i) {
      const Trees &one = *open_[i], &other = *open_[best];
      const auto key = std::make_tuple(one.multiplicity, one.reached.size());
      if (key > std::make_tuple(other.multiplicity, other.reached.size())) best = i;
    }
    return best;
  }

  void grow(Trees& group, Arc arc) {
    const Vertex v = head_[arc];
    flows_.join(group.number, v);
    group.depth[v] = group.depth[tail_[arc]] + 1;
    const auto later = [&](Vertex a, Vertex b) {
      return std::make_pair(group.depth[a], a) < std::make_pair(group.depth[b], b);
    };
    group.reached.insert(std::upper_bound(group.reached.begin(), group.reached.end(), v, later), v);
    group.arcs.push_back(arc);
  }

  Choice best_arc(const Trees& group) {
    Choice best;
    Vertex nearest = -1;
    for (const Vertex u : group.reached) {
      if (best.arc >= 0 && group.depth[u] > nearest && !few_) break;
      for (const Arc arc : leaving_[u]) {
        if (group.depth[head_[arc]] >= 0 || residual_[arc] == 0) continue;
        const Units wanted = std::min(residual_[arc], group.multiplicity);
        if (wanted <= best.amount) continue;
        const Units amount = flows_.allowed(group.number, arc, wanted);
        if (amount > best.amount) {
          best = {arc, amount};
          nearest = group.depth[u];
        }
        if (amount == group.multiplicity) return best;
      }
    }
    return best;
  }

  Vertex n_;
  bool few_;
  std::vector<Vertex> tail_, head_;
  std::vector<Units> residual_;
  std::vector<std::vector<Arc>> leaving_;
  std::vector<std::unique_ptr<Trees>> open_, done_;
  blink::packing::KeptFlows<Units> flows_;
};

}  // namespace

extern "C" blink_packer* blink_packer_new(const blink_arcs* arcs, const blink_units* demand, int few) {
  blink_packer* made = nullptr;
  const auto sums = blink::packing::Sums().add(arcs->capacity, arcs->arcs).add(demand, arcs->vertices);
  blink::packing::in_units(sums, [&](auto zero) {
    made = new Packer<decltype(zero)>(*arcs, demand, few != 0);
    return BLINK_PACKING_DONE;
  });
  return made;
}

extern "C" int blink_packer_run(blink_packer* packer, double seconds) {
  try {
    return packer->run(seconds);
  } catch (const std::bad_alloc&) {
    return BLINK_PACKING_NO_MEMORY;
  }
}

extern "C" int64_t blink_packer_trees(const blink_packer* packer) { return packer->trees(); }

extern "C" void blink_packer_read(const blink_packer* packer, int32_t* root, blink_units* multiplicity, int32_t* arcs) {
  packer->read(root, multiplicity, arcs);
}

extern "C" void blink_packer_free(blink_packer* packer) { delete packer; }
