/* crash_late LIBRARY HELPER
 *
 * Dies in what LIBRARY calls, which it loads after crash reports were installed. */
#include <backtrail.h>
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>

static uint64_t touch(uint64_t where) { return *(volatile uint64_t *)where + 1; }

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    struct backtrail_crash_options options = {.size = sizeof options, .helper = argv[2]};
    if (backtrail_crash_install(&options) != 0) return 2;
    void *library = dlopen(argv[1], RTLD_NOW);
    void *symbol = library ? dlsym(library, "plugin_enter") : NULL;
    if (!symbol) return 3;
    uint64_t (*enter)(uint64_t (*)(uint64_t), uint64_t);
    memcpy(&enter, &symbol, sizeof enter);
    return (int)enter(touch, 32) + 1;
}
