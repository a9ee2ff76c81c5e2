/* The reference for crates/sys/src/ofi in `cargo xtask bindings`: libfabric's own headers, if they are installed. */
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <rdma/providers/fi_prov.h>
#include <stdint.h>
#include <sys/types.h>

#define PROBE_VERSION FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION)

/* Constants and types of 2.x, for headers of 2.x. */
#if FI_MAJOR_VERSION >= 2
#define PROBE_LATER(there, missing) (there)
#else
#define PROBE_LATER(there, missing) (missing)
#endif

/* Added in 1.20. */
#if FI_MAJOR_VERSION == 1 && FI_MINOR_VERSION < 20
#define FI_MR_DMABUF (1ULL << 40)
struct fi_mr_dmabuf {
  int fd;
  uint64_t offset;
  size_t len;
  void* base_addr;
};
#endif
