/* Static variables keep their initial values, are symmetric, and are private to a child after a fork. */
#include "check.h"
#include <sys/wait.h>
#include <unistd.h>

int made = 42;
static char zeros[100000];
static const char *text = "kept";
int global[4] = {1, 2, 3, 4};

int main(void) {
    made = 43;
    zeros[77777] = 9;
    shmem_init();
    static int inner = 5;
    int me = shmem_my_pe(), n = shmem_n_pes(), next = (me + 1) % n, before = (me + n - 1) % n;
    CHECK(made == 43 && zeros[77777] == 9 && zeros[0] == 0 && strcmp(text, "kept") == 0 && global[3] == 4 && inner == 5);
    shmem_barrier_all();
    shmem_p(&inner, 1000 + me, next);
    shmem_p(&global[2], 2000 + me, next);
    shmem_barrier_all();
    CHECK(inner == 1000 + before && global[2] == 2000 + before && global[1] == 2);
    shmem_barrier_all();
    pid_t child = fork();
    if (child == 0) {
        /* The child changes its own copy, and does not see changes by other PEs. */
        int right = inner == 1000 + before;
        inner = -1;
        made = -1;
        zeros[5] = 7;
        usleep(100000);
        _exit(right && inner == -1 && zeros[5] == 7 ? 0 : 1);
    }
    usleep(20000);
    CHECK(inner == 1000 + before && made == 43 && zeros[5] == 0);
    shmem_barrier_all();
    shmem_p(&inner, 3000 + me, next);
    shmem_barrier_all();
    CHECK(inner == 3000 + before);
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    FILE *other = popen("echo still", "r");
    char line[16] = "";
    CHECK(other && fgets(line, sizeof line, other) && strcmp(line, "still\n") == 0);
    pclose(other);
    shmem_finalize();
    return failures != 0;
}
