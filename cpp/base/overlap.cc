#include "base/overlap.h"

#include <algorithm>
#include <numeric>

namespace torch_ucc {
namespace {

// Whether a given number is a sum over all terms, where each term adds its coefficient 0 to `most`
// times.
class BoundedSum {
 public:
  void add(std::uint64_t coefficient, std::uint64_t most) {
    const auto same =
        std::find_if(terms_.begin(), terms_.end(), [&](const Term& each) { return each.coefficient == coefficient; });
    if (coefficient == 0 || most == 0) {
      return;
    }
    if (same != terms_.end()) {
      same->most += most;
    } else {
      terms_.push_back({coefficient, most});
    }
  }

  bool can_be(std::uint64_t sum) {
    std::sort(terms_.begin(), terms_.end(), [](const Term& a, const Term& b) { return a.coefficient < b.coefficient; });
    std::uint64_t rest = 0;
    std::uint64_t divisor = 0;
    for (Term& term : terms_) {
      rest += term.coefficient * term.most;
      divisor = std::gcd(divisor, term.coefficient);
      term.rest = rest;
      term.divisor = divisor;
    }
    return search(terms_.size(), sum);
  }

 private:
  struct Term {
    std::uint64_t coefficient;
    std::uint64_t most;
    std::uint64_t rest = 0;     // the largest sum of this and all smaller terms
    std::uint64_t divisor = 0;  // divides each sum of this and all smaller terms
  };

  // Whether the first `count` terms can sum to `sum`. True if the search takes too many steps.
  bool search(std::size_t count, std::uint64_t sum) {
    constexpr int kMostSteps = 100000;
    if (sum == 0 || ++steps_ > kMostSteps) {
      return true;
    }
    if (count == 0 || sum > terms_[count - 1].rest || sum % terms_[count - 1].divisor != 0) {
      return false;
    }
    const Term& term = terms_[count - 1];
    const std::uint64_t others = term.rest - term.coefficient * term.most;
    const std::uint64_t least = sum > others ? (sum - others + term.coefficient - 1) / term.coefficient : 0;
    for (std::uint64_t times = std::min(term.most, sum / term.coefficient) + 1; times-- > least;) {
      if (search(count - 1, sum - times * term.coefficient)) {
        return true;
      }
    }
    return false;
  }

  std::vector<Term> terms_;
  int steps_ = 0;
};

}  // namespace

std::uintptr_t Region::end() const {
  std::uintptr_t end = begin + item;
  for (const Dim& dim : dims) {
    end += (dim.size - 1) * dim.stride;
  }
  return end;
}

// A byte of `a` is its first byte plus steps of `a`; a byte of `b` is its last byte minus steps of
// `b`. The regions share a byte if steps of both can sum to the distance of these two ends.
bool overlap(const Region& a, const Region& b) {
  if (a.item == 0 || b.item == 0 || a.space != b.space || a.begin >= b.end() || b.begin >= a.end()) {
    return false;
  }
  if (a.dims.empty() && b.dims.empty()) {
    return true;
  }
  BoundedSum sum;
  for (const Region* region : {&a, &b}) {
    for (const Region::Dim& dim : region->dims) {
      sum.add(dim.stride, dim.size - 1);
    }
    sum.add(1, region->item - 1);
  }
  return sum.can_be(b.end() - 1 - a.begin);
}

}  // namespace torch_ucc
