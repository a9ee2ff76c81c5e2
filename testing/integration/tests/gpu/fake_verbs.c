/* RDMA devices that are none, in place of libibverbs.so.1: queue pairs of one process that are wired to each other. Bytes
 * are moved when somebody posts or polls. What a device writes into memory of a GPU is held back until it reads a byte of
 * such memory, as a bus may do it.
 * FAKE_VERBS_DEVICES: how many (1). FAKE_VERBS_DMABUF=0: they register no dma-bufs. FAKE_VERBS_INLINE: inline bytes of a
 * request, at most (512). FAKE_VERBS_BLOCKS: blocks of 64 bytes in a queue of requests, at most (65536), of which a request takes as
 * many as mlx5's does. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#undef ibv_reg_mr
#undef ibv_query_port
#undef ibv_get_device_list

#define PAGE 4096
#define MAGIC 0x7472756e6b6c6e65ull
#define MOST 4096

struct region {
    struct ibv_mr mr;
    uint64_t from;
    char *bytes;
    int access, of_device;
};

struct work {
    struct work *next;
    uint64_t id, remote;
    uint32_t rkey, imm, len, count;
    enum ibv_wr_opcode opcode;
    unsigned flags;
    struct ibv_sge sges[4];
    char inlined[512];
};

struct list {
    struct work *first, **last;
};

struct queue {
    struct ibv_cq cq;
    struct ibv_wc *wcs;
    unsigned head, tail, size;
};

struct pair {
    struct ibv_qp qp;
    uint32_t peer, inlines;
    struct list sends, receives;
};

struct held {
    struct held *next;
    char *to;
    uint32_t len;
    char bytes[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct region *regions[MOST];
static struct pair *pairs[MOST];
/* Behind the last of them that was ever there. */
static uint32_t pairs_end = 1;
static struct held *held[8], **held_last[8];
static int broken = -1;
static int device_reads, host_reads, dmabufs;

/* Reads of memory of a GPU, which are flushes; reads of memory of the host; dma-bufs that are registered. */
int fake_device_reads(void) { return device_reads; }
int fake_host_reads(void) { return host_reads; }
int fake_dmabufs(void) { return dmabufs; }

/* Whether a device holds back bytes that it was to write into memory of a GPU. */
int fake_holds(int device) { return held[device] != NULL; }

static int number_of(const char *name, int usual) {
    const char *text = getenv(name);
    return text ? atoi(text) : usual;
}

/* ---------------------------------------------------------------------------------------------- devices and ports */

static struct ibv_device devices[8];

struct ibv_device **ibv_get_device_list(int *count) {
    *count = number_of("FAKE_VERBS_DEVICES", 1);
    struct ibv_device **list = calloc((size_t)*count + 1, sizeof *list);
    for (int i = 0; i < *count; i++) {
        devices[i].transport_type = IBV_TRANSPORT_IB;
        devices[i].node_type = IBV_NODE_CA;
        strcpy(devices[i].name, "fake0");
        devices[i].name[4] = (char)('0' + i);
        list[i] = &devices[i];
    }
    return list;
}

void ibv_free_device_list(struct ibv_device **list) { free(list); }
const char *ibv_get_device_name(struct ibv_device *device) { return device->name; }

static int poll_cq(struct ibv_cq *, int, struct ibv_wc *);
static int post_send(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **);
static int post_recv(struct ibv_qp *, struct ibv_recv_wr *, struct ibv_recv_wr **);
static int notify(struct ibv_cq *cq, int solicited) { return (void)cq, (void)solicited, 0; }

struct ibv_context *ibv_open_device(struct ibv_device *device) {
    struct ibv_context *context = calloc(1, sizeof *context);
    context->device = device;
    context->async_fd = eventfd(0, EFD_NONBLOCK);
    context->ops.poll_cq = poll_cq;
    context->ops.post_send = post_send;
    context->ops.post_recv = post_recv;
    context->ops.req_notify_cq = notify;
    return context;
}

int ibv_close_device(struct ibv_context *context) {
    close(context->async_fd);
    free(context);
    return 0;
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr) {
    memset(attr, 0, sizeof *attr);
    attr->phys_port_cnt = 1;
    attr->max_qp = attr->max_cq = attr->max_mr = 2000;
    attr->max_qp_wr = 32768;
    attr->max_cqe = 65536;
    attr->max_sge = 4;
    attr->max_qp_rd_atom = attr->max_qp_init_rd_atom = 16;
    attr->sys_image_guid = 1 + (uint64_t)(context->device - devices);
    return 0;
}

int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *told) {
    struct ibv_port_attr *attr = (struct ibv_port_attr *)told;
    (void)context, (void)port;
    memset(attr, 0, sizeof *attr);
    attr->state = IBV_PORT_ACTIVE;
    attr->active_mtu = attr->max_mtu = IBV_MTU_4096;
    attr->gid_tbl_len = attr->pkey_tbl_len = 1;
    attr->max_msg_sz = 1u << 30;
    attr->link_layer = IBV_LINK_LAYER_ETHERNET;
    attr->active_speed = 64, attr->active_width = 2;
    return 0;
}

int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid) {
    (void)port, (void)index;
    memset(gid, 0, sizeof *gid);
    gid->raw[10] = gid->raw[11] = 0xff, gid->raw[12] = 10;
    gid->raw[15] = (uint8_t)(1 + (context->device - devices));
    return 0;
}

int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index, struct ibv_gid_entry *entry,
                      uint32_t flags, size_t size) {
    (void)flags, (void)size;
    memset(entry, 0, sizeof *entry);
    entry->gid_index = index, entry->port_num = port, entry->gid_type = IBV_GID_TYPE_ROCE_V2;
    return ibv_query_gid(context, (uint8_t)port, (int)index, &entry->gid);
}

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event) {
    (void)context, (void)event;
    errno = EAGAIN;
    return -1;
}

void ibv_ack_async_event(struct ibv_async_event *event) { (void)event; }

/* ---------------------------------------------------------------------------------------------- memory */

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context) {
    struct ibv_pd *pd = calloc(1, sizeof *pd);
    pd->context = context;
    return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd) { return free(pd), 0; }

static struct ibv_mr *enter(struct ibv_pd *pd, void *bytes, size_t len, uint64_t from, int access, int of_device) {
    struct region *made = calloc(1, sizeof *made);
    *made = (struct region){{pd->context, pd, bytes, len, 0, 0, 0}, from, bytes, access, of_device};
    pthread_mutex_lock(&lock);
    for (uint32_t i = 1; i < MOST; i++)
        if (!regions[i]) {
            regions[i] = made;
            made->mr.lkey = made->mr.rkey = i;
            dmabufs += of_device;
            break;
        }
    pthread_mutex_unlock(&lock);
    return &made->mr;
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t len, int access) {
    return enter(pd, addr, len, (uint64_t)addr, access, 0);
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t len, uint64_t iova, unsigned access) {
    return enter(pd, addr, len, iova, (int)access, 0);
}

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t len, uint64_t iova, int fd, int access) {
    unsigned long long told[2] = {0, 0};
    errno = 0;
    if (!number_of("FAKE_VERBS_DMABUF", 1))
        errno = EOPNOTSUPP;
    else if (fcntl(fd, F_GETFD) < 0)
        errno = EBADF;
    else if (pread(fd, told, sizeof told, 0) != sizeof told || told[0] != MAGIC)
        errno = EINVAL;
    else if (offset % PAGE != iova % PAGE || !len || offset + len > (uint64_t)lseek(fd, 0, SEEK_END))
        errno = EINVAL;
    if (errno)
        return NULL;
    return enter(pd, (char *)told[1] + offset, len, iova, access, 1);
}

int ibv_dereg_mr(struct ibv_mr *mr) {
    pthread_mutex_lock(&lock);
    dmabufs -= regions[mr->lkey]->of_device;
    regions[mr->lkey] = NULL;
    pthread_mutex_unlock(&lock);
    free(mr);
    return 0;
}

/* Bytes of a region; NULL if they are not all inside, or the right is not there. */
static char *place(uint32_t key, uint64_t at, uint32_t len, int right, struct region **found) {
    struct region *region = key < MOST ? regions[key] : NULL;
    if (!region || (region->access & right) != right || at < region->from || at - region->from + len > region->mr.length)
        return NULL;
    *found = region;
    return region->bytes + (at - region->from);
}

static int device_of(struct ibv_context *context) { return (int)(context->device - devices); }

static void store(struct region *region, char *to, const char *bytes, uint32_t len) {
    int device = device_of(region->mr.context);
    if (!region->of_device) {
        memcpy(to, bytes, len);
        return;
    }
    struct held *one = malloc(sizeof *one + len);
    one->next = NULL, one->to = to, one->len = len;
    memcpy(one->bytes, bytes, len);
    if (!held[device])
        held_last[device] = &held[device];
    *held_last[device] = one, held_last[device] = &one->next;
}

static void show_all(int device) {
    while (held[device]) {
        struct held *one = held[device];
        memcpy(one->to, one->bytes, one->len);
        held[device] = one->next;
        free(one);
    }
}

/* ---------------------------------------------------------------------------------------------- queues */

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context) {
    struct ibv_comp_channel *channel = calloc(1, sizeof *channel);
    channel->context = context, channel->fd = eventfd(0, EFD_NONBLOCK);
    return channel;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel) {
    close(channel->fd);
    return free(channel), 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int entries, void *cookie, struct ibv_comp_channel *channel,
                             int vector) {
    struct queue *made = calloc(1, sizeof *made);
    (void)vector;
    made->cq.context = context, made->cq.channel = channel, made->cq.cq_context = cookie, made->cq.cqe = entries;
    made->size = (unsigned)entries + 1;
    made->wcs = calloc(made->size, sizeof *made->wcs);
    return &made->cq;
}

int ibv_destroy_cq(struct ibv_cq *cq) {
    free(((struct queue *)cq)->wcs);
    return free(cq), 0;
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cookie) {
    (void)channel, (void)cq, (void)cookie;
    errno = EAGAIN;
    return -1;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned count) { (void)cq, (void)count; }

static void tell(struct ibv_cq *to, struct ibv_wc wc) {
    struct queue *cq = (struct queue *)to;
    if ((cq->tail + 1) % cq->size == cq->head)
        abort();
    cq->wcs[cq->tail] = wc;
    cq->tail = (cq->tail + 1) % cq->size;
}

static void push(struct list *list, struct work *one) {
    if (!list->first)
        list->last = &list->first;
    one->next = NULL, *list->last = one, list->last = &one->next;
}

static struct work *pop(struct list *list) {
    struct work *one = list->first;
    if (one)
        list->first = one->next;
    return one;
}

static void end(struct pair *pair, struct work *one, enum ibv_wc_status status) {
    if (status || one->flags & IBV_SEND_SIGNALED)
        tell(pair->qp.send_cq, (struct ibv_wc){.wr_id = one->id, .status = status, .qp_num = pair->qp.qp_num});
    free(one);
}

static void fail(struct pair *pair) {
    struct work *one;
    pair->qp.state = IBV_QPS_ERR;
    while ((one = pop(&pair->sends)))
        end(pair, one, IBV_WC_WR_FLUSH_ERR);
    while ((one = pop(&pair->receives))) {
        struct ibv_wc wc = {.wr_id = one->id, .status = IBV_WC_WR_FLUSH_ERR, .qp_num = pair->qp.qp_num};
        tell(pair->qp.recv_cq, wc);
        free(one);
    }
}

static int is_cut(struct pair *pair) {
    return pair->peer && pair->peer != pair->qp.qp_num && device_of(pair->qp.context) == broken;
}

/* Nothing leaves or reaches a device any more, but for what it sends to itself. */
void fake_cut(int device) {
    pthread_mutex_lock(&lock);
    broken = device;
    for (uint32_t i = 1; i < pairs_end; i++)
        if (pairs[i] && is_cut(pairs[i]))
            fail(pairs[i]);
    pthread_mutex_unlock(&lock);
}

/* A request begins with 48 bytes, behind which are its ranges or its inline bytes; the blocks of all are rounded up to a power
 * of two. */
static int takes(const struct ibv_qp_cap *cap) {
    uint32_t ranges = 16 * cap->max_send_sge, inlined = cap->max_inline_data ? (cap->max_inline_data + 19) / 16 * 16 : 0;
    uint32_t each = (48 + (ranges > inlined ? ranges : inlined) + 63) / 64, blocks = 1;
    while (blocks < each * cap->max_send_wr)
        blocks *= 2;
    return blocks <= (uint32_t)number_of("FAKE_VERBS_BLOCKS", 65536) &&
           cap->max_inline_data <= (uint32_t)number_of("FAKE_VERBS_INLINE", 512);
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr) {
    if (!takes(&attr->cap)) {
        errno = EINVAL;
        return NULL;
    }
    struct pair *made = calloc(1, sizeof *made);
    made->qp.context = pd->context, made->qp.pd = pd;
    made->inlines = attr->cap.max_inline_data;
    made->qp.send_cq = attr->send_cq, made->qp.recv_cq = attr->recv_cq, made->qp.qp_type = attr->qp_type;
    pthread_mutex_lock(&lock);
    for (uint32_t i = 1; i < MOST && !made->qp.qp_num; i++)
        if (!pairs[i])
            pairs[i] = made, made->qp.qp_num = i, pairs_end = i < pairs_end ? pairs_end : i + 1;
    pthread_mutex_unlock(&lock);
    return &made->qp;
}

struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp) { return (void)qp, NULL; }

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask) {
    struct pair *pair = (struct pair *)qp;
    pthread_mutex_lock(&lock);
    if (mask & IBV_QP_DEST_QPN)
        pair->peer = attr->dest_qp_num;
    if (mask & IBV_QP_STATE)
        qp->state = attr->qp_state;
    if (qp->state == IBV_QPS_ERR || is_cut(pair))
        fail(pair);
    pthread_mutex_unlock(&lock);
    return 0;
}

int ibv_destroy_qp(struct ibv_qp *qp) {
    struct pair *pair = (struct pair *)qp;
    struct work *one;
    pthread_mutex_lock(&lock);
    while ((one = pop(&pair->sends)) || (one = pop(&pair->receives)))
        free(one);
    pairs[qp->qp_num] = NULL;
    pthread_mutex_unlock(&lock);
    return free(pair), 0;
}

/* ---------------------------------------------------------------------------------------------- work */

/* Gathers what a request sends. */
static int gather(struct work *one, char *bytes) {
    struct region *region;
    uint32_t len = 0;
    if (one->flags & IBV_SEND_INLINE)
        return memcpy(bytes, one->inlined, one->len), 1;
    for (uint32_t i = 0; i < one->count; i++) {
        char *from = place(one->sges[i].lkey, one->sges[i].addr, one->sges[i].length, 0, &region);
        if (!from)
            return 0;
        memcpy(bytes + len, from, one->sges[i].length);
        len += one->sges[i].length;
    }
    return 1;
}

/* Puts bytes where a receive, or a read, wants them. */
static int scatter(struct work *into, const char *bytes, uint32_t len) {
    struct region *region;
    for (uint32_t i = 0; i < into->count && len; i++) {
        uint32_t part = into->sges[i].length < len ? into->sges[i].length : len;
        char *to = place(into->sges[i].lkey, into->sges[i].addr, part, IBV_ACCESS_LOCAL_WRITE, &region);
        if (!to)
            return 0;
        store(region, to, bytes, part);
        bytes += part, len -= part;
    }
    return !len;
}

static enum ibv_wc_status receive(struct pair *peer, struct work *one, const char *bytes) {
    struct work *into = pop(&peer->receives);
    struct ibv_wc wc = {.wr_id = into->id, .byte_len = one->len, .qp_num = peer->qp.qp_num, .imm_data = one->imm};
    int placed = one->opcode == IBV_WR_RDMA_WRITE_WITH_IMM || scatter(into, bytes, one->len);
    wc.opcode = one->opcode == IBV_WR_RDMA_WRITE_WITH_IMM ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
    wc.wc_flags = one->opcode == IBV_WR_SEND ? 0 : IBV_WC_WITH_IMM;
    wc.status = placed ? IBV_WC_SUCCESS : IBV_WC_LOC_LEN_ERR;
    free(into);
    tell(peer->qp.recv_cq, wc);
    return placed ? IBV_WC_SUCCESS : IBV_WC_REM_INV_REQ_ERR;
}

static enum ibv_wc_status execute(struct pair *peer, struct work *one, char *bytes) {
    struct region *region;
    if (one->opcode == IBV_WR_RDMA_READ) {
        char *from = place(one->rkey, one->remote, one->len, IBV_ACCESS_REMOTE_READ, &region);
        if (!from)
            return IBV_WC_REM_ACCESS_ERR;
        if (region->of_device)
            show_all(device_of(region->mr.context));
        *(region->of_device ? &device_reads : &host_reads) += 1;
        memcpy(bytes, from, one->len);
        return scatter(one, bytes, one->len) ? IBV_WC_SUCCESS : IBV_WC_LOC_PROT_ERR;
    }
    if (!gather(one, bytes))
        return IBV_WC_LOC_PROT_ERR;
    if (one->opcode != IBV_WR_SEND && one->opcode != IBV_WR_SEND_WITH_IMM && one->len) {
        char *to = place(one->rkey, one->remote, one->len, IBV_ACCESS_REMOTE_WRITE, &region);
        if (!to)
            return IBV_WC_REM_ACCESS_ERR;
        store(region, to, bytes, one->len);
    }
    return one->opcode == IBV_WR_RDMA_WRITE ? IBV_WC_SUCCESS : receive(peer, one, bytes);
}

/* Executes what can be; whether anything could. */
static int advance(struct pair *pair) {
    struct work *one = pair->sends.first;
    if (!one || pair->qp.state != IBV_QPS_RTS)
        return 0;
    struct pair *peer = pair->peer < MOST ? pairs[pair->peer] : NULL;
    int lost = !peer || peer->qp.state == IBV_QPS_ERR || peer->qp.state < IBV_QPS_RTR;
    int takes = one->opcode != IBV_WR_RDMA_WRITE && one->opcode != IBV_WR_RDMA_READ;
    if (!lost && takes && !peer->receives.first)
        return 0;
    char *bytes = malloc(one->len + 1);
    enum ibv_wc_status status = lost ? IBV_WC_RETRY_EXC_ERR : execute(peer, one, bytes);
    free(bytes);
    end(pair, pop(&pair->sends), status);
    if (status)
        fail(pair);
    return 1;
}

static void advance_all(void) {
    for (int moved = 1; moved;) {
        moved = 0;
        for (uint32_t i = 1; i < pairs_end; i++)
            moved |= pairs[i] && advance(pairs[i]);
    }
}

static struct work *copy(uint64_t id, const struct ibv_sge *list, int count) {
    struct work *one = calloc(1, sizeof *one);
    one->id = id, one->count = (uint32_t)count;
    for (int i = 0; i < count; i++)
        one->sges[i] = list[i], one->len += list[i].length;
    return one;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
    struct pair *pair = (struct pair *)qp;
    pthread_mutex_lock(&lock);
    for (; wr; wr = wr->next) {
        struct work *one = copy(wr->wr_id, wr->sg_list, wr->num_sge);
        if (wr->send_flags & IBV_SEND_INLINE && one->len > pair->inlines) {
            *bad = wr;
            free(one);
            break;
        }
        one->opcode = wr->opcode, one->flags = wr->send_flags, one->imm = wr->imm_data;
        one->remote = wr->wr.rdma.remote_addr, one->rkey = wr->wr.rdma.rkey;
        char *to = one->inlined;
        for (int i = 0; wr->send_flags & IBV_SEND_INLINE && i < wr->num_sge; i++)
            to = mempcpy(to, (void *)wr->sg_list[i].addr, wr->sg_list[i].length);
        push(&pair->sends, one);
    }
    if (qp->state == IBV_QPS_ERR)
        fail(pair);
    pthread_mutex_unlock(&lock);
    return wr ? EINVAL : 0;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    struct pair *pair = (struct pair *)qp;
    (void)bad;
    pthread_mutex_lock(&lock);
    for (; wr; wr = wr->next)
        push(&pair->receives, copy(wr->wr_id, wr->sg_list, wr->num_sge));
    if (qp->state == IBV_QPS_ERR)
        fail(pair);
    pthread_mutex_unlock(&lock);
    return 0;
}

static int poll_cq(struct ibv_cq *of, int most, struct ibv_wc *out) {
    struct queue *cq = (struct queue *)of;
    int taken = 0;
    pthread_mutex_lock(&lock);
    advance_all();
    for (; taken < most && cq->head != cq->tail; cq->head = (cq->head + 1) % cq->size)
        out[taken++] = cq->wcs[cq->head];
    pthread_mutex_unlock(&lock);
    return taken;
}
