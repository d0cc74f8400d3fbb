// Dies of a write to address 0, five functions deep, with Abseil's failure handler. Abseil itself
// follows frame pointers here, and the program has none: it gives Abseil `backtrace`.
#include <execinfo.h>
#include <algorithm>
#include "absl/debugging/failure_signal_handler.h"
#include "absl/debugging/stacktrace.h"
#include "absl/debugging/symbolize.h"
#include "recursive.h"

static int unwind(void **addresses, int *sizes, int depth, int skip, const void *, int *dropped) {
  void *all[200];
  // Without this function and the one that asks it.
  int count = std::max(0, backtrace(all, 200) - skip - 2), kept = std::min(count, depth);
  std::copy_n(all + skip + 2, kept, addresses);
  if (sizes) std::fill_n(sizes, kept, 0);
  if (dropped) *dropped = count - kept;
  return kept;
}

int main(int argc, char **argv) {
  absl::InitializeSymbolizer(argv[0]);
  absl::SetStackUnwinder(unwind);
  absl::InstallFailureSignalHandler({});
  return recursive(3, {(int *)(long)(argc - 1)});
}
