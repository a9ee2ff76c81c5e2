/* The NCCL network plugin interface, versions 6 to 12, as a C compiler must lay it out.
 *
 * Written for this project from the interface's description, to give `cargo xtask bindings` a second opinion on
 * crates/sys. Struct and field names are those of the interface; nothing in the product includes this file. */
#ifndef TRUNKLINE_NCCL_NET_H
#define TRUNKLINE_NCCL_NET_H

#include <stddef.h>
#include <stdint.h>

enum { NCCL_NET_HANDLE_MAXSIZE = 128, NCCL_NET_MAX_REQUESTS = 32 };
enum { NCCL_NET_OPTIONAL_RECV_COMPLETION = 1, NCCL_NET_MULTI_REQUEST = 2 };
enum { NCCL_PTR_HOST = 1, NCCL_PTR_CUDA = 2, NCCL_PTR_DMABUF = 4 };

typedef enum {
  ncclSuccess, ncclUnhandledCudaError, ncclSystemError, ncclInternalError,
  ncclInvalidArgument, ncclInvalidUsage, ncclRemoteError, ncclInProgress
} ncclResult_t;

typedef enum {
  NCCL_LOG_NONE, NCCL_LOG_VERSION, NCCL_LOG_WARN, NCCL_LOG_INFO, NCCL_LOG_ABORT, NCCL_LOG_TRACE
} ncclDebugLogLevel;

typedef enum { NCCL_NET_DEVICE_HOST, NCCL_NET_DEVICE_UNPACK } ncclNetDeviceType;

typedef void (*ncclDebugLogger_t)(ncclDebugLogLevel, unsigned long, const char*, int, const char*, ...);
typedef ncclResult_t (*ncclProfilerCallback_t)(void**, int, void*, int64_t, void*);

typedef struct {
  ncclNetDeviceType netDeviceType;
  int netDeviceVersion;
  void* handle;
  size_t size;
  int needsProxyProgress;
} ncclNetDeviceHandle_v7_t;
typedef ncclNetDeviceHandle_v7_t ncclNetDeviceHandle_v8_t, ncclNetDeviceHandle_v9_t, ncclNetDeviceHandle_v10_t;
typedef ncclNetDeviceHandle_v7_t ncclNetDeviceHandle_v11_t, ncclNetDeviceHandle_v12_t, DevHandle;

typedef struct { int trafficClass; } ncclNetCommConfig_v12_t;
typedef ncclNetCommConfig_v12_t ncclNetCommConfig_v10_t, ncclNetCommConfig_v11_t, Config;

typedef struct { int ndevs; int devs[4]; } ncclNetVDeviceProps_v11_t;
typedef ncclNetVDeviceProps_v11_t ncclNetVDeviceProps_v9_t, ncclNetVDeviceProps_v10_t;
typedef struct { int ndevs; int devs[8]; } ncclNetVDeviceProps_v12_t;

typedef struct {
  int32_t maxConcurrentPeers, minConcurrentPeers, maxFlowsPerPeer, minFlowsPerPeer;
} ncclNetCommAttr_v12_t;
typedef struct {
  ncclNetCommAttr_v12_t sendCommAttr, recvCommAttr;
  uint32_t op, algo, proto;
} ncclNetAttr_v12_t;
typedef ncclNetAttr_v12_t ncclNetAttr_v11_t;

/* Properties grow by these groups. */
#define WHO char *name, *pciPath; uint64_t guid; int ptrSupport;
#define SPEED int speed, port; float latency; int maxComms, maxRecvs;
#define DEVICE ncclNetDeviceType netDeviceType; int netDeviceVersion;
#define SIZES size_t maxP2pBytes, maxCollBytes;

typedef struct { WHO SPEED } ncclNetProperties_v6_t;
typedef struct { WHO SPEED DEVICE } ncclNetProperties_v7_t;
typedef struct { WHO int regIsGlobal; SPEED DEVICE } ncclNetProperties_v8_t;
typedef struct {
  WHO int regIsGlobal, forceFlush; SPEED DEVICE ncclNetVDeviceProps_v11_t vProps; SIZES
} ncclNetProperties_v9_t;
typedef ncclNetProperties_v9_t ncclNetProperties_v10_t;
typedef struct {
  WHO int regIsGlobal, forceFlush; SPEED DEVICE ncclNetVDeviceProps_v11_t vProps; SIZES
  int maxMultiRequestSize;
} ncclNetProperties_v11_t;
typedef struct {
  WHO int regIsGlobal, forceFlush; SPEED DEVICE ncclNetVDeviceProps_v12_t vProps; SIZES
  int maxMultiRequestSize; int16_t railId, planeId;
} ncclNetProperties_v12_t;

/* Function tables: the types that change between versions are arguments of the macro that all versions share. */
#define FN(name, ...) ncclResult_t (*name)(__VA_ARGS__);
#define INIT_V6 FN(init, ncclDebugLogger_t)
#define INIT_V10 FN(init, ncclDebugLogger_t, ncclProfilerCallback_t)
#define INIT_V11 FN(init, void**, uint64_t, Config*, ncclDebugLogger_t, ncclProfilerCallback_t)
#define LISTEN_V6 FN(listen, int, void*, void**)
#define LISTEN_V11 FN(listen, void*, int, void*, void**)
#define CONNECT_V6 FN(connect, int, void*, void**) FN(accept, void*, void**)
#define ACCEPT_V7 FN(accept, void*, void**, DevHandle**)
#define CONNECT_V7 FN(connect, int, void*, void**, DevHandle**) ACCEPT_V7
#define CONNECT_V10 FN(connect, int, Config*, void*, void**, DevHandle**) ACCEPT_V7
#define CONNECT_V11 FN(connect, void*, int, void*, void**, DevHandle**) ACCEPT_V7
#define REG(size) FN(regMr, void*, void*, size, int, void**) \
  FN(regMrDmaBuf, void*, void*, size_t, int, uint64_t, int, void**) FN(deregMr, void*, void*)
#define DATA(size) FN(isend, void*, void*, size, int, void*, void**) \
  FN(irecv, void*, int, void**, size*, int*, void**, void**)
#define DATA_V10 FN(isend, void*, void*, size_t, int, void*, void*, void**) \
  FN(irecv, void*, int, void**, size_t*, int*, void**, void**, void**)
#define END FN(iflush, void*, int, void**, int*, void**, void**) FN(test, void*, int*, int*) \
  FN(closeSend, void*) FN(closeRecv, void*) FN(closeListen, void*)
#define OFFLOAD FN(getDeviceMr, void*, void*, void**) FN(irecvConsumed, void*, int, void*)
#define VIRTUAL(props) FN(makeVDevice, int*, props*)
#define CONTEXT FN(finalize, void*) FN(setNetAttr, void*, ncclNetAttr_v12_t*)
#define TABLE(v, init, listen, connect, reg, data, ...) \
  typedef struct { \
    const char* name; init FN(devices, int*) FN(getProperties, int, ncclNetProperties_##v##_t*) \
    listen connect reg data END __VA_ARGS__ \
  } ncclNet_##v##_t;

TABLE(v6, INIT_V6, LISTEN_V6, CONNECT_V6, REG(int), DATA(int), )
TABLE(v7, INIT_V6, LISTEN_V6, CONNECT_V7, REG(int), DATA(int), OFFLOAD)
TABLE(v8, INIT_V6, LISTEN_V6, CONNECT_V7, REG(size_t), DATA(int), OFFLOAD)
TABLE(v9, INIT_V6, LISTEN_V6, CONNECT_V7, REG(size_t), DATA(size_t), OFFLOAD VIRTUAL(ncclNetVDeviceProps_v11_t))
TABLE(v10, INIT_V10, LISTEN_V6, CONNECT_V10, REG(size_t), DATA_V10, OFFLOAD VIRTUAL(ncclNetVDeviceProps_v11_t))
TABLE(v11, INIT_V11, LISTEN_V11, CONNECT_V11, REG(size_t), DATA_V10,
      OFFLOAD VIRTUAL(ncclNetVDeviceProps_v11_t) CONTEXT)
TABLE(v12, INIT_V11, LISTEN_V11, CONNECT_V11, REG(size_t), DATA_V10,
      OFFLOAD VIRTUAL(ncclNetVDeviceProps_v12_t) CONTEXT)

#endif
