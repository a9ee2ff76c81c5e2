//! Compares the types and functions of libibverbs in `trunkline-sys` with a C compiler's.
//!
//! Only `bindings` calls this. The reference is the library's own header, where it is installed.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use syn::{ReturnType, Type};
use trunkline_sys::verbs::{
    self, AhAttr, AsyncEvent, CompChannel, Context, ContextOps, Cq, Device, DeviceAttr, GidEntry,
    GlobalRoute, Mr, Pd, PortAttr, Qp, QpAttr, QpCap, QpEx, QpInitAttr, QpInitAttrEx, RecvWr, RxHashConf,
    SendWr, SendWrTarget, Sge, VerbsContext, Wc, event, qp_mask, qp_state, send_ops, wc_opcode, wc_status,
    wr_opcode,
};

use super::layouts::{StructLayout, layouts, size_behind};
use super::prototypes::{self, FunctionAliases};
use super::{HeaderFacts, as_fact};
use crate::source::SourceFile;

/// The header, as programs include it.
pub(super) const HEADER: &str = "infiniband/verbs.h";

/// Fields that stand for several C fields, so their size differs.
const ROWS: [&str; 2] = ["advise_mr", "ibv_destroy_flow"];

/// The facts of libibverbs according to Rust; `sys` is the folder of the crate.
///
/// # Errors
/// A source cannot be read, or contains a type that has no C name here.
pub(super) fn verbs_facts(sys: &Path) -> Result<HeaderFacts> {
    let mut facts = HeaderFacts::new();
    for StructLayout { c, size, align, fields } in object_layouts().into_iter().chain(request_layouts()) {
        facts.insert(format!("sizeof({c})"), as_fact(size));
        facts.insert(format!("_Alignof({c})"), as_fact(align));
        for (field, offset, size) in fields {
            let field = c_name(field);
            facts.insert(format!("offsetof({c}, {field})"), as_fact(offset));
            if !ROWS.contains(&field) {
                facts.insert(format!("sizeof((({c}*)0)->{field})"), as_fact(size));
            }
        }
    }
    let inside = std::mem::offset_of!(SendWr, wr);
    let targets = [
        ("rdma.rkey", std::mem::offset_of!(SendWrTarget, rdma.rkey)),
        ("atomic.swap", std::mem::offset_of!(SendWrTarget, atomic.swap)),
        ("atomic.rkey", std::mem::offset_of!(SendWrTarget, atomic.rkey)),
    ];
    for (field, offset) in targets {
        facts.insert(format!("offsetof(struct ibv_send_wr, wr.{field})"), as_fact(inside + offset));
    }
    facts.extend(verbs_constants().map(|(name, value)| (name.to_owned(), value)));
    facts.extend(prototype_checks(&sys.join("src/verbs"))?.into_iter().map(|expression| (expression, 1)));
    Ok(facts)
}

/// The C name of a field: ours, except for words that Rust reserves and capitals that its lints reject.
fn c_name(field: &'static str) -> &'static str {
    match field.strip_prefix("r#").unwrap_or(field) {
        "_abi_placeholder3" => "_ABI_placeholder3",
        name => name,
    }
}

/// Objects of the library.
fn object_layouts() -> Vec<StructLayout> {
    layouts! {
        "struct ibv_device" = Device {
            _ops node_type transport_type name dev_name dev_path ibdev_path
        }
        "struct ibv_device_attr" = DeviceAttr {
            fw_ver node_guid sys_image_guid max_mr_size page_size_cap vendor_id vendor_part_id hw_ver max_qp
            max_qp_wr device_cap_flags max_sge max_sge_rd max_cq max_cqe max_mr max_pd max_qp_rd_atom
            max_ee_rd_atom max_res_rd_atom max_qp_init_rd_atom max_ee_init_rd_atom atomic_cap max_ee max_rdd
            max_mw max_raw_ipv6_qp max_raw_ethy_qp max_mcast_grp max_mcast_qp_attach
            max_total_mcast_qp_attach max_ah max_fmr max_map_per_fmr max_srq max_srq_wr max_srq_sge max_pkeys
            local_ca_ack_delay phys_port_cnt
        }
        "struct ibv_port_attr" = PortAttr {
            state max_mtu active_mtu gid_tbl_len port_cap_flags max_msg_sz bad_pkey_cntr qkey_viol_cntr
            pkey_tbl_len lid sm_lid lmc max_vl_num sm_sl subnet_timeout init_type_reply active_width
            active_speed phys_state link_layer flags port_cap_flags2
        }
        "struct ibv_gid_entry" = GidEntry { gid gid_index port_num gid_type ndev_ifindex }
        "struct ibv_context_ops" = ContextOps {
            _compat_query_device _compat_query_port _compat_alloc_pd _compat_dealloc_pd _compat_reg_mr
            _compat_rereg_mr _compat_dereg_mr alloc_mw bind_mw dealloc_mw _compat_create_cq poll_cq
            req_notify_cq _compat_cq_event _compat_resize_cq _compat_destroy_cq _compat_create_srq
            _compat_modify_srq _compat_query_srq _compat_destroy_srq post_srq_recv _compat_create_qp
            _compat_query_qp _compat_modify_qp _compat_destroy_qp post_send post_recv _compat_create_ah
            _compat_destroy_ah _compat_attach_mcast _compat_detach_mcast _compat_async_event
        }
        "struct ibv_context" = Context {
            device ops cmd_fd async_fd num_comp_vectors mutex abi_compat
        }
        "struct verbs_context" = VerbsContext {
            query_port advise_mr r#priv query_device_ex ibv_destroy_flow open_qp create_qp_ex get_srq_num
            create_srq_ex open_xrcd close_xrcd _abi_placeholder3 sz context
        }
        "struct ibv_pd" = Pd { context handle }
        "struct ibv_mr" = Mr { context pd addr length handle lkey rkey }
        "struct ibv_comp_channel" = CompChannel { context fd refcnt }
        "struct ibv_cq" = Cq {
            context channel cq_context handle cqe mutex cond comp_events_completed async_events_completed
        }
        "struct ibv_qp" = Qp {
            context qp_context pd send_cq recv_cq srq handle qp_num state qp_type mutex cond events_completed
        }
        "struct ibv_qp_ex" = QpEx {
            qp_base comp_mask wr_id wr_flags wr_atomic_cmp_swp wr_atomic_fetch_add wr_bind_mw wr_local_inv
            wr_rdma_read wr_rdma_write wr_rdma_write_imm wr_send wr_send_imm wr_send_inv wr_send_tso
            wr_set_ud_addr wr_set_xrc_srqn wr_set_inline_data wr_set_inline_data_list wr_set_sge
            wr_set_sge_list wr_start wr_complete wr_abort wr_atomic_write
        }
    }
}

/// Structs of requests and results.
fn request_layouts() -> Vec<StructLayout> {
    layouts! {
        "struct ibv_qp_cap" = QpCap {
            max_send_wr max_recv_wr max_send_sge max_recv_sge max_inline_data
        }
        "struct ibv_qp_init_attr" = QpInitAttr { qp_context send_cq recv_cq srq cap qp_type sq_sig_all }
        "struct ibv_rx_hash_conf" = RxHashConf {
            rx_hash_function rx_hash_key_len rx_hash_key rx_hash_fields_mask
        }
        "struct ibv_qp_init_attr_ex" = QpInitAttrEx {
            qp_context send_cq recv_cq srq cap qp_type sq_sig_all comp_mask pd xrcd create_flags
            max_tso_header rwq_ind_tbl rx_hash_conf source_qpn send_ops_flags
        }
        "struct ibv_global_route" = GlobalRoute { dgid flow_label sgid_index hop_limit traffic_class }
        "struct ibv_ah_attr" = AhAttr { grh dlid sl src_path_bits static_rate is_global port_num }
        "struct ibv_qp_attr" = QpAttr {
            qp_state cur_qp_state path_mtu path_mig_state qkey rq_psn sq_psn dest_qp_num qp_access_flags cap
            ah_attr alt_ah_attr pkey_index alt_pkey_index en_sqd_async_notify sq_draining max_rd_atomic
            max_dest_rd_atomic min_rnr_timer port_num timeout retry_cnt rnr_retry alt_port_num alt_timeout
            rate_limit
        }
        "struct ibv_sge" = Sge { addr length lkey }
        "struct ibv_send_wr" = SendWr {
            wr_id next sg_list num_sge opcode send_flags imm_data wr qp_type bind_mw
        }
        "struct ibv_recv_wr" = RecvWr { wr_id next sg_list num_sge }
        "struct ibv_wc" = Wc {
            wr_id status opcode vendor_err byte_len imm_data qp_num src_qp wc_flags pkey_index slid sl
            dlid_path_bits
        }
        "struct ibv_async_event" = AsyncEvent { element event_type }
    }
}

/// Constants by their C names.
fn verbs_constants() -> impl Iterator<Item = (&'static str, i64)> {
    of_objects().into_iter().chain(of_work()).chain(of_endings())
}

/// Constants of devices, regions and queue pairs.
fn of_objects() -> Vec<(&'static str, i64)> {
    vec![
        ("IBV_TRANSPORT_IB", verbs::TRANSPORT_IB.into()),
        ("IBV_PORT_ACTIVE", verbs::PORT_ACTIVE.into()),
        ("IBV_LINK_LAYER_INFINIBAND", verbs::LINK_LAYER_INFINIBAND.into()),
        ("IBV_LINK_LAYER_ETHERNET", verbs::LINK_LAYER_ETHERNET.into()),
        ("IBV_ATOMIC_NONE", verbs::ATOMIC_NONE.into()),
        ("IBV_GID_TYPE_IB", verbs::GID_TYPE_IB.into()),
        ("IBV_GID_TYPE_ROCE_V1", verbs::GID_TYPE_ROCE_V1.into()),
        ("IBV_GID_TYPE_ROCE_V2", verbs::GID_TYPE_ROCE_V2.into()),
        ("IBV_ACCESS_LOCAL_WRITE", verbs::ACCESS_LOCAL_WRITE.into()),
        ("IBV_ACCESS_REMOTE_WRITE", verbs::ACCESS_REMOTE_WRITE.into()),
        ("IBV_ACCESS_REMOTE_READ", verbs::ACCESS_REMOTE_READ.into()),
        ("IBV_ACCESS_REMOTE_ATOMIC", verbs::ACCESS_REMOTE_ATOMIC.into()),
        ("IBV_ACCESS_RELAXED_ORDERING", verbs::ACCESS_RELAXED_ORDERING.into()),
        ("IBV_QPT_RC", verbs::QPT_RC.into()),
        ("IBV_QP_INIT_ATTR_PD", verbs::INIT_ATTR_PD.into()),
        ("IBV_QP_INIT_ATTR_SEND_OPS_FLAGS", verbs::INIT_ATTR_SEND_OPS_FLAGS.into()),
        ("IBV_QP_EX_WITH_RDMA_WRITE", send_ops::RDMA_WRITE as i64),
        ("IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM", send_ops::RDMA_WRITE_WITH_IMM as i64),
        ("IBV_QP_EX_WITH_SEND", send_ops::SEND as i64),
        ("IBV_QP_EX_WITH_SEND_WITH_IMM", send_ops::SEND_WITH_IMM as i64),
        ("IBV_QP_EX_WITH_RDMA_READ", send_ops::RDMA_READ as i64),
        ("IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP", send_ops::ATOMIC_CMP_AND_SWP as i64),
        ("IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD", send_ops::ATOMIC_FETCH_AND_ADD as i64),
        ("IBV_QPS_RESET", qp_state::RESET.into()),
        ("IBV_QPS_INIT", qp_state::INIT.into()),
        ("IBV_QPS_RTR", qp_state::RTR.into()),
        ("IBV_QPS_RTS", qp_state::RTS.into()),
        ("IBV_QPS_ERR", qp_state::ERR.into()),
        ("IBV_QP_STATE", qp_mask::STATE.into()),
        ("IBV_QP_ACCESS_FLAGS", qp_mask::ACCESS_FLAGS.into()),
        ("IBV_QP_PKEY_INDEX", qp_mask::PKEY_INDEX.into()),
        ("IBV_QP_PORT", qp_mask::PORT.into()),
        ("IBV_QP_AV", qp_mask::AV.into()),
        ("IBV_QP_PATH_MTU", qp_mask::PATH_MTU.into()),
        ("IBV_QP_TIMEOUT", qp_mask::TIMEOUT.into()),
        ("IBV_QP_RETRY_CNT", qp_mask::RETRY_CNT.into()),
        ("IBV_QP_RNR_RETRY", qp_mask::RNR_RETRY.into()),
        ("IBV_QP_RQ_PSN", qp_mask::RQ_PSN.into()),
        ("IBV_QP_MAX_QP_RD_ATOMIC", qp_mask::MAX_QP_RD_ATOMIC.into()),
        ("IBV_QP_MIN_RNR_TIMER", qp_mask::MIN_RNR_TIMER.into()),
        ("IBV_QP_SQ_PSN", qp_mask::SQ_PSN.into()),
        ("IBV_QP_MAX_DEST_RD_ATOMIC", qp_mask::MAX_DEST_RD_ATOMIC.into()),
        ("IBV_QP_DEST_QPN", qp_mask::DEST_QPN.into()),
    ]
}

/// Constants of requests.
fn of_work() -> Vec<(&'static str, i64)> {
    vec![
        ("IBV_SEND_FENCE", verbs::SEND_FENCE.into()),
        ("IBV_SEND_SIGNALED", verbs::SEND_SIGNALED.into()),
        ("IBV_SEND_INLINE", verbs::SEND_INLINE.into()),
        ("IBV_WR_RDMA_WRITE", wr_opcode::RDMA_WRITE.into()),
        ("IBV_WR_RDMA_WRITE_WITH_IMM", wr_opcode::RDMA_WRITE_WITH_IMM.into()),
        ("IBV_WR_SEND", wr_opcode::SEND.into()),
        ("IBV_WR_SEND_WITH_IMM", wr_opcode::SEND_WITH_IMM.into()),
        ("IBV_WR_RDMA_READ", wr_opcode::RDMA_READ.into()),
        ("IBV_WR_ATOMIC_CMP_AND_SWP", wr_opcode::ATOMIC_CMP_AND_SWP.into()),
        ("IBV_WR_ATOMIC_FETCH_AND_ADD", wr_opcode::ATOMIC_FETCH_AND_ADD.into()),
    ]
}

/// Constants of completions and events.
fn of_endings() -> Vec<(&'static str, i64)> {
    vec![
        ("IBV_WC_RECV", wc_opcode::RECV.into()),
        ("IBV_WC_RECV_RDMA_WITH_IMM", wc_opcode::RECV_RDMA_WITH_IMM.into()),
        ("IBV_WC_WITH_IMM", verbs::WC_WITH_IMM.into()),
        ("IBV_WC_SUCCESS", wc_status::SUCCESS.into()),
        ("IBV_WC_LOC_LEN_ERR", wc_status::LOC_LEN_ERR.into()),
        ("IBV_WC_LOC_QP_OP_ERR", wc_status::LOC_QP_OP_ERR.into()),
        ("IBV_WC_LOC_PROT_ERR", wc_status::LOC_PROT_ERR.into()),
        ("IBV_WC_WR_FLUSH_ERR", wc_status::WR_FLUSH_ERR.into()),
        ("IBV_WC_LOC_ACCESS_ERR", wc_status::LOC_ACCESS_ERR.into()),
        ("IBV_WC_REM_INV_REQ_ERR", wc_status::REM_INV_REQ_ERR.into()),
        ("IBV_WC_REM_ACCESS_ERR", wc_status::REM_ACCESS_ERR.into()),
        ("IBV_WC_REM_OP_ERR", wc_status::REM_OP_ERR.into()),
        ("IBV_WC_RETRY_EXC_ERR", wc_status::RETRY_EXC_ERR.into()),
        ("IBV_WC_RNR_RETRY_EXC_ERR", wc_status::RNR_RETRY_EXC_ERR.into()),
        ("IBV_WC_FATAL_ERR", wc_status::FATAL_ERR.into()),
        ("IBV_WC_GENERAL_ERR", wc_status::GENERAL_ERR.into()),
        ("IBV_EVENT_CQ_ERR", event::CQ_ERR.into()),
        ("IBV_EVENT_QP_FATAL", event::QP_FATAL.into()),
        ("IBV_EVENT_QP_REQ_ERR", event::QP_REQ_ERR.into()),
        ("IBV_EVENT_QP_ACCESS_ERR", event::QP_ACCESS_ERR.into()),
        ("IBV_EVENT_COMM_EST", event::COMM_EST.into()),
        ("IBV_EVENT_SQ_DRAINED", event::SQ_DRAINED.into()),
        ("IBV_EVENT_PATH_MIG", event::PATH_MIG.into()),
        ("IBV_EVENT_PATH_MIG_ERR", event::PATH_MIG_ERR.into()),
        ("IBV_EVENT_DEVICE_FATAL", event::DEVICE_FATAL.into()),
        ("IBV_EVENT_PORT_ACTIVE", event::PORT_ACTIVE.into()),
        ("IBV_EVENT_PORT_ERR", event::PORT_ERR.into()),
        ("IBV_EVENT_QP_LAST_WQE_REACHED", event::QP_LAST_WQE_REACHED.into()),
    ]
}

/// C expressions that are 1 when a function, or a slot of a table, has the type that Rust gives it.
fn prototype_checks(folder: &Path) -> Result<Vec<String>> {
    let calls = SourceFile::read(&folder.join("calls.rs"))?;
    let aliases = prototypes::function_aliases(&calls);
    let tables = [
        ("Calls", "calls.rs"),
        ("ContextOps", "context.rs"),
        ("VerbsContext", "context.rs"),
        ("QpEx", "queue_pair.rs"),
    ];
    let mut checks = Vec::new();
    for (table, file) in tables {
        let source = SourceFile::read(&folder.join(file))?;
        let found = source.product.items.iter().find_map(|item| match item {
            syn::Item::Struct(found) if found.ident == table => Some(found),
            _ => None,
        });
        for field in &found.with_context(|| format!("no {table} in {file}"))?.fields {
            let Some(name) = field.ident.as_ref().map(ToString::to_string) else { continue };
            let optional = prototypes::inside_option(&field.ty);
            let (place, function) = match (table, optional) {
                ("Calls", _) if name == "query_gid_ex" => (format!("&_ibv_{name}"), optional),
                ("Calls", _) => (format!("&ibv_{name}"), optional.or(Some(&field.ty))),
                ("ContextOps", _) => (format!("((struct ibv_context_ops*)0)->{name}"), optional),
                ("VerbsContext", _) => (format!("((struct verbs_context*)0)->{name}"), optional),
                _ => (format!("((struct ibv_qp_ex*)0)->{name}"), optional),
            };
            let Some(function) = function else { continue };
            let prototype =
                render_prototype(&aliases, function).with_context(|| format!("{table}: {name}"))?;
            checks.push(format!("__builtin_types_compatible_p(__typeof__({place}), {prototype})"));
        }
    }
    Ok(checks)
}

/// `int (*)(struct ibv_qp*, ...)` for an alias.
fn render_prototype(aliases: &FunctionAliases, function: &Type) -> Result<String> {
    let Type::Path(path) = function else { bail!("no named type") };
    let name = path.path.segments.last().context("an empty path")?.ident.to_string();
    let (_, signature) = aliases.get(&name).with_context(|| format!("{name} is no alias"))?;
    let arguments =
        signature.inputs.iter().map(|input| render_c_type(&input.ty)).collect::<Result<Vec<_>>>()?.join(", ");
    let result = match &signature.output {
        ReturnType::Default => "void".to_owned(),
        ReturnType::Type(_, ty) => render_c_type(ty)?,
    };
    Ok(format!("{result} (*)({arguments})"))
}

fn render_c_type(ty: &Type) -> Result<String> {
    if let Type::Ptr(pointer) = ty {
        let constant = if pointer.const_token.is_some() { "const " } else { "" };
        return Ok(format!("{constant}{}*", render_c_type(&pointer.elem)?));
    }
    let Type::Path(path) = ty else { bail!("a type without a C name") };
    let name = path.path.segments.last().context("an empty path")?.ident.to_string();
    Ok(match name.as_str() {
        "c_int" => "int",
        "c_uint" => "unsigned int",
        "c_char" => "char",
        "c_void" => "void",
        "usize" => "size_t",
        "u8" => "uint8_t",
        "u32" => "uint32_t",
        "u64" => "uint64_t",
        "Gid" => "union ibv_gid",
        "CompatPortAttr" => "struct _compat_ibv_port_attr",
        object => {
            let words = object.chars().fold(String::new(), |mut out, letter| {
                if letter.is_ascii_uppercase() {
                    out.push('_');
                }
                out.push(letter.to_ascii_lowercase());
                out
            });
            return Ok(format!("struct ibv{words}"));
        }
    }
    .to_owned())
}
