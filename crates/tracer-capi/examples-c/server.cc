// A server of one process that starts and four that work; each writes a trace of its own below the
// directory of the first argument.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "backtrail-tracer.h"

static void work(unsigned worker) {
    for (uint32_t request = 0; request < 250; request++) {
        std::string path = "/item/" + std::to_string(request);
        BT_EVENT(server, request, BT_U32(worker), BT_U32(request), BT_STR(path, path.c_str()));
    }
}

int main(int argc, char **argv) {
    backtrail_tracer_options options{};
    options.size = sizeof options;
    options.directory = argc > 1 ? argv[1] : "trace";
    if (backtrail_tracer_start(&options) != 0)
        return EXIT_FAILURE;
    BT_EVENT(server, start);
    for (unsigned worker = 0; worker < 4; worker++) {
        if (fork() == 0) {
            work(worker);
            std::exit(EXIT_SUCCESS);
        }
    }
    int status;
    while (wait(&status) > 0)
        BT_EVENT(server, end, BT_I32(status));
}
