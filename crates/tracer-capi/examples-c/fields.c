/* Records one event of each kind of field into the directory of the first argument. */
#include <stdlib.h>

#include "backtrail-tracer.h"

struct point {
    int32_t x, y;
};

int main(int argc, char **argv) {
    struct backtrail_tracer_options options = {};
    options.size = sizeof options;
    options.directory = argc > 1 ? argv[1] : "trace";
    options.contexts = BT_CONTEXT_PID;
    if (backtrail_tracer_start(&options) != 0)
        return EXIT_FAILURE;
    unsigned char a = 200;
    const char *peer = "10.0.0.1";
    const uint32_t sizes[] = {1, 2, 3};
    struct point point = {3, -4};
    BT_EVENT(kinds, empty);
    BT_EVENT_AT(BT_DEBUG, kinds, numbers, BT_U8(a), BT_I64(b, -5), BT_X32(c, 255), BT_F32(d, 1.5f), BT_F64(e, -2.25),
                BT_ENUM(state, 1, "idle=0;busy=1"));
    BT_EVENT(kinds, texts, BT_STR(peer), BT_STR(none, (const char *)NULL));
    BT_EVENT(kinds, arrays, BT_U32S(sizes, sizes, 3), BT_ARRAY_U32(pair, sizes, 2), BT_OPT_U32(some, sizes),
             BT_OPT_U32(nothing, (const uint32_t *)NULL), BT_STRUCT(at, &point, struct point, "x:i32,y:i32"));
    BT_EVENT_STACK(kinds, stack, BT_U32(value, 1));
    backtrail_tracer_stop();
    return EXIT_SUCCESS;
}
