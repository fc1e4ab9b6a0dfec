#include "deadline.h"

#include <cstdlib>
#include <locale>
#include <sstream>

namespace blink {

double seconds_from(const char* variable, double otherwise) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return otherwise;
  std::istringstream stream(text);
  stream.imbue(std::locale::classic());  // parse "1.5" the same in every locale of the program
  double seconds = 0;
  if (!(stream >> seconds) || !(stream >> std::ws).eof() || !(seconds > 0)) return otherwise;
  return seconds;
}

}  // namespace blink
