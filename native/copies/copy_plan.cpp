#include "copy_plan.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

#include "blink/reduction.h"

namespace blink::shim {
namespace {

constexpr std::size_t kNobody = ~std::size_t{0};

bool alike(const device::Piece& a, const device::Piece& b) {
  return a.source_block == b.source_block && a.target_block == b.target_block && a.start_num == b.start_num &&
         a.start_den == b.start_den && a.stop_num == b.stop_num && a.stop_den == b.stop_den;
}

CopyRole role_of(const device::ProgramRows& program, const device::Channel& of, std::uint32_t number) {
  const device::Row& row = program.rows[number];
  const device::Piece* const pieces = program.pieces + of.first_piece;
  const bool listed = row.order.receives > device::kPacked || row.order.sends > device::kPacked;
  const std::uint8_t* const list = program.ends + row.first_end;
  const auto connection = [&](Word packed, std::uint32_t i, std::uint32_t place) {
    return program.connections[of.first_connection + (listed ? list[place] : packed >> (8 * i) & 255)];
  };
  CopyRole role;
  role.row = number;
  while (!alike(pieces[role.slice], pieces[row.slice])) ++role.slice;
  role.reads = row.order.own_operand_index != kNoOwnOperand;
  role.keeps = row.order.keeps;
  for (std::uint32_t i = 0; i < row.order.receives; ++i) role.receives.push_back(connection(row.from, i, i));
  for (std::uint32_t i = 0; i < row.order.sends; ++i) {
    role.sends.push_back(connection(row.to, i, row.order.receives + i));
  }
  return role;
}

// Lists the roles of all ranks, ordered by rank and channel, then by tick.
std::vector<CopyRole> roles_of(const device::ProgramRows& program, int nranks) {
  std::vector<CopyRole> all;
  for (std::uint32_t number = 0; number < static_cast<std::uint32_t>(nranks) * program.channels; ++number) {
    const device::Channel& of = program.channel[number];
    const auto begin = static_cast<std::ptrdiff_t>(all.size());
    for (std::uint32_t row = of.first_row; row < of.first_row + of.rows; ++row) {
      all.push_back(role_of(program, of, row));
      all.back().rank = number / program.channels;
      all.back().channel = number % program.channels;
    }
    std::stable_sort(all.begin() + begin, all.end(), [&program](const CopyRole& a, const CopyRole& b) {
      return program.rows[a.row].chunk > program.rows[b.row].chunk;
    });
  }
  return all;
}

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
  if (!good) *why = "its steps do not fit its connections: expected one step that sends and one that receives for each";
  return good;
}

// Lists the roles that must follow each role: receivers of its messages, and writers of data in place that it reads.
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

// Computes the levels: a role's level is known when those of all its predecessors are.
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
  *why = "its messages form a cycle";
  return false;
}

}  // namespace

bool survey(const Bundle& bundle, const device::ProgramRows& program, int rank, std::vector<CopyRole>* roles,
            std::string* why) {
  std::vector<CopyRole> all = roles_of(program, bundle.nranks);
  Uses uses;
  if (!find_uses(bundle, all, &uses, why) || !find_levels(uses, &all, why)) return false;
  roles->clear();
  for (CopyRole& role : all) {
    if (role.receives.size() > kMostOperands) {
      *why = "rank " + std::to_string(role.rank) + " reduces " + std::to_string(role.receives.size()) +
             " messages at once; a reduce kernel takes at most " + std::to_string(kMostOperands);
      return false;
    }
    if (role.rank == static_cast<std::uint32_t>(rank)) roles->push_back(std::move(role));
  }
  std::sort(roles->begin(), roles->end(), [](const CopyRole& a, const CopyRole& b) { return a.row < b.row; });
  return true;
}

}  // namespace blink::shim
