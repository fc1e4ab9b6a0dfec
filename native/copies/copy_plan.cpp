#include "copy_plan.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "blink/reduction.h"

namespace blink::shim {
namespace {

constexpr std::size_t kNobody = ~std::size_t{0};

// Walks through the loops of all ranks for a collective of one chunk per slice: each role fires once.
class Surveyor final : public Copies {
 public:
  Surveyor(std::vector<CopyRole>* roles, std::uint32_t rank) : roles_(*roles), rank_(rank) {}

  std::uint32_t rank() const override { return rank_; }
  void open(std::uint32_t, const std::uint32_t* connections, std::uint32_t count) override {
    connections_.assign(connections, connections + count);
  }
  Word rounds(Word, Word) const override { return 1; }
  // Its `source` is a number of the slice.
  Slice slice(Word source_block, Word target_block, Word start_num, Word start_den, Word stop_num, Word stop_den,
              Word) const override {
    const Cut cut{source_block, target_block, start_num, start_den, stop_num, stop_den};
    return {slices_.emplace(cut, slices_.size()).first->second, 0, 1, 1, 1};
  }
  bool execute(const Slice& slice, Word, const CopyExecution& execution) override {
    CopyRole role;
    role.rank = rank_;
    role.channel = execution.channel;
    role.ordinal = execution.ordinal;
    role.slice = slice.source;
    role.reads = execution.what.own_operand_index != kNoOwnOperand;
    role.keeps = execution.what.keeps != 0;
    for (std::uint32_t i = 0; i < execution.what.receives; ++i) {
      role.receives.push_back(connections_.at(execution.what.from[i]));
    }
    for (std::uint32_t i = 0; i < execution.what.sends; ++i)
      role.sends.push_back(connections_.at(execution.what.to[i]));
    roles_.push_back(std::move(role));
    return true;
  }

 private:
  std::vector<CopyRole>& roles_;
  typedef std::array<Word, 6> Cut;
  std::uint32_t rank_;
  std::vector<std::uint32_t> connections_;
  mutable std::map<Cut, std::size_t> slices_;
};

struct Uses {
  std::vector<std::size_t> sender, receiver;  // roles, by connection
};

bool find_uses(const Bundle& bundle, const std::vector<CopyRole>& roles, Uses* uses, std::string* why) {
  const std::size_t count = bundle.connections.size();
  uses->sender.assign(count, kNobody);
  uses->receiver.assign(count, kNobody);
  bool good = true;
  for (std::size_t i = 0; i < roles.size(); ++i) {
    const int rank = static_cast<int>(roles[i].rank);
    for (const std::uint32_t id : roles[i].sends) {
      good = good && id < count && bundle.connections[id].src == rank && bundle.connections[id].copied();
      good = good && std::exchange(uses->sender[id], i) == kNobody;
    }
    for (const std::uint32_t id : roles[i].receives) {
      good = good && id < count && bundle.connections[id].dst == rank && bundle.connections[id].copied();
      good = good && std::exchange(uses->receiver[id], i) == kNobody;
    }
  }
  for (std::size_t id = 0; id < count; ++id) {
    good = good && (uses->sender[id] == kNobody) == (uses->receiver[id] == kNobody);
  }
  if (!good) *why = "its code does not use the plan's connections, each by one role at each end";
  return good;
}

// Who comes after whom, by role: messages, and own data that are read before the result takes their place. Roles are in
// the order of ranks, channels and ticks.
std::vector<std::vector<std::size_t>> find_followers(const Uses& uses, const std::vector<CopyRole>& roles) {
  std::vector<std::vector<std::size_t>> followers(roles.size());
  std::map<std::size_t, std::vector<std::size_t>> readers;  // of the channel's slices
  for (std::size_t i = 0; i < roles.size(); ++i) {
    const CopyRole& role = roles[i];
    if (i > 0 && (roles[i - 1].rank != role.rank || roles[i - 1].channel != role.channel)) readers.clear();
    for (const std::uint32_t connection : role.sends) {
      followers[i].push_back(uses.receiver[connection]);
    }
    if (role.keeps) {
      for (const std::size_t reader : readers[role.slice]) followers[reader].push_back(i);
    }
    if (role.reads) readers[role.slice].push_back(i);
  }
  return followers;
}

// Level by level: a role's is known when those of all before it are.
bool find_levels(const Uses& uses, std::vector<CopyRole>* roles, std::string* why) {
  const std::vector<std::vector<std::size_t>> followers = find_followers(uses, *roles);
  std::vector<std::size_t> missing(roles->size()), ready;
  for (const std::vector<std::size_t>& some : followers) {
    for (const std::size_t follower : some) ++missing[follower];
  }
  for (std::size_t i = 0; i < roles->size(); ++i) {
    if (missing[i] == 0) ready.push_back(i);
  }
  for (std::size_t done = 0; done < ready.size(); ++done) {
    for (const std::size_t follower : followers[ready[done]]) {
      CopyRole& next = (*roles)[follower];
      next.level = std::max(next.level, (*roles)[ready[done]].level + 1);
      if (--missing[follower] == 0) ready.push_back(follower);
    }
  }
  if (ready.size() == roles->size()) return true;
  *why = "its messages go in a circle";
  return false;
}

}  // namespace

bool survey(const Bundle& bundle, const Bundle::Program& program, int rank, CopyEntry entry,
            std::vector<CopyRole>* roles, std::vector<std::size_t>* first, std::string* why) {
  std::vector<CopyRole> all;
  for (int one = 0; one < bundle.nranks; ++one) {
    Surveyor surveyor(&all, static_cast<std::uint32_t>(one));
    for (std::uint32_t channel = 0; channel < program.channels; ++channel) entry(&surveyor, channel);
  }
  Uses uses;
  if (!find_uses(bundle, all, &uses, why) || !find_levels(uses, &all, why)) return false;
  first->assign(program.channels, 0);
  roles->clear();
  for (std::uint32_t channel = 0; channel < program.channels; ++channel) {
    (*first)[channel] = roles->size();
    std::vector<CopyRole> own;
    for (const CopyRole& role : all) {
      if (role.rank == static_cast<std::uint32_t>(rank) && role.channel == channel) own.push_back(role);
    }
    // They fired in the order of their ticks, and have their place by the order within one.
    std::sort(own.begin(), own.end(), [](const CopyRole& a, const CopyRole& b) { return a.ordinal < b.ordinal; });
    if (!own.empty() && own.back().ordinal + 1 != own.size()) {
      *why = "channel " + std::to_string(channel) + " does not go through all its roles";
      return false;
    }
    roles->insert(roles->end(), own.begin(), own.end());
  }
  for (const CopyRole& role : all) {
    if (role.receives.size() > kMostOperands) {
      *why = "rank " + std::to_string(role.rank) + " combines " + std::to_string(role.receives.size()) +
             " messages at once; a reduce kernel takes at most " + std::to_string(kMostOperands);
      return false;
    }
  }
  return true;
}

}  // namespace blink::shim
