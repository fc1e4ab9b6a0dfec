#include "network.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>

#include "clock.h"

namespace blink {
namespace {

constexpr std::int64_t kShutUs = 1'000'000;  // most time for messages of closed connections to end
constexpr std::uint32_t kMostCores = 1 << 12;

// A number of this machine's first core that other machines' cores do not have, but for a chance of one in a million.
std::uint32_t number_of_machine() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::getline(file, boot);
  return static_cast<std::uint32_t>(std::hash<std::string>{}(boot)) / kMostCores * kMostCores;
}

ucx::RequestParameters with_user_data(void* user_data) {
  ucx::RequestParameters parameters{};
  parameters.mask = ucx::kCallback | ucx::kUserData;
  parameters.user_data = user_data;
  return parameters;
}

}  // namespace

void Inbox::begin(unsigned char* direct, std::size_t step, std::size_t total) {
  direct_ = direct;
  step_ = step;
  total_ = total;
  taken_ = 0;
  std::fill(arrived_.begin(), arrived_.end(), static_cast<unsigned char>(0));
}

bool Inbox::expects(std::size_t number, std::size_t bytes) const {
  if (number >= arrived_.size() || arrived_[number] != 0) return false;
  return direct_ == nullptr ? bytes <= stride_ : bytes <= step_ && number * step_ + bytes <= total_;
}

unsigned char* Inbox::room(std::size_t number) {
  if (direct_ == nullptr) {
    if (number >= taken_ + slots_) return nullptr;
    if (memory_ == nullptr) memory_.reset(new unsigned char[slots_ * stride_]);
  }
  return place(number);
}

std::unique_ptr<Network> Network::open(const std::shared_ptr<UcxContext>& context, blink_error& why) {
  std::unique_ptr<Network> made(new Network);
  made->machine_ = number_of_machine();
  if (!made->add_rail(0, context, why)) return nullptr;
  return made;
}

bool Network::add_rail(std::size_t rail, const std::shared_ptr<UcxContext>& context, blink_error& why) {
  auto made = std::make_unique<Rail>();
  made->network = this;
  made->worker = Worker::open(context, on_message, made.get(), why);
  if (made->worker == nullptr) return false;
  events_.push_back(made->worker->events());
  if (rails_.size() <= rail) rails_.resize(rail + 1);
  rails_[rail] = std::move(made);
  return true;
}

bool Network::is_broken(int peer) const {
  bool single = false;
  for (std::size_t rail = 1; rail < rails_.size(); ++rail) {
    if (rails_[rail] == nullptr || !rails_[rail]->worker->reaches(peer)) continue;
    if (rails_[rail]->worker->is_broken(peer)) return true;
    single = true;
  }
  return !single && rails_[0]->worker->is_broken(peer);
}

void Network::shut(bool orderly) {
  if (rails_.empty()) return;
  for (const Held& message : held_) drop(message);
  held_.clear();
  inboxes_ = nullptr;
  for (const auto& rail : rails_) {
    if (rail != nullptr && rail->worker->close(orderly)) sending_ = receiving_ = 0;
  }
  const std::int64_t until = now_us() + kShutUs;
  while (sending_ + receiving_ != 0 && now_us() < until) progress();
}

void Network::begin(const MessageHeader& call, Inboxes& inboxes) {
  call_ = call;
  inboxes_ = &inboxes;
  sent_.clear();
  arriving_.clear();
  go_on();
}

const Network::Sent& Network::send(int peer, std::size_t rail, std::uint32_t queue, std::uint32_t number,
                                   const void* data, std::size_t bytes) {
  sent_.push_back({call_, this, false});
  Sent& sent = sent_.back();
  sent.header.queue = queue;
  sent.header.number = number;
  sent.header.core = machine_ + static_cast<std::uint32_t>(std::max(0, sched_getcpu()));
  ucx::RequestParameters parameters = with_user_data(&sent);
  parameters.done.send = on_sent;
  if (bytes <= at_once_) {
    parameters.mask |= ucx::kFlags;
    parameters.flags = ucx::kEager;
  }
  ++sending_;
  if (worker(rail).send(peer, &sent.header, sizeof sent.header, data, bytes, parameters)) {
    sent.done = true;
    --sending_;
  }
  return sent;
}

void Network::on_sent(void* request, ucx::Status, void* user_data) {
  auto& sent = *static_cast<Sent*>(user_data);
  sent.done = true;
  --sent.network->sending_;
  sent.network->worker().ucp().request_free(request);
}

Inbox* Network::inbox_of(const MessageHeader& header, std::size_t bytes) {
  if (header.signature == call_.signature) {
    const auto place = inboxes_->places.find(Inbox::name_of(header.sender, header.queue));
    if (place != inboxes_->places.end()) {
      Inbox& inbox = inboxes_->all[place->second];
      if (inbox.expects(header.number, bytes)) return &inbox;
    }
  }
  meet_stranger(header);
  return nullptr;
}

ucx::Status Network::on_message(void* context, const void* header, std::size_t header_bytes, void* data,
                                std::size_t bytes, const ucx::ReceiveAttributes* attributes) {
  MessageHeader read{};
  if (header_bytes != sizeof read) return ucx::kOk;
  std::memcpy(&read, header, sizeof read);
  auto& rail = *static_cast<Rail*>(context);
  Network& network = *rail.network;
  if (read.core - network.machine_ < kMostCores) network.cores_[read.sender] = static_cast<int>(read.core - network.machine_);
  return network.take(*rail.worker, read, data, bytes, attributes->attributes);
}

// A callback may not take up an offer, so it is held until progress() returns.
ucx::Status Network::take(Worker& worker, const MessageHeader& header, void* data, std::size_t bytes, std::uint64_t attributes) {
  const bool is_offer = (attributes & ucx::kIsOffer) != 0;
  const bool is_past = header.sequence < call_.sequence || (header.sequence == call_.sequence && inboxes_ == nullptr);
  if (is_past) {
    meet_stranger(header);
    return ucx::kOk;
  }
  if (!is_offer && is_now(header)) {
    Inbox* inbox = inbox_of(header, bytes);
    if (inbox == nullptr) return ucx::kOk;
    if (unsigned char* into = inbox->room(header.number)) {
      std::memcpy(into, data, bytes);
      inbox->arrive(header.number);
      return ucx::kOk;
    }
  }
  offered_ = offered_ || is_offer;
  if (is_offer || (attributes & ucx::kDataStays) != 0) {
    held_.push_back({&worker, header, is_offer ? Kind::kOffered : Kind::kKept, data, bytes});
    return ucx::kInProgress;
  }
  void* copy = std::malloc(std::max<std::size_t>(1, bytes));
  if (copy == nullptr) return ucx::kOk;  // the timeout names the missing message
  std::memcpy(copy, data, bytes);
  held_.push_back({&worker, header, Kind::kCopied, copy, bytes});
  return ucx::kOk;
}

void Network::release_held() {
  offered_ = false;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < held_.size(); ++i) {
    const Held message = held_[i];
    Inbox* inbox = is_now(message.header) ? inbox_of(message.header, message.bytes) : nullptr;
    unsigned char* into = inbox == nullptr ? nullptr : inbox->room(message.header.number);
    if (into == nullptr) {
      held_[kept++] = message;
    } else if (message.kind == Kind::kOffered) {
      receive(message, *inbox, into);
    } else {
      std::memcpy(into, message.data, message.bytes);
      inbox->arrive(message.header.number);
      drop(message);
    }
  }
  held_.resize(kept);
}

void Network::receive(const Held& offer, Inbox& inbox, unsigned char* into) {
  arriving_.push_back({this, offer.worker, &inbox, offer.header.number});
  ucx::RequestParameters parameters = with_user_data(&arriving_.back());
  parameters.done.receive = on_received;
  ++receiving_;
  if (!offer.worker->receive(inbox.sender(), offer.data, into, offer.bytes, parameters)) return;
  --receiving_;
  if (!offer.worker->is_broken(inbox.sender())) inbox.arrive(offer.header.number);
}

void Network::on_received(void* request, ucx::Status status, std::size_t, void* user_data) {
  const Arriving& arriving = *static_cast<Arriving*>(user_data);
  Network& network = *arriving.network;
  --network.receiving_;
  if (status == ucx::kOk) {
    arriving.inbox->arrive(arriving.number);
  } else {
    arriving.worker->set_broken(arriving.inbox->sender());
  }
  network.worker().ucp().request_free(request);
}

void Network::drop(const Held& message) {
  if (message.kind == Kind::kCopied) {
    std::free(message.data);
  } else {
    message.worker->release(message.data);
  }
}

bool Network::progress() {
  bool moved = false;
  for (const auto& rail : rails_) moved = (rail != nullptr && rail->worker->progress()) || moved;
  if (offered_) release_held();
  return moved;
}

void Network::sleep(int bell, std::int64_t us) {
  for (const auto& rail : rails_) {
    if (rail != nullptr && !rail->worker->arm()) return;
  }
  sleep_on(events_, bell, us);
}

}  // namespace blink
