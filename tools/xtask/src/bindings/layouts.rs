//! The structs and constants of `trunkline-sys` that C must agree with, and their layouts in Rust.
//!
//! Only `bindings` calls this. A field that is missing here does not compile, so the lists cannot fall behind.

use std::mem::size_of;

use trunkline_sys::nccl_net::v6::{NetV6, PropertiesV6};
use trunkline_sys::nccl_net::v7::{NetV7, PropertiesV7};
use trunkline_sys::nccl_net::v8::{NetV8, PropertiesV8};
use trunkline_sys::nccl_net::v9::{NetV9, PropertiesV9};
use trunkline_sys::nccl_net::v10::{NetV10, PropertiesV10};
use trunkline_sys::nccl_net::v11::{NetV11, PropertiesV11};
use trunkline_sys::nccl_net::v12::{NetV12, PropertiesV12};
use trunkline_sys::nccl_net::{
    self as net, CommAttr, CommConfig, DeviceHandle, NetAttr, ResultCode, VDeviceProps4, VDeviceProps8,
    log_level,
};

/// One struct as Rust lays it out.
pub(super) struct StructLayout {
    /// The C type that it must equal.
    pub(super) c: &'static str,
    pub(super) size: usize,
    pub(super) align: usize,
    /// Name, offset and size of each field.
    pub(super) fields: Vec<(&'static str, usize, usize)>,
}

/// The size of the field that a projection returns.
pub(super) fn size_behind<T, F>(_: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

// Braces and no commas, so that the formatter leaves the lists compact.
macro_rules! layouts {
    ($($c:literal = $t:ident { $($f:ident)* })*) => { vec![$({
        // Names every field, so that a new field breaks the build until the list contains it.
        let _every_field = |$t { $($f: _),* }: $t| ();
        StructLayout {
            c: $c,
            size: std::mem::size_of::<$t>(),
            align: std::mem::align_of::<$t>(),
            fields: vec![$((stringify!($f), std::mem::offset_of!($t, $f), size_behind(|t: &$t| &t.$f))),*],
        }
    }),*] };
}
pub(super) use layouts;

/// Every struct.
pub(super) fn all_layouts() -> Vec<StructLayout> {
    [shared_layouts(), property_layouts(), table_layouts()].into_iter().flatten().collect()
}

/// Constants by their C names.
pub(super) fn net_constants() -> Vec<(&'static str, i64)> {
    vec![
        ("NCCL_NET_HANDLE_MAXSIZE", super::as_fact(net::HANDLE_BYTES)),
        ("NCCL_NET_MAX_REQUESTS", super::as_fact(net::NET_REQUESTS_MAX)),
        ("NCCL_NET_OPTIONAL_RECV_COMPLETION", super::as_fact(net::OPTIONAL_RECV_COMPLETION)),
        ("NCCL_NET_MULTI_REQUEST", super::as_fact(net::MULTI_REQUEST)),
        ("NCCL_PTR_HOST", net::PTR_HOST.into()),
        ("NCCL_PTR_CUDA", net::PTR_CUDA.into()),
        ("NCCL_PTR_DMABUF", net::PTR_DMABUF.into()),
        ("NCCL_NET_DEVICE_HOST", net::NET_DEVICE_HOST.into()),
        ("NCCL_NET_DEVICE_UNPACK", net::NET_DEVICE_UNPACK.into()),
        ("NCCL_LOG_NONE", log_level::NONE.into()),
        ("NCCL_LOG_VERSION", log_level::VERSION.into()),
        ("NCCL_LOG_WARN", log_level::WARN.into()),
        ("NCCL_LOG_INFO", log_level::INFO.into()),
        ("NCCL_LOG_ABORT", log_level::ABORT.into()),
        ("NCCL_LOG_TRACE", log_level::TRACE.into()),
        ("ncclSuccess", ResultCode::SUCCESS.0.into()),
        ("ncclUnhandledCudaError", ResultCode::UNHANDLED_CUDA_ERROR.0.into()),
        ("ncclSystemError", ResultCode::SYSTEM_ERROR.0.into()),
        ("ncclInternalError", ResultCode::INTERNAL_ERROR.0.into()),
        ("ncclInvalidArgument", ResultCode::INVALID_ARGUMENT.0.into()),
        ("ncclInvalidUsage", ResultCode::INVALID_USAGE.0.into()),
        ("ncclRemoteError", ResultCode::REMOTE_ERROR.0.into()),
        ("ncclInProgress", ResultCode::IN_PROGRESS.0.into()),
    ]
}

/// The structs that all versions share.
fn shared_layouts() -> Vec<StructLayout> {
    layouts! {
        "ncclNetDeviceHandle_v7_t" = DeviceHandle {
            net_device_type net_device_version handle size needs_proxy_progress
        }
        "ncclNetCommConfig_v12_t" = CommConfig { traffic_class }
        "ncclNetVDeviceProps_v11_t" = VDeviceProps4 { ndevs devs }
        "ncclNetVDeviceProps_v12_t" = VDeviceProps8 { ndevs devs }
        "ncclNetCommAttr_v12_t" = CommAttr {
            max_concurrent_peers min_concurrent_peers max_flows_per_peer min_flows_per_peer
        }
        "ncclNetAttr_v12_t" = NetAttr { send_comm_attr recv_comm_attr op algo proto }
    }
}

/// The properties of each version.
fn property_layouts() -> Vec<StructLayout> {
    layouts! {
        "ncclNetProperties_v6_t" = PropertiesV6 {
            name pci_path guid ptr_support speed port latency max_comms max_recvs
        }
        "ncclNetProperties_v7_t" = PropertiesV7 {
            name pci_path guid ptr_support speed port latency max_comms max_recvs net_device_type
            net_device_version
        }
        "ncclNetProperties_v8_t" = PropertiesV8 {
            name pci_path guid ptr_support reg_is_global speed port latency max_comms max_recvs
            net_device_type net_device_version
        }
        "ncclNetProperties_v9_t" = PropertiesV9 {
            name pci_path guid ptr_support reg_is_global force_flush speed port latency max_comms
            max_recvs net_device_type net_device_version v_props max_p2p_bytes max_coll_bytes
        }
        "ncclNetProperties_v10_t" = PropertiesV10 {
            name pci_path guid ptr_support reg_is_global force_flush speed port latency max_comms
            max_recvs net_device_type net_device_version v_props max_p2p_bytes max_coll_bytes
        }
        "ncclNetProperties_v11_t" = PropertiesV11 {
            name pci_path guid ptr_support reg_is_global force_flush speed port latency max_comms
            max_recvs net_device_type net_device_version v_props max_p2p_bytes max_coll_bytes
            max_multi_request_size
        }
        "ncclNetProperties_v12_t" = PropertiesV12 {
            name pci_path guid ptr_support reg_is_global force_flush speed port latency max_comms
            max_recvs net_device_type net_device_version v_props max_p2p_bytes max_coll_bytes
            max_multi_request_size rail_id plane_id
        }
    }
}

/// The function table of each version.
fn table_layouts() -> Vec<StructLayout> {
    layouts! {
        "ncclNet_v6_t" = NetV6 {
            name init devices get_properties listen connect accept reg_mr reg_mr_dma_buf dereg_mr isend
            irecv iflush test close_send close_recv close_listen
        }
        "ncclNet_v7_t" = NetV7 {
            name init devices get_properties listen connect accept reg_mr reg_mr_dma_buf dereg_mr isend
            irecv iflush test close_send close_recv close_listen get_device_mr irecv_consumed
        }
        "ncclNet_v8_t" = NetV8 {
            name init devices get_properties listen connect accept reg_mr reg_mr_dma_buf dereg_mr isend
            irecv iflush test close_send close_recv close_listen get_device_mr irecv_consumed
        }
        "ncclNet_v9_t" = NetV9 {
            name init devices get_properties listen connect accept reg_mr reg_mr_dma_buf dereg_mr isend
            irecv iflush test close_send close_recv close_listen get_device_mr irecv_consumed
            make_v_device
        }
        "ncclNet_v10_t" = NetV10 {
            name init devices get_properties listen connect accept reg_mr reg_mr_dma_buf dereg_mr isend
            irecv iflush test close_send close_recv close_listen get_device_mr irecv_consumed
            make_v_device
        }
        "ncclNet_v11_t" = NetV11 {
            name init devices get_properties listen connect accept reg_mr reg_mr_dma_buf dereg_mr isend
            irecv iflush test close_send close_recv close_listen get_device_mr irecv_consumed
            make_v_device finalize set_net_attr
        }
        "ncclNet_v12_t" = NetV12 {
            name init devices get_properties listen connect accept reg_mr reg_mr_dma_buf dereg_mr isend
            irecv iflush test close_send close_recv close_listen get_device_mr irecv_consumed
            make_v_device finalize set_net_attr
        }
    }
}
