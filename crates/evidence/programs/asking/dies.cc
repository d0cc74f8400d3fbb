// Dies of a write to address 0, five functions deep, with glog's failure handler.
#include <glog/logging.h>
#include "recursive.h"

int main(int argc, char **argv) {
  google::InitGoogleLogging(argv[0]);
  google::InstallFailureSignalHandler();
  return recursive(3, {(int *)(long)(argc - 1)});
}
