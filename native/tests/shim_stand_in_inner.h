// How does a test of the outer half see and drive the communicators, meetings and log lines that it causes?
#pragma once

#include <string>
#include <vector>

namespace shim_test {

// What communicators do; read by all of them.
struct Behaviour {
  bool takes = true;
  bool late = false;         // settled() only after finish()
  int enqueues = 0;          // what enqueue() returns
  bool throws_bad_alloc = false, throws_other = false, throws_at_make = false;
  bool mute = false;         // announce() fails
};
extern Behaviour behaviour;
void finish();

// The events so far, taken out of the list.
std::vector<std::string> events();
// The same as one text, lines joined by "; ".
std::string history();

}  // namespace shim_test
