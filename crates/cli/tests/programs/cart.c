#include <stdio.h>

unsigned hash(unsigned value)
{
    for (int i = 0; i < 100; i++)
        value = value * 31 + 7;
    return value;
}

unsigned check(unsigned value)
{
    for (int i = 0; i < ROUNDS; i++)
        value = value * 17 + 3;
    return value;
}

int main(void)
{
    unsigned sum = 0;
    for (int i = 0; i < 4000000; i++)
        sum += hash(i) ^ check(i);
    printf("%u\n", sum);
}
