/* A parser that crashes where brackets contain none. */
#include <stdio.h>
#include <stdlib.h>

struct options {
    const char *path;
    int depth;
};

struct value {
    int depth;
    struct value *inner;
};

__attribute__((noinline)) struct value *parse_value(struct options *o, const char *text, int depth)
{
    if (*text != '[')
        return NULL;
    struct value *value = malloc(sizeof *value);
    value->inner = parse_value(o, text + 1, depth + 1);
    value->depth = value->inner->depth + depth;
    if (value->depth > o->depth)
        o->depth = value->depth;
    return value;
}

__attribute__((noinline)) int parse_file(struct options *o)
{
    char text[100];
    FILE *file = fopen(o->path, "r");
    if (!file || !fgets(text, sizeof text, file))
        return 1;
    fclose(file);
    return parse_value(o, text, 0)->depth;
}

int main(int argc, char **argv)
{
    struct options options = {argv[argc - 1], 0};
    printf("%d\n", parse_file(&options));
}
