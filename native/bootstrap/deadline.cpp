#include "deadline.h"

#include <cstdlib>
#include <locale>
#include <sstream>

namespace blink {

double seconds_from(const char* variable, double otherwise) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return otherwise;
  std::istringstream stream(text);
  stream.imbue(std::locale::classic());  // "1.5" means the same whatever locale the program has chosen
  double seconds = 0;
  if (!(stream >> seconds) || !(stream >> std::ws).eof() || !(seconds > 0)) return otherwise;
  return seconds;
}

}  // namespace blink
