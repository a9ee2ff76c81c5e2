/* Initialization, queries, and finalization. */
#include "check.h"

static int here;

int main(void) {
    int provided = -1, major = 0, minor = 0;
    char name[SHMEM_MAX_NAME_LEN];
    CHECK(shmem_init_thread(SHMEM_THREAD_MULTIPLE, &provided) == 0 && provided == SHMEM_THREAD_MULTIPLE);
    shmem_query_thread(&provided);
    CHECK(provided == SHMEM_THREAD_MULTIPLE);
    /* A second call changes nothing. */
    shmem_init();
    shmem_query_thread(&provided);
    CHECK(provided == SHMEM_THREAD_MULTIPLE);
    CHECK(shmem_init_thread(SHMEM_THREAD_FUNNELED, &provided) == 0 && provided == SHMEM_THREAD_MULTIPLE);
    int me = shmem_my_pe(), n = shmem_n_pes(), local = 0;
    CHECK(me >= 0 && me < n && _my_pe() == me && _num_pes() == n);
    shmem_info_get_version(&major, &minor);
    shmem_info_get_name(name);
    CHECK(major == SHMEM_MAJOR_VERSION && minor == SHMEM_MINOR_VERSION && strcmp(name, SHMEM_VENDOR_STRING) == 0);
    int *heap = shmem_malloc(sizeof *heap);
    for (int pe = 0; pe < n; pe++) {
        CHECK(shmem_pe_accessible(pe) && shmem_addr_accessible(heap, pe) && shmem_addr_accessible(&here, pe));
        CHECK(!shmem_addr_accessible(&local, pe) && shmem_ptr(&local, pe) == NULL);
        int *there = shmem_ptr(heap, pe);
        if (there) *there = 100 + me;
    }
    CHECK(!shmem_pe_accessible(-1) && !shmem_pe_accessible(n) && shmem_ptr(heap, n) == NULL);
    CHECK(shmem_ptr(heap, me) == heap && shmem_ptr(&here, me) == &here);
    shmem_barrier_all();
    CHECK(*heap >= 100 && *heap < 100 + n);
    shmem_pcontrol(1);
    shmem_free(heap);
    shmem_finalize();
    shmem_finalize();
    return failures != 0;
}
