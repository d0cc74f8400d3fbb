#include <string.h>

struct account {
    const char *user, *password;
    int tries[3];
};

static int *volatile answer;

__attribute__((noinline)) int check(struct account account, const char *password, double limit)
{
    *answer = strcmp(account.password, password);
    return *answer + account.tries[0] + (limit > 1);
}

__attribute__((noinline)) int login(const char *user, const char *password, struct account *accounts)
{
    for (int number = 0; accounts[number].user; number++)
        if (strcmp(accounts[number].user, user) == 0)
            return check(accounts[number], password, 2.5) + accounts[number].tries[1];
    return -1;
}

int main(int argc, char **argv)
{
    struct account accounts[] = {{"eve", "hunter2", {1, 2, argc}}, {0}};
    return login(argc > 1 ? argv[1] : "eve", "guess", accounts) + accounts->tries[2];
}
