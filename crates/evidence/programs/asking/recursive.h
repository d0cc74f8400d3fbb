// Writes to address 0, five functions deep.
#include <functional>
#include <vector>

__attribute__((noinline)) int write_to(int *place) {
  *place = 1;
  return *place;
}

__attribute__((noinline)) int each(const std::vector<int *> &places, const std::function<int(int *)> &act) {
  int sum = 0;
  for (int *place : places) sum += act(place);
  return sum;
}

__attribute__((noinline)) int recursive(int depth, const std::vector<int *> &places) {
  if (depth == 0) return each(places, write_to) + 1;
  return recursive(depth - 1, places) + depth;
}
