/* Threads that fork concurrently: each child has its own static variables. With an argument, memory for a child's
   variables is exhausted, and the child ends. */
#include "check.h"
#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 4, ROUNDS = 50 };

static volatile long words[THREADS];
static unsigned char large[1 << 20];

static void *forks(void *given) {
    long at = (long)given;
    for (int round = 0; round < ROUNDS; round++) {
        words[at] = 100 + round;
        pid_t child = fork();
        if (child == 0) {
            int right = words[at] == 100 + round;
            for (int of = 0; of < THREADS; of++) words[of] = -1;
            large[round * 4096] = 1;
            _exit(right ? 0 : 3);
        }
        int status = -1;
        CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
        CHECK(words[at] == 100 + round && large[round * 4096] == 0);
    }
    return NULL;
}

static void without_room(void) {
    /* The current size, and half of the size of a copy. */
    unsigned long pages = 0;
    FILE *sizes = fopen("/proc/self/statm", "r");
    CHECK(sizes && fscanf(sizes, "%lu", &pages) == 1);
    fclose(sizes);
    struct rlimit old;
    getrlimit(RLIMIT_AS, &old);
    setrlimit(RLIMIT_AS, &(struct rlimit){pages * 4096 + sizeof large / 2, old.rlim_max});
    pid_t child = fork();
    if (child == 0) {
        words[0] = -1;
        _exit(0);
    }
    setrlimit(RLIMIT_AS, &old);
    int status = -1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 1);
    CHECK(words[0] == 0);
}

int main(int argc, char **argv) {
    (void)argv;
    shmem_init();
    pthread_t all[THREADS];
    if (argc > 1) {
        without_room();
    } else {
        for (long at = 0; at < THREADS; at++) pthread_create(&all[at], NULL, forks, (void *)at);
        for (int at = 0; at < THREADS; at++) pthread_join(all[at], NULL);
    }
    shmem_finalize();
    return failures != 0;
}
