// NVSHMEM's interface for remote transports, written again for tests from its public header: with INTERFACE=4 that of 3.5,
// with INTERFACE=6 that of 3.7. Tests compare the layouts of the library with those of this compiler.
#pragma once
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

struct transport;
struct mem_handle { char reserved[512]; };
struct pe_info { int pcie[3]; int pe; uint64_t host_hash; char uuid[16]; };
struct rma_verb { int desc, is_nbi, is_stream; void *stream; };
struct rma_memdesc { void *ptr; uint64_t offset; mem_handle *handle; };
struct rma_bytesdesc { size_t nelems; int elembytes; ptrdiff_t srcstride, deststride; };
#if INTERFACE == 4
struct amo_verb { int desc, is_fetch, is_val, is_cmp; };
#else
struct amo_verb { int desc, is_fetch, is_val, is_cmp, is_float; };
#endif
struct amo_memdesc {
    rma_memdesc remote;
    uint64_t retflag;
    void *retptr, *valptr, *cmpptr;
    uint64_t val, cmp;
    mem_handle *ret_handle;
};
struct amo_bytesdesc { int name_type, elembytes; };
struct fetched { volatile uint64_t data, flag; };

struct boot_handle {
    int version, pg_rank, pg_size, mype_node, npes_node;
    int (*allgather)(const void *, void *, int, boot_handle *);
    int (*alltoall)(const void *, void *, int, boot_handle *);
    int (*barrier)(boot_handle *);
    void (*global_exit)(int);
    int (*finalize)(boot_handle *);
    int (*show_info)(boot_handle *, int);
    void *pre_init_ops, *comm_state;
};

struct host_ops {
    int (*can_reach_peer)(int *, pe_info *, transport *);
    int (*connect_endpoints)(transport *, int *, int, int *, int);
    int (*get_mem_handle)(mem_handle *, void *, size_t, transport *, bool);
    int (*release_mem_handle)(mem_handle *, transport *);
    int (*finalize)(transport *);
    int (*show_info)(transport *, int);
    int (*progress)(transport *);
    int (*rma)(transport *, int, rma_verb, rma_memdesc *, rma_memdesc *, rma_bytesdesc, int);
    int (*amo)(transport *, int, void *, amo_verb, amo_memdesc *, amo_bytesdesc, int);
    int (*fence)(transport *, int, int, int);
    int (*quiet)(transport *, int, int);
    int (*put_signal)(transport *, int, rma_verb, std::vector<rma_memdesc> &, std::vector<rma_memdesc> &,
                      std::vector<rma_bytesdesc> &, amo_verb, amo_memdesc *, amo_bytesdesc, int);
    int (*enforce_cst)(transport *);
    int (*enforce_cst_at_target)(transport *);
    int (*add_device_remote_mem_handles)(transport *, int, mem_handle *, uint64_t, size_t);
#if INTERFACE == 6
    void (*batch_hint)(transport *, int, unsigned);
#endif
};

struct transport {
    int api_version, type;
    int *cap;
    boot_handle *boot;
    void *state, *shared_state, *cache;
    char **device_pci_paths;
    int attr, n_devices;
    bool atomics_complete_on_quiet, is_successfully_initialized, no_proxy;
    void *heap_base;
    size_t log2_cumem_granularity;
    uint64_t max_op_len;
    uint32_t atomic_host_endian_min_size;
    int index, my_pe, n_pes;
    std::unordered_map<void *, void *> *alias_va_map;
    std::unordered_map<void *, size_t> *egm_map;
    host_ops ops;
};

static_assert(sizeof(transport) == (INTERFACE == 4 ? 248 : 256), "transport");
static_assert(offsetof(transport, ops) == 128, "transport.ops");
static_assert(sizeof(amo_memdesc) == 80 && sizeof(rma_bytesdesc) == 32 && sizeof(boot_handle) == 88, "descriptors");
static_assert(sizeof(std::vector<rma_memdesc>) == 24 && sizeof(std::unordered_map<void *, void *>) == 56, "libstdc++");

enum { OP_PUT = 1, OP_P = 2, OP_GET = 4, OP_G = 5, OP_PUT_QP = 101 };
enum {
    AMO_INC = 2, AMO_SET, AMO_ADD, AMO_AND, AMO_OR, AMO_XOR, AMO_SIGNAL, AMO_SIGNAL_SET, AMO_SIGNAL_ADD,
    AMO_FETCH = 12, AMO_FETCH_INC, AMO_FETCH_ADD, AMO_FETCH_AND, AMO_FETCH_OR, AMO_FETCH_XOR, AMO_SWAP, AMO_COMPARE_SWAP,
};
enum { QP_HOST = 0, QP_DEFAULT = 1, QP_ALL = INT32_MAX };
