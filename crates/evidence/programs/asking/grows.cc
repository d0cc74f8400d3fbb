// Allocates a tree of maps and strings again and again: grows ROUNDS.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

struct Node {
  std::map<int, std::string> entries;
  std::vector<std::unique_ptr<Node>> children;
};

__attribute__((noinline)) std::unique_ptr<Node> grow(int depth, int seed) {
  auto node = std::make_unique<Node>();
  for (int i = 0; i < 8; i++) node->entries[seed * 31 + i] = std::string(40 + (seed + i) % 50, 'x');
  for (int i = 0; depth && i < 4; i++) node->children.push_back(grow(depth - 1, seed * 7 + i));
  return node;
}

static std::unique_ptr<Node> kept;

int main(int argc, char **argv) {
  size_t total = 0;
  for (int round = 0; round < (argc > 1 ? atoi(argv[1]) : 1); round++) {
    kept = grow(7, round);
    total += kept->children.size();
  }
  printf("%zu\n", total);
  // Profilers write what is still allocated.
  fflush(stdout);
  kept.release();
}
