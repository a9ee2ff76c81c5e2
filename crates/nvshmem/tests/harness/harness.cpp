// Takes the place of NVSHMEM's host and proxy for several PEs, each a process. Loads the transport, connects, registers heaps
// in memory files, and makes the calls of the host and of kernels. Prints the first failed check and exits with 1, else with 0.
//
//   harness LIBRARY PES SCENARIO
#include "interface.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <csignal>
#include <deque>
#include <dirent.h>
#include <dlfcn.h>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <pthread.h>
#include <string>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

static int me, size;

#define CHECK(what)                                                                                     \
    do {                                                                                                \
        if (!(what)) {                                                                                  \
            fprintf(stderr, "PE %d: %s:%d: %s\n", me, __FILE__, __LINE__, #what);                       \
            _exit(1);                                                                                   \
        }                                                                                               \
    } while (0)

// The memory that the processes share before they have a network.
struct common {
    pthread_barrier_t barrier;
    char gathered[64][4096];
    // Whether PE 2 has executed all requests.
    std::atomic<bool> answered;
};
static common *shared;

static int meet(boot_handle *) {
    pthread_barrier_wait(&shared->barrier);
    return 0;
}

static int gather(const void *mine, void *all, int bytes, boot_handle *handle) {
    CHECK(bytes <= 4096);
    memcpy(shared->gathered[me], mine, bytes);
    meet(handle);
    for (int pe = 0; pe < size; pe++)
        memcpy((char *)all + (size_t)pe * bytes, shared->gathered[pe], bytes);
    meet(handle);
    return 0;
}

// The CUDA functions that NVSHMEM would pass; they count their calls.
static std::atomic<int> cuda_calls;
static int cuda_function() {
    cuda_calls++;
    return 0;
}

static int descriptors() {
    int count = 0;
    DIR *all = opendir("/proc/self/fd");
    while (readdir(all))
        count++;
    closedir(all);
    return count;
}

static const size_t CHUNK = 1 << 20;
static const size_t RESERVED = 64 * CHUNK;

struct proxy;

// The transport, and the symmetric heap over it.
struct world {
    std::unique_ptr<proxy> kernels;
    void *library;
    transport *t;
    boot_handle boot{};
    std::unordered_map<void *, void *> aliases;
    std::unordered_map<void *, size_t> egm;
    char *heap;
    // The address by which tests read its bytes; different from `heap` only for GPU memory.
    char *view;
    size_t used = 0;
    std::vector<uint64_t> bases;
    // By chunk, then by PE.
    std::vector<std::vector<mem_handle>> handles;
    std::mutex grows;
    std::vector<mem_handle> own;
    bool on_gpu = false;

    char *base_of(int pe) { return (char *)bases[pe]; }

    // Reserves addresses for the heap; on a GPU with memory.
    void reserve() {
        void *cuda = getenv("HARNESS_GPU") ? dlopen("libcuda.so.1", RTLD_NOW) : nullptr;
        CHECK(cuda || !getenv("HARNESS_GPU"));
        on_gpu = cuda;
        if (on_gpu) {
            auto allocate = (void *(*)(size_t, int))dlsym(cuda, "fake_allocate");
            auto bytes = (char *(*)(void *))dlsym(cuda, "fake_bytes");
            heap = (char *)allocate(RESERVED, 0);
            view = bytes(heap);
        } else {
            heap = view = (char *)mmap(nullptr, RESERVED, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        }
    }

    void unreserve() {
        if (on_gpu) {
            auto free = (int (*)(uint64_t))dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuMemFree_v2");
            CHECK(free((uint64_t)heap) == 0);
        } else {
            munmap(heap, RESERVED);
        }
    }

    // Adds chunks; all PEs call it.
    void grow(size_t chunks) {
        for (size_t i = 0; i < chunks; i++) {
            if (!on_gpu) {
                int file = memfd_create("heap", 0);
                CHECK(file >= 0 && ftruncate(file, CHUNK) == 0);
                void *at = mmap(heap + used, CHUNK, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
                CHECK(at == heap + used);
                close(file);
            }
            mem_handle mine;
            memset(&mine, 0, sizeof mine);
            CHECK(t->ops.get_mem_handle(&mine, heap + used, CHUNK, t, false) == 0);
            std::vector<mem_handle> all(size);
            gather(&mine, all.data(), sizeof mine, &boot);
            std::lock_guard<std::mutex> lock(grows);
            own.push_back(mine);
            handles.push_back(all);
            used += CHUNK;
        }
    }

    rma_memdesc remote(int pe, size_t offset) {
        std::lock_guard<std::mutex> lock(grows);
        return {base_of(pe) + offset, offset, &handles[offset / CHUNK][pe]};
    }

    rma_memdesc local(size_t offset) {
        std::lock_guard<std::mutex> lock(grows);
        return {heap + offset, offset, &handles[offset / CHUNK][me]};
    }

    int rma(int op, int pe, rma_memdesc far, rma_memdesc near, size_t bytes, int qp, bool waits = false) {
        rma_verb verb{op, !waits, 0, nullptr};
        rma_bytesdesc count{bytes, 1, 1, 1};
        return t->ops.rma(t, pe, verb, &far, &near, count, qp);
    }

    // Splits a transfer as NVSHMEM does: at the chunks of either side.
    int move(int op, int pe, size_t there, size_t here, size_t bytes, int qp, bool waits = false) {
        while (bytes > 0) {
            size_t piece = std::min({bytes, CHUNK - there % CHUNK, CHUNK - here % CHUNK});
            int status = rma(op, pe, remote(pe, there), local(here), piece, qp, waits);
            if (status)
                return status;
            there += piece, here += piece, bytes -= piece;
        }
        return 0;
    }

    int p(int pe, size_t there, uint64_t value, int bytes, int qp) {
        rma_verb verb{OP_P, 0, 0, nullptr};
        rma_memdesc far = remote(pe, there), near{&value, 0, nullptr};
        rma_bytesdesc count{1, bytes, 1, 1};
        return t->ops.rma(t, pe, verb, &far, &near, count, qp);
    }

    uint64_t g(int pe, size_t there, int bytes, int qp) {
        uint64_t value = 0xa5a5a5a5a5a5a5a5ull;
        rma_verb verb{OP_G, 0, 0, nullptr};
        rma_memdesc far = remote(pe, there), near{&value, 0, nullptr};
        CHECK(t->ops.rma(t, pe, verb, &far, &near, {1, bytes, 1, 1}, qp) == 0);
        CHECK(t->ops.quiet(t, pe, qp) == 0);
        return value;
    }

    int amo(int kind, int pe, size_t there, int bytes, uint64_t value, uint64_t expect, int qp, fetched *out = nullptr,
            uint64_t flag = 0, bool is_float = false) {
        amo_verb verb{};
        verb.desc = kind;
#if INTERFACE == 6
        verb.is_float = is_float;
#else
        (void)is_float;
#endif
        amo_memdesc word{};
        word.remote = remote(pe, there);
        word.val = value, word.cmp = expect;
        if (out) {
            size_t place = (char *)out - view;
            word.retptr = heap + place, word.retflag = flag;
            word.ret_handle = local(place).handle;
        }
        return t->ops.amo(t, pe, nullptr, verb, &word, {0, bytes}, qp);
    }

    int put_signal(int pe, const std::vector<std::array<size_t, 3>> &writes, size_t word, uint64_t value, int kind, int qp) {
        std::vector<rma_memdesc> far, near;
        std::vector<rma_bytesdesc> counts;
        for (auto &[there, here, bytes] : writes) {
            far.push_back(remote(pe, there));
            near.push_back(local(here));
            counts.push_back({bytes, 1, 1, 1});
        }
        amo_verb verb{};
        verb.desc = kind;
        amo_memdesc target{};
        target.remote = remote(pe, word);
        target.val = value;
        rma_verb write{OP_PUT, 1, 0, nullptr};
        return t->ops.put_signal(t, pe, write, far, near, counts, verb, &target, {0, 8}, qp);
    }

    // Writes of NICs to GPU memory may still be in flight. CUDA flushes them before a kernel reads; here a read by the NIC does.
    void flush() {
        if (getenv("HARNESS_FLUSH")) {
            CHECK(move(OP_GET, me, 0, 6 * CHUNK, 8, QP_HOST) == 0);
            CHECK(t->ops.quiet(t, me, QP_HOST) == 0);
        }
    }

    volatile uint64_t &word(size_t offset) { return *(volatile uint64_t *)(view + offset); }

    world();
    ~world();
};

// The proxy: a thread that makes progress, and executes the requests of kernels one after another.
struct proxy {
    world &w;
    std::atomic<bool> stop{false};
    std::mutex mutex;
    std::deque<std::function<void()>> asked;
    std::thread thread;

    explicit proxy(world &w) : w(w), thread([this] { run(); }) {}

    void run() {
        while (!stop) {
            CHECK(w.t->ops.progress(w.t) == 0);
            std::function<void()> next;
            {
                std::lock_guard<std::mutex> lock(mutex);
                if (!asked.empty()) {
                    next = std::move(asked.front());
                    asked.pop_front();
                }
            }
            if (next)
                next();
            else
                std::this_thread::yield();
        }
    }

    void ask(std::function<void()> what) {
        std::lock_guard<std::mutex> lock(mutex);
        asked.push_back(std::move(what));
    }

    // Requests a call, and waits for it.
    void call(std::function<void()> what) {
        std::promise<void> done;
        ask([&] {
            what();
            done.set_value();
        });
        done.get_future().wait();
    }

    ~proxy() {
        stop = true;
        thread.join();
    }
};

world::world() = default;
world::~world() = default;

// Polls until a condition holds, as a kernel does.
template <typename F> static void until(F f) {
    auto begun = std::chrono::steady_clock::now();
    while (!f()) {
        std::this_thread::yield();
        CHECK(std::chrono::steady_clock::now() - begun < std::chrono::seconds(20));
    }
}

static void fill(char *at, size_t bytes, unsigned seed) {
    for (size_t i = 0; i < bytes; i++)
        at[i] = (char)(i * 31 + seed * 17 + i / 251);
}

static bool is_filled(const char *at, size_t bytes, unsigned seed) {
    for (size_t i = 0; i < bytes; i++)
        if (at[i] != (char)(i * 31 + seed * 17 + i / 251))
            return false;
    return true;
}

static transport *init(world &w, const char *path) {
    w.library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!w.library)
        fprintf(stderr, "%s\n", dlerror());
    CHECK(w.library);
    auto init = (int (*)(transport **, void *, int))dlsym(w.library, "nvshmemt_init");
    CHECK(init);
    static void *table[64];
    for (void *&entry : table)
        entry = (void *)cuda_function;
    // An unknown version is rejected, and nothing is created.
    transport *made = nullptr;
    for (int unknown : {0, 30000, 50000, 70000, 990000})
        CHECK(init(&made, table, unknown) == 1 && !made);
    CHECK(init(nullptr, table, INTERFACE * 10000) == 1);
    CHECK(init(&made, table, INTERFACE * 10000 + 3) == 0 && made);
    CHECK(made->api_version == INTERFACE * 10000);
    CHECK(made->attr == 2 && made->is_successfully_initialized && !made->no_proxy && made->type == 0);
    CHECK(made->n_devices >= 1 && made->device_pci_paths && made->device_pci_paths[0][0] == '/');
    CHECK(!made->ops.enforce_cst && !made->ops.enforce_cst_at_target && !made->ops.add_device_remote_mem_handles);
    CHECK(made->ops.quiet(made, 0, QP_HOST) != 0); // not connected
    return made;
}

static void start(world &w, const char *path, size_t chunks) {
    transport *t = w.t = init(w, path);
    w.boot = {1, me, size, me, size, gather, nullptr, meet, nullptr, nullptr, nullptr, nullptr, nullptr};
    w.reserve();
    std::vector<int> caps(size);
    t->boot = &w.boot, t->heap_base = w.heap, t->cap = caps.data(), t->log2_cumem_granularity = 20;
    t->my_pe = me, t->n_pes = size, t->alias_va_map = &w.aliases, t->egm_map = &w.egm;
    for (int pe = 0; pe < size; pe++) {
        pe_info info{};
        info.pe = pe;
        CHECK(t->ops.can_reach_peer(&caps[pe], &info, t) == 0 && caps[pe] == (1 << 4 | 1 << 5 | 1 << 6));
    }
    int none = t->n_devices;
    std::vector<int> devices;
    for (int device = t->n_devices - 1; device >= 0; device--)
        devices.push_back(device), devices.push_back(device); // NVSHMEM's load balancing may choose a device twice
    CHECK(t->ops.connect_endpoints(t, &none, 1, nullptr, 0) == 1); // the device is out of range
    CHECK(t->ops.connect_endpoints(t, devices.data(), 0, nullptr, 0) == 1); // no device is chosen
    CHECK(t->ops.connect_endpoints(t, devices.data(), (int)devices.size(), nullptr, 0) == 0);
    CHECK(t->ops.connect_endpoints(t, devices.data(), 1, nullptr, 0) != 0); // a second time
    meet(nullptr);
    uint64_t base = (uint64_t)w.heap;
    w.bases.resize(size);
    gather(&base, w.bases.data(), 8, &w.boot);
    w.grow(chunks);
    meet(nullptr);
    w.kernels = std::make_unique<proxy>(w);
}

static void finish(world &w) {
    meet(nullptr);
    // No write may be in flight to memory that is released. A read into host memory leaves none, as the read of `flush` would.
    if (getenv("HARNESS_FLUSH")) {
        uint64_t word;
        CHECK(w.rma(OP_GET, me, w.remote(me, 0), {&word, 0, nullptr}, 8, QP_HOST) == 0);
        CHECK(w.t->ops.quiet(w.t, me, QP_HOST) == 0);
    }
    w.kernels.reset();
    meet(nullptr);
    for (mem_handle &handle : w.own)
        CHECK(w.t->ops.release_mem_handle(&handle, w.t) == 0);
    CHECK(w.own.empty() || w.t->ops.release_mem_handle(&w.own[0], w.t) == 1); // a second time
    CHECK(w.t->ops.finalize(w.t) == 0);
    if (void *gdr = dlopen("libgdrapi.so.2", RTLD_NOW | RTLD_NOLOAD)) {
        auto in_use = (int (*)())dlsym(gdr, "fake_gdr_in_use");
        CHECK(in_use() == 0);
        auto copied = (size_t (*)())dlsym(gdr, "fake_gdr_copied");
        CHECK(!getenv("HARNESS_COPIED") || copied() >= (size_t)atol(getenv("HARNESS_COPIED")));
    }
    if (w.on_gpu && getenv("HARNESS_COPIES")) {
        auto copies = (int (*)())dlsym(dlopen("libcuda.so.1", RTLD_NOW), "fake_copies");
        CHECK((copies() > 0) == (getenv("HARNESS_COPIES")[0] == '1'));
        auto flushes = (int (*)())dlsym(dlopen("libcuda.so.1", RTLD_NOW), "fake_flushes");
        CHECK((flushes() > 0) == (copies() > 0));
    }
    if (w.on_gpu && getenv("HARNESS_EXPORTS")) {
        auto exported = (int (*)())dlsym(dlopen("libcuda.so.1", RTLD_NOW), "fake_exported");
        CHECK((exported() >= (int)w.own.size()) == (getenv("HARNESS_EXPORTS")[0] == '1'));
    }
    w.unreserve();
    dlclose(w.library);
}

// Puts, gets and values by the host, from the heap and from other memory.
static void host_moves(world &w) {
    int next = (me + 1) % size, before = (me + size - 1) % size;
    size_t sizes[] = {1, 8, 1000, 65536, 3 * CHUNK / 2};
    for (size_t bytes : sizes) {
        fill(w.view, bytes, me + 1);
        CHECK(w.move(OP_PUT, next, 2 * CHUNK + 64, 0, bytes, QP_HOST) == 0);
        CHECK(w.t->ops.quiet(w.t, next, QP_HOST) == 0);
        meet(nullptr);
        w.flush();
        CHECK(is_filled(w.view + 2 * CHUNK + 64, bytes, before + 1));
        // Gets the bytes of the next PE.
        CHECK(w.move(OP_GET, next, 2 * CHUNK + 64, 4 * CHUNK + 8, bytes, QP_HOST) == 0);
        CHECK(w.t->ops.quiet(w.t, next, QP_HOST) == 0);
        w.flush();
        CHECK(is_filled(w.view + 4 * CHUNK + 8, bytes, me + 1));
        meet(nullptr);
    }
    // After a blocking call the bytes have arrived, and the source may change, without a quiet: `nvshmem_putmem` and
    // `nvshmem_getmem` of the host call none.
    for (size_t bytes : sizes) {
        fill(w.view, bytes, me + 101);
        CHECK(w.move(OP_PUT, next, 2 * CHUNK + 64, 0, bytes, QP_HOST, true) == 0);
        fill(w.view, bytes, 77);
        memset(w.view + 4 * CHUNK + 8, 0xee, bytes);
        CHECK(w.move(OP_GET, next, 2 * CHUNK + 64, 4 * CHUNK + 8, bytes, QP_HOST, true) == 0);
        w.flush();
        CHECK(is_filled(w.view + 4 * CHUNK + 8, bytes, me + 101));
        meet(nullptr);
        w.flush();
        CHECK(is_filled(w.view + 2 * CHUNK + 64, bytes, before + 101));
        meet(nullptr);
    }
    // Bytes that are not registered.
    std::vector<char> own(200000), back(200000);
    fill(own.data(), own.size(), 77 + me);
    rma_memdesc near{own.data(), 0, nullptr}, into{back.data(), 0, nullptr};
    CHECK(w.rma(OP_PUT, next, w.remote(next, 2 * CHUNK), near, own.size(), QP_HOST) == 0);
    CHECK(w.rma(OP_GET, next, w.remote(next, 2 * CHUNK), into, back.size(), QP_HOST) == 0);
    CHECK(w.t->ops.quiet(w.t, next, QP_HOST) == 0);
    CHECK(memcmp(own.data(), back.data(), own.size()) == 0);
    for (int bytes : {1, 2, 4, 8})
        CHECK(w.p(next, 16 + bytes * 8, 0x0102030405060708ull, bytes, QP_HOST) == 0);
    CHECK(w.t->ops.quiet(w.t, next, QP_HOST) == 0);
    // Values are read back; the rest of the word is unchanged.
    for (int bytes : {1, 2, 4, 8}) {
        uint64_t got = w.g(next, 16 + bytes * 8, bytes, QP_HOST), mask = bytes == 8 ? ~0ull : (1ull << bytes * 8) - 1;
        CHECK(got == ((0x0102030405060708ull & mask) | (0xa5a5a5a5a5a5a5a5ull & ~mask)));
    }
    meet(nullptr);
    w.flush();
    CHECK(w.view[24] == 8 && *(uint16_t *)(w.view + 32) == 0x0708 && *(uint32_t *)(w.view + 48) == 0x05060708);
    CHECK(w.word(80) == 0x0102030405060708ull);
    meet(nullptr);
}

// Every kind of atomic, by the proxy; fetched values are followed by their flags.
static void atomics(world &w) {
    int next = (me + 1) % size;
    size_t word = CHUNK + 256;
    fetched *slot = (fetched *)(w.view + 512);
    uint64_t flag = 1;
    // A request of a kernel, which the proxy executes later.
    auto ask = [&](int kind, int bytes, uint64_t value, bool is_float = false) {
        w.kernels->ask([&w, next, word, kind, bytes, value, is_float] {
            CHECK(w.amo(kind, next, word, bytes, value, 0, QP_DEFAULT, nullptr, 0, is_float) == 0);
        });
    };
    auto fetch = [&](int kind, int bytes, uint64_t value, uint64_t expect = 0, bool is_float = false) {
        slot->data = 0xabababababababab, slot->flag = 0;
        flag += 2;
        w.kernels->ask([&, kind, bytes, value, expect, is_float] {
            CHECK(w.amo(kind, next, word, bytes, value, expect, QP_DEFAULT, slot, flag, is_float) == 0);
        });
        until([&] { return slot->flag == flag; });
        return (uint64_t)slot->data;
    };
    for (int bytes : {8, 4}) {
        uint64_t mask = bytes == 8 ? ~0ull : 0xffffffffull;
        ask(AMO_SET, bytes, 5);
        CHECK(fetch(AMO_FETCH, bytes, 0) == 5);
        CHECK(fetch(AMO_FETCH_ADD, bytes, 10) == 5);
        CHECK(fetch(AMO_FETCH_INC, bytes, 0) == 15);
        ask(AMO_INC, bytes, 0);
        CHECK(fetch(AMO_FETCH_AND, bytes, 0x1c) == 17);
        ask(AMO_OR, bytes, 3);
        CHECK(fetch(AMO_FETCH_OR, bytes, 4) == 0x13);
        CHECK(fetch(AMO_FETCH_XOR, bytes, 0x11) == 0x17);
        ask(AMO_XOR, bytes, 1);
        ask(AMO_AND, bytes, 6);
        CHECK(fetch(AMO_COMPARE_SWAP, bytes, 99, 7) == 6);
        CHECK(fetch(AMO_COMPARE_SWAP, bytes, 99, 6) == 6);
        CHECK(fetch(AMO_SWAP, bytes, ~0ull) == 99);
        ask(AMO_ADD, bytes, 2);
        CHECK(fetch(AMO_FETCH, bytes, 0) == (1 & mask));
        ask(AMO_SIGNAL, bytes, 30);
        CHECK(fetch(AMO_FETCH, bytes, 0) == 30);
        ask(AMO_SIGNAL_SET, bytes, 40);
        ask(AMO_SIGNAL_ADD, bytes, 2);
        w.kernels->call([&] { CHECK(w.t->ops.quiet(w.t, next, QP_ALL) == 0); });
        CHECK(fetch(AMO_FETCH, bytes, 0) == 42);
    }
#if INTERFACE == 6
    double half = 0.5, three = 3;
    uint64_t bits;
    memcpy(&bits, &three, 8);
    ask(AMO_SET, 8, bits, true);
    memcpy(&bits, &half, 8);
    ask(AMO_ADD, 8, bits, true);
    bits = fetch(AMO_FETCH_ADD, 8, bits, 0, true);
    memcpy(&half, &bits, 8);
    CHECK(half == 3.5);
    // A swap exchanges bits: -0.0 differs from 0.0.
    double minus = -0.0, none = 0;
    uint64_t minus_bits, none_bits;
    memcpy(&minus_bits, &minus, 8), memcpy(&none_bits, &none, 8);
    fetch(AMO_SWAP, 8, minus_bits, 0, true);
    CHECK(fetch(AMO_COMPARE_SWAP, 8, bits, none_bits, true) == minus_bits);
    CHECK(fetch(AMO_COMPARE_SWAP, 8, bits, minus_bits, true) == minus_bits);
    CHECK(fetch(AMO_FETCH, 8, 0, 0, true) == bits);
    // Words of 4 bytes: the adjacent word is unchanged.
    auto narrow = [](float value) {
        uint32_t bits;
        memcpy(&bits, &value, 4);
        return (uint64_t)bits | 0xdeadbeef00000000ull;
    };
    ask(AMO_SET, 8, 0x1122334455667788ull);
    ask(AMO_SET, 4, narrow(1.5f), true);
    ask(AMO_ADD, 4, narrow(0.25f), true);
    CHECK(fetch(AMO_FETCH_ADD, 4, narrow(-1.0f), 0, true) == (narrow(1.75f) & 0xffffffff));
    CHECK(fetch(AMO_SWAP, 4, narrow(8.0f), 0, true) == (narrow(0.75f) & 0xffffffff));
    CHECK(fetch(AMO_COMPARE_SWAP, 4, narrow(2.0f), narrow(7.0f), true) == (narrow(8.0f) & 0xffffffff));
    CHECK(fetch(AMO_COMPARE_SWAP, 4, narrow(2.0f), narrow(8.0f), true) == (narrow(8.0f) & 0xffffffff));
    CHECK(fetch(AMO_FETCH, 8, 0) == (0x1122334400000000ull | (narrow(2.0f) & 0xffffffff)));
    w.kernels->call([&] { CHECK(w.amo(AMO_INC, next, word, 8, 0, 0, QP_DEFAULT, nullptr, 0, true) == 1); });
#endif
    // More atomics than may be in flight, from all PEs to one.
    enum { MANY = 1000 };
    meet(nullptr);
    fetched *slots = (fetched *)(w.view + 5 * CHUNK);
    memset(slots, 0, MANY * sizeof *slots);
    w.word(word) = 0;
    meet(nullptr);
    for (int i = 0; i < MANY; i++)
        w.kernels->ask([&, i] { CHECK(w.amo(AMO_FETCH_ADD, 0, word, 8, 1, 0, QP_DEFAULT, slots + i, 2 * i + 1) == 0); });
    uint64_t last = 0;
    for (int i = 0; i < MANY; i++) {
        until([&] { return slots[i].flag == (uint64_t)(2 * i + 1); });
        CHECK(i == 0 || slots[i].data > last);
        last = slots[i].data;
    }
    w.kernels->call([&] { CHECK(w.t->ops.quiet(w.t, 0, QP_ALL) == 0); });
    meet(nullptr);
    CHECK(me != 0 || w.word(word) == (uint64_t)MANY * size);
    meet(nullptr);
}

// Signals arrive after their put, in any number of pieces; and operations after a fence arrive after those before it.
static void signals(world &w) {
    int next = (me + 1) % size, before = (me + size - 1) % size;
    proxy &p = *w.kernels;
    size_t word = 7 * CHUNK + 8, ack = 7 * CHUNK + 16, data = CHUNK - 3000;
    for (unsigned round = 1; round <= 60; round++) {
        // Two chunks, one, or only the signal.
        size_t bytes = round % 3 == 0 ? 0 : round % 3 == 1 ? 6000 : 40000 * (round % 7);
        size_t first = std::min(bytes, (size_t)3000);
        fill(w.view + 2 * CHUNK, std::max(bytes, (size_t)30000), round * 7 + me);
        p.ask([&, bytes, first, round] {
            std::vector<std::array<size_t, 3>> writes;
            if (bytes)
                writes = {{data, 2 * CHUNK, first}, {data + first, 2 * CHUNK + first, bytes - first}};
            if (round % 5 == 0) {
                writes.clear();
                CHECK(w.move(OP_PUT_QP, next, data, 2 * CHUNK, bytes, QP_DEFAULT) == 0);
                CHECK(w.t->ops.fence(w.t, next, QP_DEFAULT, 0) == 0);
            }
            int kind = round % 2 ? AMO_SIGNAL_SET : AMO_SIGNAL_ADD;
            CHECK(w.put_signal(next, writes, word, kind == AMO_SIGNAL_SET ? round : 1, kind, QP_DEFAULT) == 0);
        });
        until([&] { return w.word(word) == round; });
        w.flush();
        std::atomic_thread_fence(std::memory_order_acquire);
        CHECK(is_filled(w.view + data, bytes, round * 7 + before));
        p.ask([&, round] { CHECK(w.p(before, ack, round, 8, 5) == 0); });
        until([&] { return w.flush(), w.word(ack) == round; });
        // Bytes and an atomic, a fence, and a word of a kernel's queue pair.
        p.ask([&, round] {
            for (int i = 0; i < 8; i++)
                CHECK(w.move(OP_PUT_QP, next, 3 * CHUNK + i * 30000, 2 * CHUNK, 30000, QP_DEFAULT) == 0);
            CHECK(w.amo(AMO_ADD, next, ack + 8, 8, 1, 0, QP_DEFAULT) == 0);
            CHECK(w.t->ops.fence(w.t, next, QP_DEFAULT, 0) == 0);
            CHECK(w.p(next, ack + 16, round, 8, QP_DEFAULT) == 0);
        });
        until([&] { return w.flush(), w.word(ack + 16) == round; });
        w.flush();
        std::atomic_thread_fence(std::memory_order_acquire);
        CHECK(w.word(ack + 8) == round);
        for (int i = 0; i < 8; i++)
            CHECK(is_filled(w.view + 3 * CHUNK + i * 30000, 30000, round * 7 + before));
        p.ask([&, round] { CHECK(w.p(before, ack + 24, round, 8, 5) == 0); });
        until([&] { return w.flush(), w.word(ack + 24) == round; });
    }
    p.call([&] {
        for (int pe = 0; pe < size; pe++)
            CHECK(w.t->ops.quiet(w.t, pe, QP_ALL) == 0);
    });
    int pairs[3] = {};
    CHECK(w.t->ops.connect_endpoints(w.t, nullptr, 0, pairs, 3) == 0);
    CHECK(pairs[0] > QP_DEFAULT && pairs[1] > pairs[0] && pairs[2] > pairs[1]);
    meet(nullptr);
}

// Memory that is added while the proxy uses other memory; released memory, whose numbers are reused; memory of the program.
static void growth(world &w) {
    int next = (me + 1) % size;
    std::atomic<bool> stop{false};
    proxy &p = *w.kernels;
    std::function<void()> stream = [&] {
        for (int i = 0; i < 8; i++)
            CHECK(w.move(OP_PUT, next, CHUNK, 0, 4096, QP_DEFAULT) == 0);
        CHECK(w.t->ops.quiet(w.t, next, QP_ALL) == 0);
        if (!stop)
            p.ask(stream);
    };
    p.ask(stream);
    size_t old = w.used;
    for (int i = 0; i < 12; i++)
        w.grow(2);
    fill(w.view + 64, 30000, 3 + me);
    CHECK(w.move(OP_PUT, next, w.used - 30000, 64, 30000, QP_HOST) == 0);
    CHECK(w.t->ops.quiet(w.t, next, QP_HOST) == 0);
    meet(nullptr);
    CHECK(is_filled(w.view + w.used - 30000, 30000, 3 + (me + size - 1) % size));
    CHECK(w.used == old + 24 * CHUNK);
    // A buffer of this PE alone, whose handle no other PE gets.
    std::vector<char> buffer(100000);
    mem_handle mine;
    CHECK(w.t->ops.get_mem_handle(&mine, buffer.data(), buffer.size(), w.t, true) == 0);
    rma_memdesc near{buffer.data() + 100, 0, &mine};
    CHECK(w.rma(OP_GET, next, w.remote(next, w.used - 30000), near, 30000, QP_HOST) == 0);
    CHECK(w.t->ops.quiet(w.t, next, QP_HOST) == 0);
    CHECK(is_filled(buffer.data() + 100, 30000, 3 + me));
    CHECK(w.t->ops.release_mem_handle(&mine, w.t) == 0);
    CHECK(w.rma(OP_PUT, next, w.remote(next, CHUNK), near, 8, QP_HOST) == 1); // the memory is not registered any more
    stop = true;
    p.call([] {});
    meet(nullptr);
    // Its number is reused for other memory, which the old handle does not reach.
    mem_handle first, second;
    std::vector<mem_handle> firsts(size), seconds(size);
    std::vector<uint64_t> where(size);
    alignas(8) static char one[4096], two[4096];
    CHECK(w.t->ops.get_mem_handle(&first, one, sizeof one, w.t, false) == 0);
    uint64_t at = (uint64_t)one;
    gather(&at, where.data(), 8, &w.boot);
    gather(&first, firsts.data(), sizeof first, &w.boot);
    uint64_t value = 11 + me;
    rma_memdesc far{(void *)where[next], 0, &firsts[next]}, stack{&value, 0, nullptr};
    CHECK(w.rma(OP_PUT, next, far, stack, 8, QP_HOST) == 0 && w.t->ops.quiet(w.t, next, QP_HOST) == 0);
    meet(nullptr);
    CHECK(w.t->ops.release_mem_handle(&first, w.t) == 0);
    CHECK(w.t->ops.get_mem_handle(&second, two, sizeof two, w.t, false) == 0);
    gather(&second, seconds.data(), sizeof second, &w.boot);
    at = (uint64_t)two;
    gather(&at, where.data(), 8, &w.boot);
    far = {(void *)where[next], 0, &seconds[next]};
    value += 100;
    CHECK(w.rma(OP_PUT, next, far, stack, 8, QP_HOST) == 0 && w.t->ops.quiet(w.t, next, QP_HOST) == 0);
    meet(nullptr);
    CHECK(*(uint64_t *)one == 11u + (me + size - 1) % size && *(uint64_t *)two == 111u + (me + size - 1) % size);
    CHECK(w.t->ops.release_mem_handle(&second, w.t) == 0);
    // Memory that the program maps into the heap has two addresses; other PEs know the one in the heap.
    char *in_heap = w.heap + w.used;
    w.aliases[(void *)1] = (void *)2;
    w.aliases[in_heap] = one;
    CHECK(w.t->ops.get_mem_handle(&first, in_heap, sizeof one, w.t, false) == 0);
    gather(&first, firsts.data(), sizeof first, &w.boot);
    far = {w.base_of(next) + w.used + 16, 0, &firsts[next]};
    CHECK(w.rma(OP_PUT, next, far, stack, 8, QP_HOST) == 0 && w.t->ops.quiet(w.t, next, QP_HOST) == 0);
    meet(nullptr);
    CHECK(*(uint64_t *)(one + 16) == 111u + (me + size - 1) % size);
    CHECK(w.t->ops.release_mem_handle(&first, w.t) == 0);
    meet(nullptr);
}

// Invalid calls are rejected with one line each, and have no effect.
static void misuse(world &w) {
    int next = (me + 1) % size;
    CHECK(w.rma(OP_PUT, size, w.remote(next, 0), w.local(0), 8, QP_HOST) == 1);
    CHECK(w.rma(OP_PUT, -1, w.remote(next, 0), w.local(0), 8, QP_HOST) == 1);
    CHECK(w.rma(77, next, w.remote(next, 0), w.local(0), 8, QP_HOST) == 1);
    CHECK(w.rma(OP_PUT, next, w.remote(next, CHUNK - 4), w.local(0), 8, QP_HOST) == 1); // beyond its chunk
    CHECK(w.rma(OP_PUT, next, w.remote(next, 0), w.local(CHUNK - 4), 8, QP_HOST) == 1);
    CHECK(w.rma(OP_PUT, next, {nullptr, 0, nullptr}, w.local(0), 8, QP_HOST) == 1);
    CHECK(w.rma(OP_PUT, next, w.remote(next, 0), {nullptr, 0, nullptr}, 8, QP_HOST) == 1);
    mem_handle foreign{};
    CHECK(w.rma(OP_PUT, next, {w.heap, 0, &foreign}, w.local(0), 8, QP_HOST) == 1);
    CHECK(w.amo(AMO_ADD, next, 4, 8, 1, 0, QP_DEFAULT) == 1); // not aligned
    CHECK(w.amo(AMO_ADD, next, 8, 2, 1, 0, QP_DEFAULT) == 1);
    CHECK(w.amo(99, next, 8, 8, 1, 0, QP_DEFAULT) == 1);
    CHECK(w.put_signal(next, {}, 8, 1, AMO_ADD, QP_DEFAULT) == 1); // no descriptor of a signal
    CHECK(w.t->ops.get_mem_handle(nullptr, w.heap, 8, w.t, false) == 1);
    CHECK(w.t->ops.get_mem_handle(&foreign, nullptr, 8, w.t, false) == 1);
    CHECK(w.t->ops.get_mem_handle(&foreign, w.heap, 0, w.t, false) == 1);
    CHECK(w.t->ops.release_mem_handle(&foreign, w.t) == 1);
    CHECK(w.t->ops.progress(nullptr) == 1 && w.t->ops.finalize(nullptr) == 1);
    rma_verb verb{OP_PUT, 1, 0, nullptr};
    CHECK(w.t->ops.rma(w.t, next, verb, nullptr, nullptr, {1, 8, 1, 1}, QP_HOST) == 1);
    rma_memdesc far = w.remote(next, 0), near = w.local(0);
    CHECK(w.t->ops.rma(w.t, next, verb, &far, &near, {SIZE_MAX / 2, 8, 1, 1}, QP_HOST) == 1);
    CHECK(w.t->ops.rma(w.t, next, verb, &far, &near, {1, -8, 1, 1}, QP_HOST) == 1);
    CHECK(w.t->ops.rma(w.t, next, verb, &far, &near, {4, 8, 2, 1}, QP_HOST) == 3); // strides
    CHECK(w.t->ops.rma(w.t, next, verb, &far, &near, {4, 8, 1, -1}, QP_HOST) == 3);
    CHECK(w.t->ops.rma(w.t, next, verb, &far, &near, {1, 8, 2, 2}, QP_HOST) == 0); // strides of one element have no meaning
    CHECK(w.t->ops.quiet(w.t, next, QP_HOST) == 0);
    CHECK(w.rma(OP_PUT, next, far, near, 0, QP_HOST) == 0); // zero bytes are always valid
    CHECK(w.t->ops.quiet(w.t, next, QP_ALL) == 0 && w.t->ops.quiet(w.t, next, QP_HOST) == 0);
    CHECK(w.t->ops.show_info(w.t, 0) == 0);
    meet(nullptr);
}

// A quiet delivers the values of its PE, although another PE has not replied to many earlier requests.
static void stopped(world &w) {
    // A NIC executes few atomics of a link at a time, those of PE 2 without further calls of PE 0. PE 1 has room for 48.
    const int OF_STOPPED = 40, ALL = 48;
    size_t word = CHUNK + 64;
    fetched *slots = (fetched *)(w.view + 5 * CHUNK);
    memset(slots, 0, (ALL + 1) * sizeof *slots);
    w.word(word) = 100 + me;
    shared->answered = false;
    int mine = getpid();
    std::vector<int> pids(size);
    // Creates the links before a PE stops.
    for (int pe = 0; pe < size; pe++)
        w.kernels->call([&] { CHECK(w.amo(AMO_FETCH, pe, word, 8, 0, 0, QP_DEFAULT, slots + ALL, 1) == 0 && w.t->ops.quiet(w.t, pe, QP_ALL) == 0); });
    gather(&mine, pids.data(), sizeof mine, &w.boot);
    if (me == 0) {
        kill(pids[1], SIGSTOP);
        for (int i = 0; i < OF_STOPPED; i++)
            w.kernels->call([&] { CHECK(w.amo(AMO_FETCH, 1, word, 8, 0, 0, QP_DEFAULT, slots + i, 7) == 0); });
        w.kernels->call([&] {
            for (int i = OF_STOPPED; i < ALL; i++)
                CHECK(w.amo(AMO_FETCH_INC, 2, word, 8, 0, 0, QP_DEFAULT, slots + i, 7) == 0);
            // All replies are in flight before the quiet begins, so it ends at once; it still delivers the values.
            until([] { return shared->answered.load(); });
            CHECK(w.t->ops.quiet(w.t, 2, QP_ALL) == 0);
            for (int i = OF_STOPPED; i < ALL; i++)
                CHECK(slots[i].data == 102 + (uint64_t)(i - OF_STOPPED) && slots[i].flag == 7);
            CHECK(slots[0].flag == 0);
        });
        kill(pids[1], SIGCONT);
        w.kernels->call([&] { CHECK(w.t->ops.quiet(w.t, 1, QP_ALL) == 0); });
        for (int i = 0; i < OF_STOPPED; i++)
            CHECK(slots[i].data == 101 && slots[i].flag == 7);
    }
    if (me == 2) {
        until([&] { return w.word(word) == 102 + ALL - OF_STOPPED; });
        shared->answered = true;
    }
    meet(nullptr);
}

// Registers until a registration fails. Earlier registrations still work, and after a release there is room again.
static void many(world &w) {
    int next = (me + 1) % size;
    std::vector<std::array<uint64_t, 8>> buffers(300);
    std::vector<mem_handle> made;
    for (auto &buffer : buffers) {
        mem_handle one;
        if (w.t->ops.get_mem_handle(&one, buffer.data(), sizeof buffer, w.t, true))
            break;
        made.push_back(one);
    }
    CHECK(made.size() + w.own.size() == 255);
    auto works = [&](size_t at) {
        buffers[at][3] = at * 7 + me;
        CHECK(w.rma(OP_PUT, next, w.remote(next, 64), {&buffers[at][3], 0, &made[at]}, 8, QP_HOST) == 0);
        CHECK(w.t->ops.quiet(w.t, next, QP_HOST) == 0 && w.g(next, 64, 8, QP_HOST) == at * 7 + me);
    };
    works(0), works(made.size() - 1);
    size_t middle = made.size() / 2;
    CHECK(w.t->ops.release_mem_handle(&made[middle], w.t) == 0);
    CHECK(w.t->ops.get_mem_handle(&made[middle], buffers[middle].data(), sizeof buffers[middle], w.t, true) == 0);
    works(middle);
    mem_handle more;
    CHECK(w.t->ops.get_mem_handle(&more, buffers[299].data(), sizeof buffers[299], w.t, true) != 0);
    for (mem_handle &one : made)
        CHECK(w.t->ops.release_mem_handle(&one, w.t) == 0);
    meet(nullptr);
}

// GPU memory without a handle is rejected, also where it would be copied; host memory is not.
static void nameless(world &w) {
    CHECK(w.on_gpu);
    int next = (me + 1) % size;
    for (size_t bytes : {8, 100000}) {
        for (int op : {OP_PUT, OP_GET, OP_P, OP_G})
            CHECK(w.rma(op, next, w.remote(next, 0), {w.heap + 64, 0, nullptr}, bytes, QP_HOST) == 1);
        std::vector<char> own(bytes), back(bytes);
        fill(own.data(), bytes, 9 + me);
        CHECK(w.rma(OP_PUT, next, w.remote(next, 64), {own.data(), 0, nullptr}, bytes, QP_HOST) == 0);
        CHECK(w.t->ops.quiet(w.t, next, QP_HOST) == 0);
        CHECK(w.rma(OP_GET, next, w.remote(next, 64), {back.data(), 0, nullptr}, bytes, QP_HOST) == 0);
        CHECK(w.t->ops.quiet(w.t, next, QP_HOST) == 0);
        CHECK(own == back);
    }
    meet(nullptr);
}

// A PE dies during transfers. Waits for it fail within the limit of silence.
static void death(world &w) {
    int next = (me + 1) % size;
    CHECK(w.move(OP_PUT, next, CHUNK, 0, 8, QP_DEFAULT) == 0 && w.t->ops.quiet(w.t, next, QP_ALL) == 0);
    meet(nullptr);
    if (me == 1)
        kill(getpid(), SIGKILL);
    if (me == 0) {
        auto begun = std::chrono::steady_clock::now();
        int status = 0;
        while (!status) {
            status = w.move(OP_PUT, 1, CHUNK, 0, 4096, QP_DEFAULT);
            status = status ? status : w.t->ops.quiet(w.t, 1, QP_ALL);
            CHECK(std::chrono::steady_clock::now() - begun < std::chrono::seconds(30));
        }
        CHECK(status == 7);
    }
    _exit(0);
}

// Batch hints of the host and the proxy: puts arrive, also those of an unfinished batch, and blocking calls do not wait
// for its end.
static void batches(world &w) {
#if INTERFACE == 6
    int next = (me + 1) % size, before = (me + size - 1) % size;
    bool hints = w.t->ops.batch_hint;
    CHECK(hints == !getenv("NVSHMEM_LIBFABRIC_DISABLE_BATCH_RMA"));
    auto hint = [&](int qp, unsigned flags) {
        if (hints)
            w.t->ops.batch_hint(w.t, qp, flags);
    };
    for (unsigned round = 1; round <= 3; round++) {
        bool ends = round != 2;
        fill(w.view, 32 * 64, me * 10 + round);
        meet(nullptr);
        w.kernels->call([&] {
            for (size_t put = 0; put < 32; put++) {
                hint(QP_DEFAULT, put < 31 || !ends);
                CHECK(w.move(OP_PUT, next, 2 * CHUNK + put * 64, put * 64, 64, QP_DEFAULT) == 0);
            }
        });
        if (round == 1)
            w.kernels->call([&] { CHECK(w.t->ops.quiet(w.t, next, QP_ALL) == 0); });
        until([&] {
            std::atomic_thread_fence(std::memory_order_seq_cst);
            return is_filled(w.view + 2 * CHUNK, 32 * 64, before * 10 + round);
        });
        meet(nullptr);
    }
    fill(w.view, 64, me + 77);
    hint(QP_HOST, 1);
    CHECK(w.move(OP_PUT, next, 3 * CHUNK, 0, 64, QP_HOST, true) == 0);
    meet(nullptr);
    CHECK(is_filled(w.view + 3 * CHUNK, 64, before + 77));
    hint(QP_HOST, 0);
    meet(nullptr);
#else
    (void)w;
#endif
}

// A kernel that runs until its requested values have arrived: the proxy makes no call that waits for it. Values on the proxy's
// stack are put without a query of the driver.
static void kernels(world &w) {
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    auto kernel = (void (*)(int))dlsym(cuda, "fake_kernel");
    auto looks = (int (*)())dlsym(cuda, "fake_looks");
    int next = (me + 1) % size, before = (me + size - 1) % size;
    auto *values = (fetched *)(w.view + 5 * CHUNK);
    memset(w.view + 5 * CHUNK, 0, 4096);
    w.word(3 * CHUNK) = w.word(3 * CHUNK + 8) = w.word(3 * CHUNK + 64) = 0;
    meet(nullptr);
    kernel(1);
    for (int i = 0; i < 32; i++)
        w.kernels->ask([&w, next, values, i] {
            CHECK(w.amo(AMO_FETCH_ADD, next, 3 * CHUNK, 8, 1, 0, QP_DEFAULT, &values[i], 1) == 0);
            CHECK(w.put_signal(next, {{4 * CHUNK, 0, 64}}, 3 * CHUNK + 8, 1, AMO_SIGNAL_ADD, QP_DEFAULT) == 0);
        });
    for (int i = 0; i < 32; i++)
        until([&] { return values[i].flag == 1; });
    until([&] { return w.word(3 * CHUNK + 8) == 32; });
    kernel(0);
    meet(nullptr);
    int asked = looks();
    w.kernels->call([&] {
        for (uint64_t i = 1; i <= 1000; i++)
            CHECK(w.p(next, 3 * CHUNK + 64, (uint64_t)me << 32 | i, 8, QP_DEFAULT) == 0);
        CHECK(w.t->ops.quiet(w.t, next, QP_ALL) == 0);
    });
    CHECK(looks() - asked < 10);
    meet(nullptr);
    w.flush();
    CHECK(w.word(3 * CHUNK + 64) == ((uint64_t)before << 32 | 1000));
    meet(nullptr);
}

static int run(const char *path, const std::string &what) {
    int before = descriptors();
    // Runs twice in one process, as a program may.
    for (int time = 0; time < (what == "death" ? 1 : 2); time++) {
        world w;
        start(w, path, 8);
        if (what == "all" || what == "moves") host_moves(w);
        if (what == "all" || what == "atomics") atomics(w);
        if (what == "all" || what == "signals") signals(w);
        if (what == "all" || what == "growth") growth(w);
        if (what == "all" || what == "misuse") misuse(w);
        if (what == "all" || what == "batches") batches(w);
        if (what == "kernels") kernels(w);
        if (what == "stopped") stopped(w);
        if (what == "many") many(w);
        if (what == "nameless") nameless(w);
        if (what == "death") death(w);
        finish(w);
        meet(nullptr);
        if (time == 0)
            before = descriptors();
    }
    CHECK(descriptors() <= before);
    CHECK(cuda_calls == 0);
    return 0;
}

int main(int argc, char **argv) {
    if (argc != 4)
        return 2;
    size = atoi(argv[2]);
    shared = (common *)mmap(nullptr, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_barrierattr_t attributes;
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&shared->barrier, &attributes, size);
    std::vector<pid_t> pes;
    for (me = 0; me < size; me++) {
        pid_t pe = fork();
        if (pe == 0)
            _exit(run(argv[1], argv[3]));
        pes.push_back(pe);
    }
    // A failed process would leave the others waiting.
    bool dies = std::string(argv[3]) == "death";
    for (size_t left = pes.size(); left > 0; left--) {
        int status;
        pid_t ended = wait(&status);
        bool well = WIFEXITED(status) ? WEXITSTATUS(status) == 0 : dies && ended == pes[1] && WTERMSIG(status) == SIGKILL;
        if (!well) {
            fprintf(stderr, "PE of process %d ended with %#x\n", ended, status);
            for (pid_t pe : pes)
                kill(pe, SIGKILL);
            return 1;
        }
    }
    return 0;
}
