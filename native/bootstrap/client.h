// The end of every rank but 0: it connects to the coordinator, sends its words and waits for the verdict.
#pragma once

#include <memory>
#include <string>

#include "participant.h"

namespace blink {

class Client final : public Participant {
 public:
  // `connection` to the coordinator, possibly still connecting.
  Client(const std::string& token, int rank, int size, Socket connection, bool tcp);
  // For an announced group. The listener shows other ranks that this one is present, and receives the coordinator's
  // error if the bootstrap has failed before.
  Client(const std::string& token, int rank, int size, Socket listener)
      : Participant(token, rank, size), listener_(std::move(listener)) {}
  void leave() override;

 protected:
  void begin() override;
  void go_on(int timeout_ms) override;
  void tell() override;

 private:
  void join(Socket connection);
  bool find_coordinator();
  void hear(const Frame& frame);
  void take_verdict(const Frame& frame);
  void lose();
  Cause coordinator_lost() const;
  bool read_farewell();

  Socket listener_;
  std::unique_ptr<Channel> coordinator_;
  bool tcp_ = false;
  bool heard_ = false;  // the coordinator knows the cause
  bool acked_ = false;  // in this round
  std::vector<Words> all_;
  Descriptors all_files_;
};

}  // namespace blink
