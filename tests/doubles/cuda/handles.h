// The live handles. A program's handle is looked up, never dereferenced, so that a stale one is an error.
#pragma once

#include <map>
#include <memory>
#include <mutex>

namespace cuda_double {

template <class T>
class Handles {
 public:
  T* add(std::shared_ptr<T> object) {
    std::lock_guard<std::mutex> lock(mutex_);
    T* const handle = object.get();
    alive_[handle] = std::move(object);
    return handle;
  }
  std::shared_ptr<T> find(T* handle) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto at = alive_.find(handle);
    return at == alive_.end() ? nullptr : at->second;
  }
  std::shared_ptr<T> remove(T* handle) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto at = alive_.find(handle);
    if (at == alive_.end()) return nullptr;
    std::shared_ptr<T> object = std::move(at->second);
    alive_.erase(at);
    return object;
  }

 private:
  std::mutex mutex_;
  std::map<T*, std::shared_ptr<T>> alive_;
};

// The handles of one kind; never destroyed, since threads may outlive main().
template <class T>
Handles<T>& handles() {
  static Handles<T>& only = *new Handles<T>;
  return only;
}

}  // namespace cuda_double
