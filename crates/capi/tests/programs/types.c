/* Opens the types of a file, finds a struct and a function, and prints them. Valid C and C++.
 *
 * types FILE UNIT STRUCT FUNCTION DEBUG_INFORMATION; UNIT may be "-". */
#include <backtrail.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct backtrail_types *types;

static int each_part(void *closure, const struct backtrail_type_part *part)
{
    char text[256];
    if (part->size < sizeof *part || backtrail_type_text(types, part->type, part->name, text, sizeof text) < 0)
        return 1;
    printf("%s%s at %llu bits %d\n", (const char *)closure, text, (unsigned long long)part->bit_offset, part->bits);
    return 0;
}

static int count(void *closure, backtrail_type_id id)
{
    struct backtrail_type info = {};
    info.size = sizeof info;
    if (backtrail_type_get(types, id, &info) != 0 || !info.name)
        return 2;
    ++*(int *)closure;
    return 0;
}

static int stop(void *closure, backtrail_type_id id)
{
    (void)closure;
    return id ? 42 : 0;
}

int main(int argc, char **argv)
{
    struct backtrail_types_options options = {};
    struct backtrail_type info = {};
    backtrail_type_id id = 0;
    int all = 0;
    char text[8], member[] = "member ", argument[] = "argument ";
    const char *unit = argc > 2 && strcmp(argv[2], "-") ? argv[2] : NULL;
    options.size = sizeof options;
    options.debug_information = argc > 5 && atoi(argv[5]);
    int error = backtrail_types_open(argv[1], &options, &types);
    if (error) {
        printf("open: %s\n", strerror(-error));
        return 0;
    }
    info.size = sizeof info;
    if (backtrail_types_find(types, unit, argv[3], &id) || backtrail_type_get(types, id, &info))
        return 3;
    printf("%s: kind %d, %llu bytes, %llu members\n", info.name, info.kind, (unsigned long long)info.bytes, (unsigned long long)info.count);
    if (backtrail_type_parts(types, id, each_part, member))
        return 4;
    if (backtrail_types_find(types, NULL, argv[4], &id) || backtrail_type_get(types, id, &info) || info.kind != BACKTRAIL_KIND_FUNCTION)
        return 5;
    if (backtrail_type_parts(types, id, each_part, argument))
        return 6;
    printf("%d\n", backtrail_type_text(types, id, argv[4], text, sizeof text) > 8 && strlen(text) == 7);
    if (backtrail_types_walk(types, count, &all) || backtrail_types_walk(types, stop, NULL) != 42)
        return 7;
    printf("%d types\n", all > 5 ? 1 : 0);
    /* Errors are reported. */
    if (backtrail_types_find(types, NULL, "nobody", &id) != -ENOENT || backtrail_type_get(types, 77, &info) != -EINVAL)
        return 8;
    if (backtrail_type_get(types, ((backtrail_type_id)1 << 32) | 0xffffff, &info) != -EINVAL || backtrail_types_open(argv[1], NULL, NULL) != -EINVAL)
        return 9;
    info.size = 4;
    if (backtrail_type_get(types, id, &info) != -EINVAL || backtrail_type_parts(types, id, NULL, NULL) != -EINVAL)
        return 10;
    backtrail_types_close(types);
    backtrail_types_close(NULL);
    return 0;
}
