/* A program with a `setenv` of its own, as shells have: variables set by libraries do not reach the driver.
 *
 * usage: setenv PTX.  Prints the result of cuInit. */
#include "../driver.h"

int setenv(const char *name, const char *value, int overwrite)
{
    (void)name, (void)value, (void)overwrite;
    return 0;
}

int main(void)
{
    cu_open();
    printf("cuInit: %d\n", TRY(cuInit, 0));
    puts("ok");
    return 0;
}
