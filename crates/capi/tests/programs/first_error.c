/* Prints the message that a look-up before main() has left. */
#include <dlfcn.h>
#include <stdio.h>

int main(void)
{
    const char *message = dlerror();
    puts(message ? message : "none");
    return 0;
}
