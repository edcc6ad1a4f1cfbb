// A list that a signal handler may read at any moment, on any thread.
#pragma once

#include <atomic>

namespace kda_check {

/// Values are added and taken out by any thread without a lock. T{} is no value. Nodes are used again and
/// never freed: a handler may stand on one.
template <class T>
class SignalSafeList {
  static_assert(std::atomic<T>::is_always_lock_free);

 public:
  struct Node {
    std::atomic<T> value;
    Node* next;
  };

  Node* add(T value) {
    for (Node* node = first_.load(); node != nullptr; node = node->next) {
      T none{};
      if (node->value.compare_exchange_strong(none, value)) return node;
    }
    Node* const node = new Node{{value}, first_.load()};
    while (!first_.compare_exchange_weak(node->next, node)) {
    }
    return node;
  }
  static T remove(Node* node) { return node->value.exchange(T{}); }

  template <class Use>
  void for_each(Use use) const {
    for (const Node* node = first_.load(); node != nullptr; node = node->next)
      if (const T value = node->value.load(); value != T{}) use(value);
  }

 private:
  std::atomic<Node*> first_{nullptr};
};

}  // namespace kda_check
