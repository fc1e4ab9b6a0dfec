// The end of every rank but 0: it goes to the coordinator, gives its words and waits for the verdict.
#pragma once

#include <memory>
#include <string>

#include "participant.h"

namespace blink {

class Client final : public Participant {
 public:
  // `connection` to the coordinator, perhaps still on its way.
  Client(const std::string& token, int rank, int size, Socket connection, bool tcp);
  // Announced. The listener is where others see that this rank is here, and where the coordinator leaves word if it has
  // ended the bootstrap before this rank came.
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
  bool read_farewell();

  Socket listener_;
  std::unique_ptr<Channel> coordinator_;
  bool tcp_ = false;
  bool heard_ = false;  // the cause is the coordinator's word
  bool acked_ = false;  // in this round
  std::vector<Words> all_;
  Descriptors all_files_;
};

}  // namespace blink
