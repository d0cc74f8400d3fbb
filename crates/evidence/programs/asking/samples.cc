// Writes the stacks that tcmalloc has of what is allocated (`heap`), or of calls at which the heap
// grew (`growth`).
#include <cstring>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>
#include <gperftools/malloc_extension.h>

struct Node {
  std::map<int, std::string> entries;
  std::vector<std::unique_ptr<Node>> children;
  std::unique_ptr<char[]> large;
};

// More than the heap grows by.
__attribute__((noinline)) void add_large(Node &node) { node.large.reset(new char[3 << 20]); }

__attribute__((noinline)) std::unique_ptr<Node> grow(int depth, int seed) {
  auto node = std::make_unique<Node>();
  for (int i = 0; i < 8; i++) node->entries[seed * 31 + i] = std::string(40 + (seed + i) % 50, 'x');
  for (int i = 0; depth && i < 3; i++) node->children.push_back(grow(depth - 1, seed * 7 + i));
  if (seed % 7 == 1) add_large(*node);
  return node;
}

int main(int argc, char **argv) {
  std::unique_ptr<Node> kept;
  // The first thread allocates before the library has read its variables.
  std::thread([&] { kept = grow(4, 1); }).join();
  std::string text;
  if (argc > 1 && !strcmp(argv[1], "growth")) MallocExtension::instance()->GetHeapGrowthStacks(&text);
  else MallocExtension::instance()->GetHeapSample(&text);
  std::cout << text;
}
