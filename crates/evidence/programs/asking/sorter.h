// A sort that calls `compare` from a lambda.
#include <algorithm>
#include <vector>

bool compare(int one, int other);

struct Sorter {
  virtual ~Sorter() = default;
  virtual void sort(std::vector<int> &numbers) {
    std::sort(numbers.begin(), numbers.end(), [](int a, int b) { return compare(a, b); });
  }
};
